/* A CUDA kernel compiled by the host's compiler, for tests without a GPU. SOURCE is the
 * file of the kernel, PARAMS the type of its parameters. One thread runs after the other, each on a stack of its own, from
 * one barrier to the next. Shared memory is static: one CTA runs at a time.
 *
 * In the opposite order of threads and CTAs a kernel must give the same bits, unless it
 * lacks a barrier. A barrier that some threads of a CTA do not reach is an error. */
#include <algorithm>
#include <cmath>
#include <cstdint>
#include "fibers.h"

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
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }

#include SOURCE

enum { MAX_THREADS = 1024, RUNNING = 0, FINISHED = -1 };

static Fibers<MAX_THREADS, 64 << 10> fibers;
static int states[MAX_THREADS]; /* line of the barrier that a thread has reached */
static void (*kernel)(PARAMS);
static const PARAMS *params;

static void barrier(int line)
{
	states[fibers.running] = line;
	fibers.pause();
}

static void thread()
{
	kernel(*params);
	states[fibers.running] = FINISHED;
	fibers.leave();
}

/* Runs a CTA. Returns the line of a barrier that not all threads reach, or 0. */
static int block(unsigned count, bool reversed)
{
	for (unsigned i = 0; i < count; i++)
		fibers.begin(i, thread);
	for (bool begun = false;; begun = true) {
		for (unsigned i = 0; i < count; i++) {
			const unsigned at = reversed ? count - 1 - i : i;
			threadIdx = {at, 0, 0};
			states[at] = RUNNING;
			fibers.run(at, begun);
		}
		for (unsigned i = 1; i < count; i++)
			if (states[i] != states[0])
				return std::max(states[i], states[0]);
		if (states[0] == FINISHED)
			return 0;
	}
}

extern "C" int emulate(void (*entry)(PARAMS), const PARAMS *p, const uint32_t *grid, uint32_t count, int reversed)
{
	if (count > MAX_THREADS || !fibers.reserve())
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
