/* vkattn_call on the fake driver of package cudapath, the first argument: a run launches what the ordinary call does, to the
 * last bit, and is refused as that is. The fake has a sum of all launches and their arguments, and counts those of C. */
#define _GNU_SOURCE
#include "test.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static int (*push)(void *), (*create)(void **, unsigned), (*wait_for)(void *), (*begin)(void *, int), (*end)(void *, void **);
static int (*allocate)(uint64_t *, size_t);
static uint64_t (*fake_sum)(int *);
static const char *(*fake_launches)(void);
static void (*fake_fail)(const char *, int), (*fake_die)(int), (*fake_hold)(const char *), (*fake_await)(void);

static void load(const char *path)
{
	const struct {
		const char *name;
		void *to;
	} list[] = {{"cuCtxPushCurrent_v2", &push}, {"cuStreamCreate", &create}, {"cuStreamSynchronize", &wait_for},
		{"cuStreamBeginCapture_v2", &begin}, {"cuStreamEndCapture", &end}, {"cuMemAlloc_v2", &allocate}, {"fake_sum", &fake_sum},
		{"fake_launches", &fake_launches}, {"fake_fail", &fake_fail}, {"fake_die", &fake_die}, {"fake_hold", &fake_hold},
		{"fake_await", &fake_await}};
	void *driver = dlopen(path, RTLD_NOW);
	REQUIRE(driver);
	for (size_t i = 0; i < sizeof list / sizeof *list; i++)
		REQUIRE(*(void **)list[i].to = dlsym(driver, list[i].name));
}

enum { TENSORS = 10, Q = 0, K, V, O, LSE, DO, DLSE, DQ, DK, DV };

static vkattn_device device;
static vkattn_stream stream;
static void *of_cuda;

/* A call: both passes, at two sets of addresses. */
typedef struct problem {
	const char *name, *kernel; /* of the launches; "": any */
	vkattn_config config;
	vkattn_shape shape;
	int packed; /* Q, K and V are views of one tensor [batch, rows, 3, heads, dim] */
	int forward_alone;
	int in_go; /* its launches depend on more than addresses */
} problem;

static vkattn_args args;
static vkattn_backward_args back;
static void *sets[2][TENSORS];
static uint64_t bytes[TENSORS];

static vkattn_tensor *tensor(int i)
{
	vkattn_tensor *of[] = {&args.q, &args.k, &args.v, &args.o, &args.lse, &back.d_o, &back.d_lse, &back.d_q, &back.d_k, &back.d_v};
	return of[i];
}

static void use(void *const *data)
{
	for (int i = 0; i < TENSORS; i++) {
		tensor(i)->data = data[i];
		tensor(i)->bytes = bytes[i];
	}
}

static void make(const problem *p)
{
	const vkattn_shape *s = &p->shape;
	const int64_t size = p->config.dtype == VKATTN_F32 ? 4 : 2, d = p->config.head_dim, dv = p->config.head_dim_v ? p->config.head_dim_v : d;
	const int64_t hkv = s->hkv ? s->hkv : s->hq, q = s->b * s->hq * s->sq * size, k = s->b * hkv * s->sk * size;
	const int64_t n[TENSORS] = {q * d, k * d, k * dv, q * dv, s->b * s->hq * s->sq * 4, q * dv, 0, q * d, k * d, k * dv};
	memset(&args, 0, sizeof args);
	memset(&back, 0, sizeof back);
	args.size = sizeof args, args.shape = *s;
	back.size = sizeof back, back.forward = &args;
	for (int set = 0; set < 2; set++)
		for (int i = 0; i < TENSORS; i++) {
			uint64_t at = 0;
			REQUIRE(!n[i] || !allocate(&at, (size_t)n[i] * 3 + 64));
			sets[set][i] = (void *)at;
			bytes[i] = (uint64_t)n[i];
		}
	if (!p->packed)
		return;
	for (int i = Q; i <= V; i++) {
		for (int set = 0; set < 2; set++)
			sets[set][i] = (char *)sets[set][Q] + (uint64_t)i * s->hq * d * size;
		bytes[i] = (uint64_t)((s->b * s->sq * 3 - 2) * s->hq * d * size);
		tensor(i)->stride_row = 3 * s->hq * d, tensor(i)->stride_head = d, tensor(i)->stride_batch = s->sq * tensor(i)->stride_row;
	}
}

static vkattn_op op;
static vkattn_call calls[2]; /* forward, backward */

typedef struct outcome {
	vkattn_status status;
	uint64_t sum;
	char text[512];
} outcome;

static outcome ended(vkattn_status status, int *by_c)
{
	outcome o = {.status = status};
	REQUIRE(!wait_for(of_cuda));
	o.sum = fake_sum(by_c);
	if (status)
		snprintf(o.text, sizeof o.text, "%s", vkattn_last_error());
	return o;
}

static outcome ordinary(int backward, void *const *data)
{
	int by_c;
	use(data);
	(void)fake_sum(&by_c);
	return ended(backward ? vkattn_op_backward(op, stream, &back) : vkattn_op_forward(op, stream, &args), &by_c);
}

static outcome repeated(int backward, void *const *data, int *by_c)
{
	(void)fake_sum(by_c);
	return ended(vkattn_call_run(calls[backward], stream, (const void *const *)data), by_c);
}

/* A run has the outcome of the ordinary call. direct: it is one without Go. */
static void same(int backward, void *const *data, int direct)
{
	int by_c;
	outcome want = ordinary(backward, data), got = repeated(backward, data, &by_c);
	REQUIRE(want.status == got.status && want.sum == got.sum && !strcmp(want.text, got.text));
	if (direct)
		REQUIRE(want.status == VKATTN_OK && by_c);
	else
		REQUIRE(!by_c);
}

static void copy(void **to, void *const *from) { memcpy(to, from, TENSORS * sizeof *to); }

static void problem_is_repeated(const problem *p)
{
	void *data[TENSORS];
	make(p);
	vkattn_config config = p->config;
	config.size = sizeof config;
	OK(vkattn_op_create(device, &config, &op));
	for (int backward = 0; backward < 2 - p->forward_alone; backward++) {
		(void)fake_launches();
		REQUIRE(ordinary(backward, sets[0]).status == VKATTN_OK); /* it may allocate the workspace */
		REQUIRE(strstr(fake_launches(), p->kernel));
		uint64_t first = ordinary(backward, sets[0]).sum;
		REQUIRE(first != ordinary(backward, sets[1]).sum);
		if (backward)
			OK(vkattn_call_create_backward(op, &back, &calls[1]));
		else
			OK(vkattn_call_create_forward(op, &args, &calls[0]));
		OK(vkattn_call_run(calls[backward], stream, (const void *const *)sets[1])); /* records */
		same(backward, sets[0], !p->in_go);
		same(backward, sets[1], !p->in_go);
		if (p->in_go)
			continue;

		/* Tensors at other distances, such as K and V in one another's places. */
		copy(data, sets[0]);
		data[Q] = sets[1][Q], data[O] = sets[1][O];
		same(backward, data, 1);
		copy(data, sets[0]);
		data[V] = data[K];
		same(backward, data, p->shape.hkv != 1 && bytes[V] == bytes[K]);

		/* What is unusual is made as the ordinary call is, or refused as that is. */
		int output = backward ? DQ : O;
		for (int i = 0; i < 5; i++) {
			copy(data, sets[0]);
			data[Q] = i == 0 ? NULL : i == 1 ? (char *)data[Q] + 4 : i == 4 ? (void *)(UINTPTR_MAX - 15) : data[Q];
			data[output] = i == 2 ? sets[0][K] : i == 3 ? (char *)sets[0][V] + 16 : data[output];
			same(backward, data, 0);
		}
		same(backward, sets[0], 1);
	}
	for (int backward = 0; backward < 2 - p->forward_alone; backward++)
		OK(vkattn_call_destroy(calls[backward]));
	OK(vkattn_op_destroy(op));
}

static const problem problems[] = {
	{"training", "fa3", {.dtype = VKATTN_BF16, .head_dim = 64, .causal = VKATTN_BOTTOM_RIGHT}, {2, 4, 4, 200, 200}, 0, 0, 0},
	{"packed", "fa3", {.dtype = VKATTN_F16, .head_dim = 64, .causal = VKATTN_TOP_LEFT}, {2, 4, 4, 200, 200}, 1, 0, 0},
	{"groups", "fa3", {.dtype = VKATTN_F16, .head_dim = 128}, {1, 8, 2, 130, 300}, 0, 0, 0},
	{"one KV head", "", {.dtype = VKATTN_F16, .head_dim = 64}, {2, 4, 1, 100, 150}, 0, 0, 0},
	{"dim 256", "", {.dtype = VKATTN_BF16, .head_dim = 256}, {2, 2, 2, 150, 150}, 0, 0, 0},
	{"window", "", {.dtype = VKATTN_F16, .head_dim = 64, .has_window = 1, .window_left = 20, .window_right = 3, .align = VKATTN_BOTTOM_RIGHT}, {2, 4, 4, 200, 200}, 0, 0, 0},
	{"softcap", "", {.dtype = VKATTN_F16, .head_dim = 128, .softcap = 5}, {1, 4, 4, 100, 100}, 0, 0, 0},
	{"float32", "_f32", {.dtype = VKATTN_F32, .head_dim = 32}, {2, 4, 2, 12, 37}, 0, 0, 0},
	{"dropout", "general", {.dtype = VKATTN_F16, .head_dim = 64, .dropout = 0.5f}, {1, 4, 4, 100, 100}, 0, 1, 0},
	{"two launches", "fa2", {.dtype = VKATTN_F16, .head_dim = 8, .causal = VKATTN_TOP_LEFT, .tier = VKATTN_TIER_CUDA, .kernel = "fa2"}, {70000, 1, 1, 1, 1}, 0, 1, 0},
	{"splits", "decode", {.dtype = VKATTN_F16, .head_dim = 128}, {1, 8, 1, 1, 5000}, 0, 1, 1},
};

/* ---- the life of the handles ---- */

static void *in_thread(void *result)
{
	*(vkattn_status *)result = vkattn_call_run(calls[1], stream, (const void *const *)sets[0]);
	return NULL;
}

#define BUSY(call) REFUSED(VKATTN_ERROR_BUSY, "another thread", call)

static void handles(void)
{
	void *graph;
	int by_c;
	vkattn_call none;
	const void *const *data = (const void *const *)sets[0];
	make(&problems[0]);
	vkattn_config config = problems[0].config;
	config.size = sizeof config;
	OK(vkattn_op_create(device, &config, &op));
	use(sets[0]);
	OK(vkattn_call_create_forward(op, &args, &calls[0]));
	OK(vkattn_call_create_backward(op, &back, &calls[1]));
	OK(vkattn_call_run(calls[0], stream, data));
	OK(vkattn_call_run(calls[1], stream, data));
	same(1, sets[0], 1);
	(void)repeated(1, sets[0], &by_c);
	const int both = 1 + by_c;

	/* A graph may capture runs: the first one of a backward call tells Go that it has the workspace. */
	for (int i = 0; i < 2; i++) {
		REQUIRE(!begin(of_cuda, 0));
		(void)fake_sum(&by_c);
		OK(vkattn_call_run(calls[0], stream, data));
		OK(vkattn_call_run(calls[1], stream, data));
		(void)fake_sum(&by_c);
		REQUIRE(by_c == (i ? both : 1));
		REQUIRE(!end(of_cuda, &graph));
	}

	/* While a run is in the driver nobody else has the stream, and nothing that it uses is destroyed. */
	vkattn_status status;
	pthread_t thread;
	fake_hold("cuLaunchKernel");
	REQUIRE(!pthread_create(&thread, NULL, in_thread, &status));
	fake_await();
	BUSY(vkattn_call_run(calls[1], stream, data));
	BUSY(vkattn_call_run(calls[0], stream, data));
	BUSY(vkattn_op_forward(op, stream, &args));
	BUSY(vkattn_call_destroy(calls[1]));
	BUSY(vkattn_stream_destroy(stream));
	BUSY(vkattn_op_destroy(op));
	BUSY(vkattn_device_destroy(device));
	fake_hold("");
	REQUIRE(!pthread_join(thread, NULL) && status == VKATTN_OK);
	same(0, sets[0], 1);
	OK(vkattn_call_run(calls[1], stream, data));

	/* Wrong uses. */
	INVALID("the call is NULL", vkattn_call_run(NULL, stream, data));
	INVALID("data is NULL", vkattn_call_run(calls[0], stream, NULL));
	INVALID("of kind stream, want call", vkattn_call_run((vkattn_call)stream, stream, data));
	INVALID("of kind call, want stream", vkattn_call_run(calls[0], (vkattn_stream)calls[0], data));
	INVALID("call is NULL", vkattn_call_create_forward(op, &args, NULL));
	INVALID("args is NULL", vkattn_call_create_forward(op, NULL, &none));
	INVALID("args is NULL", vkattn_call_create_backward(op, NULL, &none));
	args.dropout_offset = UINT64_MAX;
	OK(vkattn_call_create_forward(op, &args, &none));
	INVALID("dropout_offset", vkattn_call_run(none, stream, data)); /* as the ordinary call */
	args.dropout_offset = 0;
	args.alibi.data = sets[0][Q];
	INVALID("options", vkattn_call_create_forward(op, &args, &none));
	args.alibi.data = NULL, args.q.buffer = (vkattn_buffer)op;
	INVALID("buffer", vkattn_call_create_forward(op, &args, &none));
	args.q.buffer = NULL;

	/* What adds to gradients is left to Go: it would add twice if the second of its launches failed. */
	vkattn_call added;
	back.accumulate = 1;
	OK(vkattn_call_create_backward(op, &back, &added));
	back.accumulate = 0;
	for (int i = 0; i < 2; i++) {
		(void)fake_sum(&by_c);
		OK(vkattn_call_run(added, stream, data));
		(void)fake_sum(&by_c);
		REQUIRE(!by_c);
	}

	/* A launch that fails once is made again by Go; one that goes on failing is its error. */
	fake_fail("cuLaunchKernel", 1);
	REFUSED(VKATTN_ERROR_INVALID, "cuLaunchKernel", vkattn_call_run(calls[1], stream, data));
	fake_fail("", 0);
	same(1, sets[0], 1);

	/* The child of a fork. */
	int code;
	pid_t child = fork();
	if (!child)
		_exit(vkattn_call_run(calls[1], stream, data) != VKATTN_ERROR_PROCESS);
	REQUIRE(waitpid(child, &code, 0) == child && !code);

	/* Destroyed handles. A run without Go does not outlive its operation. */
	OK(vkattn_op_destroy(op));
	INVALID("the op was destroyed", vkattn_call_run(calls[1], stream, data));
	OK(vkattn_call_destroy(calls[1]));
	INVALID("the call was destroyed", vkattn_call_run(calls[1], stream, data));
	OK(vkattn_op_create(device, &config, &op));
	OK(vkattn_call_create_backward(op, &back, &calls[1]));
	OK(vkattn_call_run(calls[1], stream, data));
	vkattn_stream old = stream;
	OK(vkattn_stream_destroy(stream));
	INVALID("the stream was destroyed", vkattn_call_run(calls[1], old, data));
	OK(vkattn_stream_wrap_cuda(device, of_cuda, &stream));
	REQUIRE(repeated(1, sets[0], &by_c).status == VKATTN_OK && !by_c); /* it has no workspace yet */
	same(1, sets[0], 1);

	/* A stream of another device. */
	vkattn_cuda which = {.size = sizeof which, .device = "0"};
	vkattn_device other;
	vkattn_stream of_other;
	old = stream;
	OK(vkattn_device_open_cuda(&which, &other));
	OK(vkattn_stream_wrap_cuda(other, of_cuda, &of_other));
	OK(vkattn_call_create_forward(op, &args, &calls[0]));
	OK(vkattn_call_run(calls[0], stream, data));
	stream = of_other;
	same(0, sets[0], 0);
	stream = old;
	OK(vkattn_device_destroy(other));

	/* A lost device. */
	fake_die(700);
	REFUSED(VKATTN_ERROR_DEVICE_LOST, "CUDA_ERROR_ILLEGAL_ADDRESS", vkattn_call_run(calls[1], stream, data));
	fake_die(0);
	(void)vkattn_device_destroy(device);
	INVALID("the call was destroyed", vkattn_call_run(calls[1], stream, data));
}

/* On other devices a run is the ordinary call. */
static void on_the_cpu(void)
{
	enum { N = 2 * 20 * 32 };
	vkattn_device cpu;
	vkattn_call call;
	vkattn_device_options host = {.size = sizeof host, .cpu = 1};
	vkattn_config config = {.size = sizeof config, .head_dim = 32, .dtype = VKATTN_F32};
	OK(vkattn_device_open(&host, &cpu));
	OK(vkattn_op_create(cpu, &config, &op));
	vkattn_args a = {.size = sizeof a, .shape = {1, 2, 2, 20, 20}, .q = floats(N), .k = floats(N), .v = floats(N), .o = floats(N)};
	OK(vkattn_call_create_forward(op, &a, &call));
	vkattn_tensor got = floats(N);
	const void *data[] = {a.q.data, a.k.data, a.v.data, got.data, NULL};
	for (int i = 0; i < 2; i++) {
		OK(vkattn_op_forward(op, NULL, &a));
		memset(got.data, 0, got.bytes);
		OK(vkattn_call_run(call, NULL, data));
		REQUIRE(!memcmp(a.o.data, got.data, got.bytes));
	}
	OK(vkattn_device_destroy(cpu));
}

int main(int argc, char **argv)
{
	vkattn_cuda which = {.size = sizeof which, .device = "0"};
	REQUIRE(argc == 2);
	load(argv[1]);
	OK(vkattn_device_open_cuda(&which, &device));
	REQUIRE(!push((void *)4711) && !create(&of_cuda, 1));
	OK(vkattn_stream_wrap_cuda(device, of_cuda, &stream));
	for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
		problem_is_repeated(&problems[i]);
	handles();
	on_the_cpu();
	return 0;
}
