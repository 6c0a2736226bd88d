/* Threads of a CTA that run one after the other, each on a stack of its own until it pauses. */
#pragma once
#include <csetjmp>
#include <cstddef>
#include <cstdlib>
#include <ucontext.h>

template <int THREADS, int STACK> struct Fibers {
	ucontext_t starts[THREADS], end;
	jmp_buf home, places[THREADS]; /* a switch by longjmp makes no system call */
	char *stacks = nullptr;
	unsigned running;
	struct { const int *at; int mask, value; } waits[THREADS]; /* at: a thread that waits is not run while *at & mask is value */

	/* From a stack to the next: with a power of two all tops of stacks would share one set of a cache. */
	static constexpr size_t STEP = STACK + 9 * 64;

	/* Allocates the stacks once. Returns false without memory. */
	bool reserve() { return stacks || (stacks = (char *)malloc(THREADS * STEP)); }

	/* Makes thread i begin with f, which ends in leave(). */
	void begin(unsigned i, void (*f)())
	{
		waits[i] = {};
		getcontext(&starts[i]);
		starts[i].uc_stack.ss_sp = stacks + i * STEP;
		starts[i].uc_stack.ss_size = STACK;
		starts[i].uc_link = &end;
		makecontext(&starts[i], f, 0);
	}

	/* Runs thread i until it pauses or ends. begun: it has run before. */
	void run(unsigned i, bool begun)
	{
		if (waits[i].at && (*waits[i].at & waits[i].mask) == waits[i].value) return;
		waits[i] = {};
		running = i;
		if (_setjmp(home)) return;
		if (begun) _longjmp(places[i], 1);
		setcontext(&starts[i]);
	}

	/* Returns from run(), and goes on when the thread is run again. */
	void pause()
	{
		if (!_setjmp(places[running])) _longjmp(home, 1);
	}

	/* pause, as long as *at & mask is value. */
	void pauseWhile(const int *at, int mask, int value)
	{
		waits[running] = {at, mask, value};
		pause();
	}

	/* Returns from run() for good. */
	[[noreturn]] void leave() { _longjmp(home, 1); }
};
