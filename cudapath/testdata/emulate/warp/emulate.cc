/* A CUDA kernel of warps compiled by the host's compiler, for tests without a GPU. SOURCE is the file of the kernel, in a
 * folder where sm80.h is the one next to this file. PARAMS is the type of its parameters. Each thread has a stack of its own. It runs until it has to wait for
 * others: the lanes of its warp, a barrier, or memory. CTAs run one after the other.
 *
 * In the opposite order of threads a kernel must give the same bits, unless it lacks a barrier. Threads that all wait, or
 * lanes that meet at different instructions, are an error. */
#include <climits>
#include "fibers.h"

struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, gridDim;
static void blockBarrier();
static bool blockOr(bool);

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n)
#define __shared__ static
#define __syncthreads() blockBarrier()
#define __syncthreads_or(x) blockOr(x)
#include "sm80.h"

#include SOURCE

#ifndef PARAMS
#define PARAMS AttnBackwardParams
#endif

enum { MAX_THREADS = 256, MEMORY = 256 << 10 };
alignas(128) char memory[MEMORY];
std::vector<Copy> copies[MAX_THREADS];

static Fibers<MAX_THREADS, 256 << 10> fibers;
static bool finished[MAX_THREADS];
long progress;
static const char *failure;
static unsigned count;
static void (*kernel)(PARAMS);
static const PARAMS *params;

struct Meeting { const char *what; unsigned here; int generation; void *arguments[32]; };
static Meeting warps[MAX_THREADS / 32];
static struct { unsigned here; int generation; bool any, last; } all;

void pause() { fibers.pause(); }
void pauseWhile(const int *at, int value, int mask) { fibers.pauseWhile(at, mask, value); }

char *sharedAt(uint32_t address)
{
	if (address >= MEMORY) refuse("no shared memory", address);
	return memory + address;
}

void refuse(const char *what, uint64_t)
{
	failure = what;
	fibers.leave();
}

void meet(const char *what, void *argument, void (*f)(void **))
{
	Meeting &m = warps[threadIdx.x / 32];
	const int generation = m.generation;
	if (m.here == 0) m.what = what;
	if (strcmp(m.what, what) != 0 && !failure) failure = what;
	m.arguments[threadIdx.x % 32] = argument;
	progress++;
	if (++m.here == 32) {
		f(m.arguments);
		m.here = 0;
		m.generation++;
		return;
	}
	while (m.generation == generation) pauseWhile(&m.generation, generation);
}

void meetAll(unsigned threads, bool &any)
{
	const int generation = all.generation;
	all.any |= any;
	progress++;
	if (++all.here == threads) {
		all.last = all.any;
		all.any = false;
		all.here = 0;
		all.generation++;
	}
	while (all.generation == generation) pauseWhile(&all.generation, generation);
	any = all.last;
}

static void blockBarrier() { join(count); }
static bool blockOr(bool x) { return join_any(count, x); }

static void thread()
{
	kernel(*params);
	finished[threadIdx.x] = true;
	progress++;
	fibers.leave();
}

/* Runs the threads of a warp until none gets on. Returns how many have not finished. */
static unsigned runWarp(unsigned warp, bool reversed, bool begun)
{
	unsigned left;
	long before;
	do {
		before = progress;
		left = 0;
		for (unsigned n = 0; n < 32 && !failure; n++) {
			const unsigned i = 32 * warp + (reversed ? 31 - n : n);
			if (finished[i]) continue;
			left++;
			threadIdx = {i, 0, 0};
			fibers.run(i, begun);
		}
		begun = true;
	} while (progress != before && !failure);
	return left;
}

static bool block(bool reversed)
{
	memset(memory, 0xff, MEMORY);
	all = {};
	for (unsigned i = 0; i < count; i++) {
		fibers.begin(i, thread);
		finished[i] = false;
		copies[i].clear();
		warps[i / 32] = {};
	}
	/* A warp runs as far as it can before the next one does, so that it reads too early what lacks a barrier. */
	unsigned idle = 0;
	for (bool begun = false;; begun = true) {
		unsigned left = 0;
		const long before = progress;
		for (unsigned n = 0; n < count / 32; n++) left += runWarp(reversed ? count / 32 - 1 - n : n, reversed, begun);
		if (left == 0) return true;
		idle = progress != before ? 0 : idle + 1;
		if (idle > 1000 && !failure) failure = "all threads wait";
		if (failure) return false;
	}
}

extern "C" const char *emulate(void (*entry)(PARAMS), const PARAMS *p, const uint32_t *grid, uint32_t threads, int reversed)
{
	if (threads > MAX_THREADS || threads % 32) return "threads";
	if (!fibers.reserve()) return "memory";
	kernel = entry;
	params = p;
	count = threads;
	failure = nullptr;
	gridDim = {grid[0], grid[1], grid[2]};
	const uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
	for (uint64_t n = 0; n < blocks; n++) {
		const uint64_t i = reversed ? blocks - 1 - n : n;
		blockIdx = {(unsigned)(i % grid[0]), (unsigned)(i / grid[0] % grid[1]), (unsigned)(i / grid[0] / grid[1])};
		if (!block(reversed)) return failure;
	}
	return nullptr;
}

#ifdef PLANS
/* Whether the plan of a unit of kernel Main says of blocks of its rows what follows from their lengths: 0, or what differs. The
 * blocks are the first and last 16 of the unit, and others by seed. */
extern "C" int planDiffers(const AttnBackwardParams *p, uint32_t ticket, uint64_t seed)
{
	const fa2::Work<Main> work(*p, ticket);
	const fa2::Plan<Main> plan(*p, work);
	const int64_t n = work.rows.end - work.rows.first, key = work.key;
	for (int i = 0; i < 64 && n > 0; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		const int64_t at = i < 16 ? i : i < 32 ? n - 1 - (i - 16) : int64_t((seed >> 33) % uint64_t(n));
		if (at < 0 || at >= n) continue;
		const int block = work.rows.first + int(at);
		const Span keys = work.s.key_blocks(block);
		if (plan.later_blocks(block) != (p->dQ.base ? keys.end - 1 - work.unit.block : 0)) return 1;
		if (p->dQ.base && plan.ends_at(block) != (keys.first == work.unit.block)) return 2;
		const int64_t row = int64_t(block) * Main::Rows, lastRow = row + Main::Rows - 1, lastKey = key + Main::Keys - 1;
		const bool whole = lastRow < work.s.rows.used && lastKey < work.s.keys.used && lastKey <= row + work.s.right && key >= lastRow - work.s.left;
		if ((row >= plan.least && row <= plan.most) != whole) return 3;
	}
	return 0;
}
#endif
