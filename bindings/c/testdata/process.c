/* The library in a process of somebody else: signals, fork, dlclose and exit. Each word is a case. */
#define _GNU_SOURCE
#include "test.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { H = 2, S = 64, D = 32, N = H * S * D };

static const char *library;

#define FUNCTIONS(X) X(last_error) X(device_open) X(device_wait) X(device_destroy) X(buffer_create) X(buffer_write) \
	X(buffer_read) X(op_create) X(op_forward) X(op_destroy) X(buffer_destroy)
#define DECLARE(f) static __typeof__(&vkattn_##f) f;
#define FIND(f) *(void **)&f = dlsym(handle, "vkattn_" #f); REQUIRE(f);
__extension__ FUNCTIONS(DECLARE)
/* The program is not linked with the library. */
#define vkattn_last_error() (last_error ? last_error() : "none")

static void *load(void)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	FUNCTIONS(FIND)
	return handle;
}

static vkattn_device device;
static vkattn_op op;
static vkattn_args args;
static const char *device_name; /* NULL: the CPU */

static void open_all(void)
{
	vkattn_device_options options = {.size = sizeof options, .cpu = !device_name, .device = device_name, .pipeline_cache = "off"};
	OK(device_open(&options, &device));
	vkattn_config c = {.size = sizeof c, .dtype = VKATTN_F32, .head_dim = D};
	OK(op_create(device, &c, &op));
	vkattn_args a = {.size = sizeof a, .shape = {1, H, H, S, S}, .q = floats(N), .k = floats(N), .v = floats(N), .o = floats(N)};
	args = a;
}

static void forward(void) { OK(op_forward(op, NULL, &args)); }

static sigjmp_buf back;
static volatile sig_atomic_t caught;

static void on_fault(int n)
{
	caught = n;
	siglongjmp(back, 1);
}

static void on_signal(int n) { caught = n; }

static void install(int n, void (*handler)(int))
{
	struct sigaction a = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
	REQUIRE(!sigaction(n, &a, NULL));
}

static void *volatile nowhere;

/* A fault of the program reaches the program's handler. */
static void fault(void)
{
	caught = 0;
	if (!sigsetjmp(back, 1))
		*(volatile int *)nowhere = 1;
	REQUIRE(caught == SIGSEGV);
}

static void is_handler(int n, void (*handler)(int))
{
	struct sigaction now;
	REQUIRE(!sigaction(n, NULL, &now));
	REQUIRE(now.sa_handler == handler);
}

static void handler_before(void)
{
	install(SIGSEGV, on_fault);
	load();
	open_all();
	fault();
	forward();
	fault();
}

static void handler_after(void)
{
	load();
	install(SIGSEGV, on_fault);
	open_all();
	forward();
	is_handler(SIGSEGV, on_fault);
	fault();
	forward();
	fault();
}

/* Signals that are no faults stay the program's: handlers, defaults and what it ignores. */
static void other_signals(void)
{
	static const int handled[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD, SIGALRM, SIGHUP, SIGWINCH};
	const size_t n = sizeof handled / sizeof *handled;
	struct sigaction before[sizeof handled / sizeof *handled]; /* SIGHUP is ignored under nohup */
	for (size_t i = 0; i < n; i++) {
		if (i % 2)
			install(handled[i], on_signal);
		REQUIRE(!sigaction(handled[i], NULL, &before[i]));
	}
	signal(SIGPIPE, SIG_IGN);
	load();
	open_all();
	forward();
	for (size_t i = 0; i < n; i++) {
		is_handler(handled[i], before[i].sa_handler);
		if (i % 2) {
			caught = 0;
			raise(handled[i]);
			REQUIRE(caught == handled[i]);
		}
	}
	int ends[2];
	REQUIRE(!pipe(ends) && !close(ends[0]));
	REQUIRE(write(ends[1], "", 1) < 0 && errno == EPIPE);
}

static volatile sig_atomic_t ticks;

static void on_tick(int n)
{
	(void)n;
	ticks++;
}

/* A timer of the program that interrupts the calls. */
static void timer(void)
{
	load();
	open_all();
	struct sigaction a = {.sa_handler = on_tick, .sa_flags = SA_ONSTACK | SA_RESTART};
	REQUIRE(!sigaction(SIGALRM, &a, NULL));
	struct itimerval often = {{0, 500}, {0, 500}};
	REQUIRE(!setitimer(ITIMER_REAL, &often, NULL));
	while (ticks < 100)
		forward();
}

/* In the child calls are refused, also those with handles, and it exits. The parent goes on. */
static void forks(void)
{
	load();
	for (int round = 0; round < 3; round++) {
		if (round == 1)
			open_all();
		pid_t child = fork();
		REQUIRE(child >= 0);
		if (child == 0) {
			vkattn_device d;
			REFUSED(VKATTN_ERROR_PROCESS, "fork", device_open(NULL, &d));
			REFUSED(VKATTN_ERROR_PROCESS, "fork", op_forward(op, NULL, &args));
			REFUSED(VKATTN_ERROR_PROCESS, "fork", op_destroy(op));
			REFUSED(VKATTN_ERROR_PROCESS, "fork", device_destroy(device));
			if (device_name) /* lavapipe's handler at exit waits for its threads, which the child does not have */
				_exit(7);
			exit(7);
		}
		int status;
		REQUIRE(waitpid(child, &status, 0) == child);
		REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
		if (round > 0)
			forward();
	}
	pid_t child = fork();
	if (child == 0) {
		execlp("true", "true", (char *)NULL);
		_exit(1);
	}
	int status;
	REQUIRE(waitpid(child, &status, 0) == child && status == 0);
	OK(device_destroy(device));
}

/* dlclose does nothing: the library stays, with its devices and operations. */
static void closes(void)
{
	void *handle = load();
	open_all();
	forward();
	REQUIRE(!dlclose(handle));
	forward();
	REQUIRE(load() == handle);
	forward();
	REQUIRE(!dlclose(handle));
}

static void *forever(void *unused)
{
	for (;;) {
		vkattn_args a = args;
		a.o = floats(N);
		if (op_forward(op, NULL, &a) != VKATTN_OK)
			return unused;
		free(a.o.data);
	}
}

/* The process exits while threads compute, and while a device computes. */
static void exits(void)
{
	load();
	open_all();
	forward();
	pthread_t thread;
	for (int i = 0; i < 3; i++)
		REQUIRE(!pthread_create(&thread, NULL, forever, NULL));
	vkattn_tensor *all[] = {&args.q, &args.k, &args.v, &args.o};
	vkattn_args a = args;
	vkattn_tensor *on[] = {&a.q, &a.k, &a.v, &a.o};
	for (int i = 0; i < 4; i++) {
		vkattn_tensor t = {0};
		OK(buffer_create(device, N * sizeof(float), &t.buffer));
		OK(buffer_write(t.buffer, 0, all[i]->data, N * sizeof(float)));
		*on[i] = t;
	}
	for (int i = 0; i < 50; i++)
		OK(op_forward(op, NULL, &a));
}

/* A handler of the program that runs at exit, after those of the library, gets errors. */
static void late(void)
{
	if (op_forward(op, NULL, &args) != VKATTN_ERROR_PROCESS || !strstr(last_error(), "exits"))
		_exit(9);
}

static void exit_handlers(void)
{
	load();
	atexit(late);
	open_all();
	forward();
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {{"handler-before", handler_before}, {"handler-after", handler_after}, {"other-signals", other_signals},
		{"timer", timer}, {"forks", forks}, {"closes", closes}, {"exits", exits}, {"exit-handlers", exit_handlers}};
	REQUIRE(argc == 3 || argc == 4);
	library = argv[1];
	device_name = argc == 4 ? argv[3] : NULL;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (!strcmp(argv[2], cases[i].name)) {
			cases[i].run();
			return 0;
		}
	return 2;
}
