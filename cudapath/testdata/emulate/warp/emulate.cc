/* A CUDA kernel of warps compiled by the host's compiler, for tests without a GPU. SOURCE is the file of the kernel, in a
 * folder where ptx.h is the one beside this file. Each thread has a stack of its own. It runs until it has to wait for
 * others: the lanes of its warp, a barrier, or memory. CTAs run one after the other.
 *
 * In the opposite order of threads a kernel must give the same bits, unless it lacks a barrier. Threads that all wait, or
 * lanes that meet at different instructions, are an error. */
#include <climits>
#include <csetjmp>
#include <cstddef>
#include <ucontext.h>

struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, gridDim;
static void blockBarrier();

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n)
#define __shared__ static
#define __syncthreads() blockBarrier()
#define extern_shared
#include "ptx.h"
using std::max;
using std::min;
static inline float __fmul_rn(float a, float b) { return a * b; }

#include SOURCE

enum { MAX_THREADS = 256, STACK = 256 << 10, MEMORY = 256 << 10 };
alignas(128) char memory[MEMORY];
std::vector<Copy> copies[MAX_THREADS];

static ucontext_t starts[MAX_THREADS], finish;
static jmp_buf home, places[MAX_THREADS]; /* a switch by longjmp makes no system call */
static bool finished[MAX_THREADS], moved;
static char *stacks;
static const char *failure;
static unsigned count;
static void (*kernel)(AttnBackwardParams);
static const AttnBackwardParams *params;

struct Meeting { const char *what; unsigned here, generation; void *arguments[32]; };
static Meeting warps[MAX_THREADS / 32];
static struct { unsigned here, generation; bool any, last; } all;

void pause()
{
	if (!_setjmp(places[threadIdx.x])) _longjmp(home, 1);
}

void meet(const char *what, void *argument, void (*f)(void **))
{
	Meeting &m = warps[threadIdx.x / 32];
	const unsigned generation = m.generation;
	if (m.here == 0) m.what = what;
	if (strcmp(m.what, what) != 0 && !failure) failure = what;
	m.arguments[threadIdx.x % 32] = argument;
	moved = true;
	if (++m.here == 32) {
		f(m.arguments);
		m.here = 0;
		m.generation++;
		return;
	}
	while (m.generation == generation) pause();
}

void meetAll(unsigned threads, bool &any)
{
	const unsigned generation = all.generation;
	all.any |= any;
	moved = true;
	if (++all.here == threads) {
		all.last = all.any;
		all.any = false;
		all.here = 0;
		all.generation++;
	}
	while (all.generation == generation) pause();
	any = all.last;
}

static void blockBarrier() { join(count); }

static void thread()
{
	kernel(*params);
	finished[threadIdx.x] = moved = true;
	_longjmp(home, 1);
}

static void step(bool begun)
{
	if (_setjmp(home)) return;
	if (begun) _longjmp(places[threadIdx.x], 1);
	setcontext(&starts[threadIdx.x]);
}

static bool block(bool reversed)
{
	memset(memory, 0xff, MEMORY);
	all = {};
	for (unsigned i = 0; i < count; i++) {
		getcontext(&starts[i]);
		starts[i].uc_stack.ss_sp = stacks + (size_t)i * STACK;
		starts[i].uc_stack.ss_size = STACK;
		starts[i].uc_link = &finish;
		makecontext(&starts[i], thread, 0);
		finished[i] = false;
		copies[i].clear();
		warps[i / 32] = {};
	}
	unsigned idle = 0;
	for (bool begun = false;; begun = true) {
		bool running = false;
		moved = false;
		for (unsigned n = 0; n < count; n++) {
			const unsigned i = reversed ? count - 1 - n : n;
			if (finished[i]) continue;
			running = true;
			threadIdx = {i, 0, 0};
			step(begun);
		}
		if (!running) return true;
		idle = moved ? 0 : idle + 1;
		if (idle > 1000 && !failure) failure = "all threads wait";
		if (failure) return false;
	}
}

extern "C" const char *emulate(void (*entry)(AttnBackwardParams), const AttnBackwardParams *p, const uint32_t *grid, uint32_t threads, int reversed)
{
	if (threads > MAX_THREADS || threads % 32) return "threads";
	if (!stacks && !(stacks = (char *)malloc((size_t)MAX_THREADS * STACK))) return "memory";
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
