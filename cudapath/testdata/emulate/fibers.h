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

	/* Allocates the stacks once. Returns false without memory. */
	bool reserve() { return stacks || (stacks = (char *)malloc((size_t)THREADS * STACK)); }

	/* Makes thread i begin with f, which ends in leave(). */
	void begin(unsigned i, void (*f)())
	{
		getcontext(&starts[i]);
		starts[i].uc_stack.ss_sp = stacks + (size_t)i * STACK;
		starts[i].uc_stack.ss_size = STACK;
		starts[i].uc_link = &end;
		makecontext(&starts[i], f, 0);
	}

	/* Runs thread i until it pauses or ends. begun: it has run before. */
	void run(unsigned i, bool begun)
	{
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

	/* Returns from run() for good. */
	[[noreturn]] void leave() { _longjmp(home, 1); }
};
