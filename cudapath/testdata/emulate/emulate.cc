/* A CUDA kernel compiled by the host's compiler, for tests without a GPU. SOURCE is the
 * file of the kernel. One thread runs after the other, each on a stack of its own, from
 * one barrier to the next. Shared memory is static: one CTA runs at a time.
 *
 * In the opposite order of threads and CTAs a kernel must give the same bits, unless it
 * lacks a barrier. A barrier that some threads of a CTA do not reach is an error. */
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <csetjmp>
#include <cstdlib>
#include <ucontext.h>

struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, gridDim;

static void barrier(int line);

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(threads)
#define __shared__ static
#define __syncthreads() barrier(__LINE__)
using std::max;
using std::min;
static inline float __fmul_rn(float a, float b) { return a * b; }

#include SOURCE

enum { MAX_THREADS = 1024, STACK = 64 << 10, RUNNING = 0, FINISHED = -1 };

static ucontext_t scheduler, starts[MAX_THREADS];
static jmp_buf home, places[MAX_THREADS]; /* a switch by longjmp makes no system call */
static int states[MAX_THREADS]; /* line of the barrier that a thread has reached */
static char *stacks;
static unsigned running;
static void (*kernel)(AttnBackwardParams);
static const AttnBackwardParams *params;

static void barrier(int line)
{
	states[running] = line;
	if (!_setjmp(places[running]))
		_longjmp(home, 1);
}

static void thread()
{
	kernel(*params);
	states[running] = FINISHED;
	_longjmp(home, 1);
}

/* Runs a thread up to its next barrier. */
static void step(bool begun)
{
	if (_setjmp(home))
		return;
	if (begun)
		_longjmp(places[running], 1);
	setcontext(&starts[running]);
}

/* Runs a CTA. Returns the line of a barrier that not all threads reach, or 0. */
static int block(unsigned count, bool reversed)
{
	for (unsigned i = 0; i < count; i++) {
		getcontext(&starts[i]);
		starts[i].uc_stack.ss_sp = stacks + (size_t)i * STACK;
		starts[i].uc_stack.ss_size = STACK;
		starts[i].uc_link = &scheduler;
		makecontext(&starts[i], thread, 0);
	}
	for (bool begun = false;; begun = true) {
		for (unsigned i = 0; i < count; i++) {
			running = reversed ? count - 1 - i : i;
			threadIdx = {running, 0, 0};
			states[running] = RUNNING;
			step(begun);
		}
		for (unsigned i = 1; i < count; i++)
			if (states[i] != states[0])
				return std::max(states[i], states[0]);
		if (states[0] == FINISHED)
			return 0;
	}
}

extern "C" int emulate(void (*entry)(AttnBackwardParams), const AttnBackwardParams *p, const uint32_t *grid, uint32_t count, int reversed)
{
	if (count > MAX_THREADS)
		return -1;
	if (!stacks && !(stacks = (char *)malloc((size_t)MAX_THREADS * STACK)))
		return -1;
	kernel = entry;
	params = p;
	gridDim = {grid[0], grid[1], grid[2]};
	const uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
	for (uint64_t n = 0; n < blocks; n++) {
		const uint64_t i = reversed ? blocks - 1 - n : n;
		blockIdx = {(unsigned)(i % grid[0]), (unsigned)(i / grid[0] % grid[1]), (unsigned)(i / grid[0] / grid[1])};
		if (int line = block(count, reversed))
			return line;
	}
	return 0;
}
