/* Appending to a KV cache in float32: in host memory, in buffers, and on a stream of CUDA against a formula, bit for bit, with
 * the memory around the rows; then wrong uses. The first argument names the device: "cpu", a Vulkan device, or the fake driver of
 * package cudapath, and then the second is a library that emulates its kernel. */
#define _GNU_SOURCE
#include "test.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>

enum { B = 3, HKV = 2, HQ = 4, NEW = 3, CAPACITY = 16, PAGE = 4, PAGES = 14, D = 12, DV = 8, DIM = 6, FIRST = 2, POSITIONS = 16, MOST = 8192 };

static vkattn_device device;
static vkattn_stream stream;
static void *of_cuda;
static int (*push)(void *), (*create)(void **, unsigned), (*wait_for)(void *), (*begin)(void *, int), (*end)(void *, void **),
	(*instantiate)(void **, void *, unsigned long long), (*replay)(void *, void *), (*allocate)(uint64_t *, size_t);
static void (*fake_backward)(int (*)(const char *, const void *, const uint32_t *, uint64_t));
static void *kernels;

static int emulated(const char *name, const void *params, const uint32_t *grid, uint64_t threads)
{
	static int (*emulate)(void *, const void *, const uint32_t *, uint32_t, int);
	*(void **)&emulate = dlsym(kernels, "emulate");
	REQUIRE(emulate && dlsym(kernels, name));
	return emulate(dlsym(kernels, name), params, grid, (uint32_t)threads, 0);
}

static void load(const char *path, const char *emulation)
{
	const struct {
		const char *name;
		void *to;
	} list[] = {{"cuCtxPushCurrent_v2", &push}, {"cuStreamCreate", &create}, {"cuStreamSynchronize", &wait_for},
		{"cuStreamBeginCapture_v2", &begin}, {"cuStreamEndCapture", &end}, {"cuGraphInstantiateWithFlags", &instantiate},
		{"cuGraphLaunch", &replay}, {"cuMemAlloc_v2", &allocate}, {"fake_backward", &fake_backward}};
	void *driver = dlopen(path, RTLD_NOW);
	REQUIRE(driver && (kernels = dlopen(emulation, RTLD_NOW)));
	for (size_t i = 0; i < sizeof list / sizeof *list; i++)
		REQUIRE(*(void **)list[i].to = dlsym(driver, list[i].name));
	fake_backward(emulated);
}

/* A call, and the memory of its tensors: the outputs come first. */
enum { KCACHE, VCACHE, QOUT, OUTPUTS, K = OUTPUTS, V, Q, USED, LENGTHS, TABLE, COS, SIN, TENSORS };

typedef struct problem {
	vkattn_append_config config;
	vkattn_append_args args;
	vkattn_pages pages;
	int paged, packed, counted, plain;
	float *memory[TENSORS];
} problem;

static const int32_t used[B] = {5, 0, 9}, starts[B + 1] = {0, 2, 2, 7}, counts[B] = {3, 0, 1};
static const int32_t pages[B * 4] = {3, 7, 99, -1, 5, -7, 0, 0, 1, 13, 2, 8}; /* those that are not in the pool have no rows */

static void make(problem *p, int paged, int lengths, int rotary)
{
	memset(p, 0, sizeof *p);
	p->paged = paged, p->packed = lengths == 1, p->counted = lengths == 2, p->plain = !rotary;
	p->config = (vkattn_append_config){.size = sizeof p->config, .dtype = VKATTN_F32, .head_dim = D, .head_dim_v = DV};
	for (int i = 0; i < TENSORS; i++)
		p->memory[i] = floats(MOST).data;
	memcpy(p->memory[USED], used, sizeof used);
	memcpy(p->memory[LENGTHS], p->packed ? starts : counts, p->packed ? sizeof starts : sizeof counts);
	memcpy(p->memory[TABLE], pages, sizeof pages);
	vkattn_append_args *a = &p->args;
	a->size = sizeof *a, a->b = B, a->hkv = HKV, a->new_rows = NEW, a->capacity = CAPACITY;
	if (p->packed)
		a->total_new = 7, a->new_rows = 0;
	if (paged)
		p->pages.size = sizeof p->pages, p->pages.stride = 4, p->pages.page_size = PAGE, p->pages.count = PAGES;
	if (rotary) {
		p->config.rotary = (vkattn_rotary){DIM, FIRST, rotary - 1};
		a->hq = HQ, a->positions = POSITIONS;
		if (!p->packed)
			a->rows_q = 5, a->q_at_used = rotary == 2;
	}
	/* Rows before heads, as PyTorch has them, and between the rows of the caches there is memory of others. */
	a->k_cache.stride_head = D + 1, a->k_cache.stride_row = HKV * (D + 1), a->k_cache.stride_batch = (paged ? PAGE : CAPACITY) * HKV * (D + 1);
}

/* Where the tensors of a call lie. */
static void place(problem *p, void *const *data, const vkattn_buffer *buffers)
{
	vkattn_append_args *a = &p->args;
	vkattn_tensor *t[] = {&a->k_cache, &a->v_cache, &a->q_out, &a->k, &a->v, &a->q};
	vkattn_vector *v[] = {&a->used, p->packed ? &a->cu_new : &a->used_new, &p->pages.table, &a->cos, &a->sin};
	for (int i = 0; i < TENSORS; i++) {
		const int left_out = p->plain && (i == QOUT || i == Q || i >= COS);
		if (left_out || (i == LENGTHS && !p->packed && !p->counted) || (i == TABLE && !p->paged))
			continue;
		vkattn_buffer *b = i < USED ? &t[i]->buffer : &v[i - USED]->buffer;
		void **d = i < USED ? &t[i]->data : &v[i - USED]->data;
		uint64_t *n = i < USED ? &t[i]->bytes : &v[i - USED]->bytes;
		*b = buffers ? buffers[i] : NULL, *d = buffers ? NULL : data[i], *n = buffers ? 0 : MOST * sizeof(float);
	}
	a->pages = p->paged ? &p->pages : NULL;
}

static void turn(const problem *p, const float *from, float *to, int dim, int64_t position, int rotated)
{
	memcpy(to, from, (size_t)dim * sizeof(float));
	for (int i = 0; rotated && i < DIM / 2; i++) {
		const int half = p->config.rotary.style == VKATTN_ROTARY_HALF_SPLIT;
		const int a = FIRST + (half ? i : 2 * i), b = half ? a + DIM / 2 : a + 1;
		const float c = p->memory[COS][position * DIM / 2 + i], s = p->memory[SIN][position * DIM / 2 + i];
		const float xc = from[a] * c, ys = from[b] * s, yc = from[b] * c, xs = from[a] * s;
		to[a] = xc - ys, to[b] = yc + xs;
	}
}

/* The outputs that the formula gives, in memory that was as p->memory. */
static void formula(const problem *p, float *want[OUTPUTS])
{
	for (int i = 0; i < OUTPUTS; i++) {
		want[i] = malloc(MOST * sizeof(float));
		memcpy(want[i], p->memory[i], MOST * sizeof(float));
	}
	const int64_t rows_k = p->packed ? 7 : NEW, rows_q = p->packed ? 7 : p->args.rows_q;
	for (int b = 0; b < B; b++) {
		const int64_t first = p->packed ? starts[b] : 0, n = p->packed ? starts[b + 1] - first : p->counted ? counts[b] : NEW;
		for (int64_t i = 0; i < n; i++)
			for (int h = 0; h < HKV; h++) {
				const int64_t at = used[b] + i, in = ((p->packed ? 0 : b) * HKV + h) * rows_k + first + i;
				const int64_t batch = p->paged ? pages[b * 4 + at / PAGE] : b, row = p->paged ? at % PAGE : at, held = p->paged ? PAGE : CAPACITY;
				turn(p, p->memory[K] + in * D, want[KCACHE] + batch * held * HKV * (D + 1) + row * HKV * (D + 1) + h * (D + 1), D, at, !p->plain);
				turn(p, p->memory[V] + in * DV, want[VCACHE] + ((batch * HKV + h) * held + row) * DV, DV, at, 0);
			}
		for (int64_t i = 0; !p->plain && i < (p->packed ? n : rows_q); i++)
			for (int h = 0; h < HQ; h++) {
				const int64_t in = (((p->packed ? 0 : b) * HQ + h) * rows_q + first + i) * D;
				turn(p, p->memory[Q] + in, want[QOUT] + in, D, used[b] + (p->args.q_at_used ? 0 : i), 1);
			}
	}
}

static void same(const char *face, float *const *want, void *const *got)
{
	for (int i = 0; i < OUTPUTS; i++)
		for (int j = 0; j < MOST; j++)
			if (memcmp(&want[i][j], (float *)got[i] + j, sizeof(float))) {
				fprintf(stderr, "%s: output %d is %g at %d, want %g\n", face, i, (double)((float *)got[i])[j], j, (double)want[i][j]);
				exit(1);
			}
}

static void copies(const problem *p, void **to)
{
	for (int i = 0; i < TENSORS; i++) {
		uint64_t at = 0;
		if (stream)
			REQUIRE(!allocate(&at, MOST * sizeof(float)));
		to[i] = stream ? (void *)(uintptr_t)at : malloc(MOST * sizeof(float));
		memcpy(to[i], p->memory[i], MOST * sizeof(float));
	}
}

static void all_faces(int paged, int lengths, int rotary)
{
	problem p;
	vkattn_append append;
	float *want[OUTPUTS];
	void *data[TENSORS];
	make(&p, paged, lengths, rotary);
	formula(&p, want);
	OK(vkattn_append_create(device, &p.config, &append));
	copies(&p, data);
	place(&p, data, NULL);
	OK(vkattn_append_forward(append, NULL, &p.args));
	same("host memory", want, data);

	vkattn_buffer buffers[TENSORS];
	for (int i = 0; i < TENSORS; i++) {
		OK(vkattn_buffer_create(device, MOST * sizeof(float), &buffers[i]));
		OK(vkattn_buffer_write(buffers[i], 0, p.memory[i], MOST * sizeof(float)));
	}
	place(&p, NULL, buffers);
	OK(vkattn_append_forward(append, NULL, &p.args));
	for (int i = 0; i < OUTPUTS; i++)
		OK(vkattn_buffer_read(buffers[i], 0, data[i], MOST * sizeof(float)));
	same("buffers", want, data);

	if (stream) { /* at once, and from a graph whose memory has other contents when it runs */
		void *graph, *runs;
		copies(&p, data);
		place(&p, data, NULL);
		OK(vkattn_append_forward(append, stream, &p.args));
		REQUIRE(!wait_for(of_cuda));
		same("a stream", want, data);
		REQUIRE(!begin(of_cuda, 0));
		OK(vkattn_append_forward(append, stream, &p.args));
		REQUIRE(!end(of_cuda, &graph) && !instantiate(&runs, graph, 0));
		for (int round = 0; round < 3; round++) {
			for (int i = K; i <= Q; i++)
				for (int j = 0; j < MOST; j++)
					p.memory[i][j] = number((uint32_t)(j + 77 * (round + i)));
			for (int i = 0; i < TENSORS; i++)
				memcpy(data[i], p.memory[i], MOST * sizeof(float));
			formula(&p, want);
			REQUIRE(!replay(runs, of_cuda) && !wait_for(of_cuda));
			same("a graph", want, data);
		}
	}
	OK(vkattn_append_destroy(append));
}

#define WRONG_CONFIG(words, change) \
	do { \
		vkattn_append_config c = {.size = sizeof c, .dtype = VKATTN_F32, .head_dim = D, .rotary = {DIM, 0, 0}}; \
		vkattn_append made = NULL; \
		change; \
		INVALID(words, vkattn_append_create(device, &c, &made)); \
		REQUIRE(!made); \
	} while (0)

#define WRONG(words, change) \
	do { \
		vkattn_append_args a = p.args; \
		change; \
		INVALID(words, vkattn_append_forward(append, NULL, &a)); \
	} while (0)

static void *use(void *argument)
{
	vkattn_append *shared = argument;
	void *data[TENSORS];
	problem p;
	make(&p, 0, 0, 1);
	for (int i = 0; i < TENSORS; i++)
		data[i] = p.memory[i];
	place(&p, data, NULL);
	for (int i = 0; i < 200; i++) {
		vkattn_status s = vkattn_append_forward(*shared, NULL, &p.args);
		REQUIRE(s == VKATTN_OK || s == VKATTN_ERROR_INVALID || s == VKATTN_ERROR_BUSY);
		if (i % 50 == 49) {
			s = vkattn_append_destroy(*shared);
			REQUIRE(s == VKATTN_OK || s == VKATTN_ERROR_INVALID || s == VKATTN_ERROR_BUSY);
		}
	}
	return NULL;
}

static void misuse(void)
{
	problem p;
	vkattn_append append, gone;
	void *data[TENSORS];
	make(&p, 1, 0, 1);
	for (int i = 0; i < TENSORS; i++)
		data[i] = p.memory[i];
	place(&p, data, NULL);
	OK(vkattn_append_create(device, &p.config, &append));
	OK(vkattn_append_forward(append, NULL, &p.args));

	INVALID("NULL", vkattn_append_create(NULL, &p.config, &gone));
	INVALID("config is NULL", vkattn_append_create(device, NULL, &gone));
	INVALID("append is NULL", vkattn_append_create(device, &p.config, NULL));
	INVALID("the append is NULL", vkattn_append_forward(NULL, NULL, &p.args));
	INVALID("args is NULL", vkattn_append_forward(append, NULL, NULL));
	OK(vkattn_append_destroy(NULL));
	INVALID("of kind device, want append", vkattn_append_forward((vkattn_append)device, NULL, &p.args));
	INVALID("of kind append, want op", vkattn_op_destroy((vkattn_op)append));
	INVALID("of kind device, want stream", vkattn_append_forward(append, (vkattn_stream)device, &p.args));
	INVALID("no handle", vkattn_append_destroy((vkattn_append)(uintptr_t)-1));
	OK(vkattn_append_create(device, &p.config, &gone));
	OK(vkattn_append_destroy(gone));
	INVALID("was destroyed", vkattn_append_destroy(gone));
	INVALID("was destroyed", vkattn_append_forward(gone, NULL, &p.args));

	const size_t sizes[] = {0, 4, sizeof(vkattn_append_args) - 1, sizeof(vkattn_append_args) + 8, SIZE_MAX};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		WRONG_CONFIG("size is", c.size = sizes[i]);
		WRONG("size is", a.size = sizes[i]);
		vkattn_pages other = {.size = sizes[i]};
		WRONG("pages->size", a.pages = &other);
	}
	const int32_t wrong[] = {-1, 99, 256, INT32_MAX, INT32_MIN};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		WRONG_CONFIG("dtype", c.dtype = wrong[i]);
		WRONG_CONFIG("key_type", c.key_type = wrong[i]);
		WRONG_CONFIG("value_type", c.value_type = wrong[i]);
		WRONG_CONFIG("access", c.access = wrong[i]);
		WRONG_CONFIG("check", c.check = wrong[i]);
		WRONG_CONFIG("cos_sin_of_dtype", c.cos_sin_of_dtype = wrong[i]);
		WRONG_CONFIG("rotary.style", c.rotary.style = wrong[i]);
		WRONG("q_at_used", a.q_at_used = wrong[i]);
		WRONG("shard", a.shard = wrong[i]);
	}
	WRONG_CONFIG("head_dim is 0", c.head_dim = 0);
	WRONG_CONFIG("head_dim_v", c.head_dim_v = -1);
	WRONG_CONFIG("kv_block", c.kv_block = 7);
	WRONG_CONFIG("rotary.dim is 3", c.rotary.dim = 3);
	WRONG_CONFIG("rotary.first is 13, want 0 to head_dim", c.rotary.first = 13);
	WRONG_CONFIG("without rotary", (c.rotary.dim = 0, c.cos_sin_of_dtype = 1));

	WRONG("b is -1", a.b = -1);
	WRONG("hkv is 0", a.hkv = 0);
	WRONG("a divisor of hq", a.hq = 3);
	WRONG("new_rows is 0", a.new_rows = 0);
	WRONG("new_rows", a.new_rows = INT64_MAX);
	WRONG("rows_q is -2", a.rows_q = -2);
	WRONG("positions is 0", a.positions = 0);
	WRONG("k is missing", (a.k.data = NULL, a.k.bytes = 0));
	WRONG("k_cache is missing", (a.k_cache.data = NULL, a.k_cache.bytes = 0));
	WRONG("v_cache", (a.v_cache.data = NULL, a.v_cache.bytes = 0));
	WRONG("q_out is missing", (a.q_out.data = NULL, a.q_out.bytes = 0));
	WRONG("cos is missing", (a.cos.data = NULL, a.cos.bytes = 0));
	WRONG("want at least", a.k.bytes = 8);
	WRONG("want at least", a.used.bytes = 8);
	WRONG("NULL, with", a.v.data = NULL);
	WRONG("which no memory has", a.sin.bytes = UINT64_MAX);
	WRONG("k.offset is -1", a.k.offset = -1);
	WRONG("k_cache.stride_head", a.k_cache.stride_head = -1);
	WRONG("rows that do not overlap", a.k_cache.stride_row = a.k_cache.stride_head = a.k_cache.stride_batch = 1);
	WRONG("overlapping k_cache", (a.v_cache.data = a.k_cache.data));
	WRONG("overlapping q", (a.q_out.data = (char *)a.q.data + 4, a.q_out.bytes -= 4));
	WRONG("none for a cache whose types have no scales", (a.k_scale.data = a.k.data, a.k_scale.bytes = 4096));
	WRONG("in both", a.k.buffer = (vkattn_buffer)device);
	((int32_t *)p.memory[USED])[1] = 15;
	WRONG("used[1] is 15, want at least 0, and room for 3 new rows in 16 positions", (void)a);
	((int32_t *)p.memory[USED])[1] = 0;
	((int32_t *)p.memory[TABLE])[1] = PAGES;
	WRONG("pages.table[1] is 14, want 0 to 13", (void)a);
	((int32_t *)p.memory[TABLE])[1] = 7;
	vkattn_append_args none = p.args; /* no sequences: nothing to do */
	none.b = 0;
	OK(vkattn_append_forward(append, NULL, &none));

	/* Memory of another device, or of both sides. */
	vkattn_device_options options = {.size = sizeof options, .cpu = 1};
	vkattn_device cpu;
	vkattn_buffer theirs;
	OK(vkattn_device_open(&options, &cpu));
	OK(vkattn_buffer_create(cpu, MOST * sizeof(float), &theirs));
	WRONG("another device", (a.k.buffer = theirs, a.k.data = NULL, a.k.bytes = 0));
	OK(vkattn_append_create(cpu, &p.config, &gone));
	OK(vkattn_device_destroy(cpu));
	INVALID("was destroyed", vkattn_append_forward(gone, NULL, &p.args));

	pthread_t list[4];
	OK(vkattn_append_create(device, &p.config, &gone));
	for (int i = 0; i < 4; i++)
		REQUIRE(!pthread_create(&list[i], NULL, use, &gone));
	for (int i = 0; i < 4; i++)
		REQUIRE(!pthread_join(list[i], NULL));

	if (stream) {
		p.config.key_type = p.config.value_type = VKATTN_KV_INT8;
		REFUSED(VKATTN_ERROR_UNSUPPORTED, "not of int8", vkattn_append_create(device, &p.config, &gone));
		vkattn_stream old = stream;
		OK(vkattn_stream_destroy(stream));
		INVALID("the stream was destroyed", vkattn_append_forward(append, old, &p.args));
	}
}

int main(int argc, char **argv)
{
	REQUIRE(argc > 1);
	if (argc > 2) {
		vkattn_cuda which = {.size = sizeof which, .device = "0"};
		load(argv[1], argv[2]);
		OK(vkattn_device_open_cuda(&which, &device));
		REQUIRE(!push((void *)4711) && !create(&of_cuda, 1));
		OK(vkattn_stream_wrap_cuda(device, of_cuda, &stream));
	} else {
		vkattn_device_options options = {.size = sizeof options, .pipeline_cache = "off"};
		options.cpu = !strcmp(argv[1], "cpu");
		options.device = options.cpu ? NULL : argv[1];
		OK(vkattn_device_open(&options, &device));
	}
	for (int i = 0; i < 18; i++)
		all_faces(i % 2, i / 2 % 3, i / 6);
	misuse();
	OK(vkattn_device_wait(device, UINT64_MAX));
	OK(vkattn_device_destroy(device));
	return 0;
}
