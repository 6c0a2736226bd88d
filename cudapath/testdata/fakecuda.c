/* A CUDA driver without a GPU, for the tests of package cudapath: it has what
 * driver.h asks for, keeps the rules that the real one has, and works on memory of
 * the process. A stream is a thread with a list. Timelines are the test's, by a
 * callback. A kernel reads a word of Q, adds one, and writes it to O, unless a callback
 * of the test computes it, or FAKECUDA_ATTENTION is set: then forward kernels of float32 attend.
 *
 * While a stream is being captured its work goes into a graph. A call that allocates, frees,
 * waits or asks then fails, and so does the capture: the real driver allows some of them. */
#define _GNU_SOURCE
#include "driver.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CONTEXT = 4711, MAX_SHARED = 227 * 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int retained, live, dead;
static char failing[64];
static int failing_code;
static char held[64];
static int inside;
static char launches[1 << 16];
static uint64_t sum; /* of the launches and their arguments */
static int direct; /* launches by C: their arguments lie on the stack of a thread, which Go's never do */
static int (*timeline)(int signal, uint64_t fd, uint64_t value);
static int (*forward)(const char *name, const void *params);
static int (*backward)(const char *name, const void *params, const uint32_t *grid, uint64_t threads);
static uint8_t uuid[16];
static int compute = 90, version = 13000;
static _Thread_local int current;

/* ---- what the test asks for ---- */

void fake_device(const uint8_t *id, int compute_capability, int driver)
{
	memcpy(uuid, id, 16);
	compute = compute_capability;
	version = driver;
}

void fake_forward(int (*f)(const char *, const void *)) { forward = f; }

void fake_backward(int (*f)(const char *, const void *, const uint32_t *, uint64_t)) { backward = f; }

void fake_timeline(int (*f)(int, uint64_t, uint64_t)) { timeline = f; }

/* The next calls of a function return code; 0 ends that. */
void fake_fail(const char *name, int code)
{
	snprintf(failing, sizeof failing, "%s", name);
	failing_code = code;
}

/* The next calls of a function wait; "" lets them go. */
void fake_hold(const char *name)
{
	pthread_mutex_lock(&lock);
	snprintf(held, sizeof held, "%s", name);
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* Returns when a call waits. */
void fake_await(void)
{
	pthread_mutex_lock(&lock);
	while (!inside)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

/* From here on the device is lost; 0 brings it back. */
void fake_die(int code)
{
	pthread_mutex_lock(&lock);
	dead = code;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* Contexts, streams, events, modules, memory and imports that are not given back. */
int fake_live(void) { return live + retained; }

/* A line a launch, since the last time. The caller has it until the next one. */
const char *fake_launches(void)
{
	static char copy[sizeof launches];
	pthread_mutex_lock(&lock);
	strcpy(copy, launches);
	launches[0] = 0;
	pthread_mutex_unlock(&lock);
	return copy;
}

/* A sum of the launches since the last time, with all of their arguments, and how many C made. */
uint64_t fake_sum(int *by_c)
{
	pthread_mutex_lock(&lock);
	uint64_t was = sum;
	*by_c = direct;
	sum = 0, direct = 0;
	pthread_mutex_unlock(&lock);
	return was;
}

static uint64_t add(uint64_t to, const void *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to = (to ^ ((const unsigned char *)p)[i]) * 0x100000001b3u;
	return to;
}

/* ---- the driver ---- */

static int refuse(const char *name)
{
	pthread_mutex_lock(&lock);
	if (!strcmp(name, held)) {
		inside++;
		pthread_cond_broadcast(&changed);
		while (!strcmp(name, held))
			pthread_cond_wait(&changed, &lock);
		inside--;
	}
	pthread_mutex_unlock(&lock);
	return dead ? dead : !strcmp(name, failing) ? failing_code : 0;
}

#define CHECK(name) \
	do { \
		int code_ = refuse(name); \
		if (code_) \
			return code_; \
	} while (0)
#define IN_CONTEXT(name) \
	do { \
		CHECK(name); \
		if (!current) \
			return INVALID_CONTEXT; \
	} while (0)

int cuInit(unsigned int flags)
{
	CHECK("cuInit");
	return flags;
}

int cuDriverGetVersion(int *v)
{
	*v = version;
	return 0;
}

int cuGetErrorName(int code, const char **name)
{
	switch (code) {
	case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return 0;
	case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
	case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; return 0;
	case INVALID_PTX: *name = "CUDA_ERROR_INVALID_PTX"; return 0;
	case CAPTURE_UNSUPPORTED: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; return 0;
	case CAPTURE_INVALIDATED: *name = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"; return 0;
	case 700: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return 0;
	}
	return INVALID_VALUE;
}

int cuDeviceGetCount(int *n)
{
	CHECK("cuDeviceGetCount");
	*n = 1;
	return 0;
}

int cuDeviceGet(int *d, int ordinal)
{
	*d = ordinal;
	return 0;
}

int cuDeviceGetUuid(CUuuid *u, int d)
{
	memcpy(u->bytes, uuid, 16);
	return d;
}

int cuDeviceGetName(char *name, int n, int d)
{
	snprintf(name, (size_t)n, "fake");
	return d;
}

int cuDeviceGetAttribute(int *v, int attribute, int d)
{
	switch (attribute) {
	case CU_MAX_THREADS_PER_BLOCK: *v = 1024; break;
	case CU_MULTIPROCESSOR_COUNT: *v = 10; break;
	case CU_COMPUTE_CAPABILITY_MAJOR: *v = compute / 10; break;
	case CU_COMPUTE_CAPABILITY_MINOR: *v = compute % 10; break;
	case CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *v = MAX_SHARED; break;
	default: *v = 1;
	}
	return d;
}

int cuDeviceTotalMem_v2(size_t *n, int d)
{
	*n = (size_t)1 << 32;
	return d;
}

int cuDevicePrimaryCtxRetain(cua_handle *c, int d)
{
	CHECK("cuDevicePrimaryCtxRetain");
	*c = CONTEXT;
	__atomic_add_fetch(&retained, 1, __ATOMIC_SEQ_CST);
	return d;
}

int cuDevicePrimaryCtxRelease_v2(int d)
{
	__atomic_sub_fetch(&retained, 1, __ATOMIC_SEQ_CST);
	return d;
}

int cuCtxPushCurrent_v2(cua_handle c)
{
	CHECK("cuCtxPushCurrent");
	if (c != CONTEXT || !retained)
		return INVALID_CONTEXT;
	current++;
	return 0;
}

int cuCtxPopCurrent_v2(cua_handle *c)
{
	if (!current)
		return INVALID_CONTEXT;
	*c = CONTEXT;
	current--;
	return 0;
}

int cuCtxGetDevice(int *d)
{
	IN_CONTEXT("cuCtxGetDevice");
	*d = 0;
	return 0;
}

struct params {
	struct {
		uint64_t base;
		int64_t batch, head, row;
	} q, k, v, o;
	uint64_t lse;
	int32_t b, hq, hkv, sq, sk, d, dv, causal_offset;
	float scale, scale_log2, unit_high, unit_low;
};

/* A function is its name. */
static char names[64][64];
static int shared_of[64];

enum kind { WAIT, SIGNAL, FILL, COPY, LAUNCH };

struct op {
	struct op *next;
	enum kind kind;
	uint64_t to, from, n;
	void *data; /* of a copy from the host; the op's */
	struct params p;
	uint8_t options[224 + 40]; /* behind it, of a kernel for calls with options, and of one of latent attention */
	int function; /* of a launch */
	/* of a backward kernel, which the test's callback runs */
	const char *backward;
	uint8_t backward_params[384];
	uint32_t grid[3], threads;
};

struct graph {
	struct op *first, *last;
};

struct stream {
	struct stream *next; /* in streams */
	pthread_t thread;
	struct op *first, *last;
	int busy, end;
	struct graph *captured; /* NULL: the stream is not being captured */
	int invalid; /* the capture */
};

static int captures; /* streams that are being captured */
static struct stream *streams; /* also those that are destroyed and have work */

/* Where a stream is in the list. The lock is held. */
static struct stream **place(const struct stream *s)
{
	struct stream **at = &streams;
	while (*at && *at != s)
		at = &(*at)->next;
	return at;
}

/* Whether a stream exists and is not destroyed. The lock is held. */
static int find(const struct stream *s)
{
	struct stream *found = *place(s);
	return found && !found->end;
}

/* O and LSE of a forward kernel of float32. */
static void attend(const struct params *p)
{
	for (int64_t b = 0; b < p->b; b++)
		for (int64_t h = 0; h < p->hq; h++)
			for (int64_t r = 0; r < p->sq; r++) {
				int64_t g = h / (p->hq / p->hkv), keys = r + 1 + p->causal_offset;
				float *o = (float *)p->o.base + b * p->o.batch + h * p->o.head + r * p->o.row;
				const float *q = (float *)p->q.base + b * p->q.batch + h * p->q.head + r * p->q.row;
				double sum = 0, sums[256] = {0};
				for (int64_t c = 0; c < p->sk && c < keys; c++) {
					const float *k = (float *)p->k.base + b * p->k.batch + g * p->k.head + c * p->k.row;
					const float *v = (float *)p->v.base + b * p->v.batch + g * p->v.head + c * p->v.row;
					double s = 0;
					for (int i = 0; i < p->d; i++)
						s += (double)q[i] * k[i];
					s = exp(s * p->scale);
					sum += s;
					for (int i = 0; i < p->dv; i++)
						sums[i] += s * v[i];
				}
				for (int i = 0; i < p->dv; i++)
					o[i] = (float)(sum ? sums[i] / sum : 0);
				if (p->lse)
					((float *)p->lse)[(b * p->hq + h) * p->sq + r] = (float)log(sum);
			}
}

static void perform(struct op *o)
{
	switch (o->kind) {
	case WAIT:
	case SIGNAL:
		if (timeline)
			timeline(o->kind == SIGNAL, o->to, o->n);
		break;
	case FILL:
		for (uint64_t i = 0; i < o->n; i++)
			((uint32_t *)o->to)[i] = (uint32_t)o->from;
		break;
	case COPY: memcpy((void *)o->to, o->data ? o->data : (void *)o->from, o->n); break;
	case LAUNCH:
		if (o->backward) {
			usleep(1000);
			if (backward)
				backward(o->backward, o->backward_params, o->grid, o->threads);
			break;
		}
		if (forward) {
			forward(names[o->function], &o->p);
			break;
		}
		if (getenv("FAKECUDA_ATTENTION") && strstr(names[o->function], "_f32")) {
			attend(&o->p);
			break;
		}
		/* Early to read and late to write, so that who does not wait is seen. */
		o->from = *(uint32_t *)o->p.q.base;
		usleep(1000);
		*(uint32_t *)o->p.o.base = (uint32_t)o->from + 1;
		if (o->p.lse)
			*(float *)o->p.lse = 1.5f;
		break;
	}
	free(o->data);
	free(o);
}

static void *work(void *arg)
{
	struct stream *s = arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (!s->end && (dead || !s->first))
			pthread_cond_wait(&changed, &lock);
		if (!s->first || dead)
			break;
		struct op *o = s->first;
		s->first = o->next;
		if (!s->first)
			s->last = NULL;
		s->busy = 1;
		pthread_mutex_unlock(&lock);
		perform(o);
		pthread_mutex_lock(&lock);
		s->busy = 0;
		pthread_cond_broadcast(&changed);
	}
	*place(s) = s->next;
	pthread_mutex_unlock(&lock);
	free(s);
	return NULL;
}

static void give(cua_handle stream, struct op o)
{
	struct stream *s = (struct stream *)stream;
	struct op *copy = malloc(sizeof o);
	*copy = o;
	copy->next = NULL;
	pthread_mutex_lock(&lock);
	if (s->captured) {
		if (s->captured->last)
			s->captured->last->next = copy;
		else
			s->captured->first = copy;
		s->captured->last = copy;
		pthread_mutex_unlock(&lock);
		return;
	}
	if (s->last)
		s->last->next = copy;
	else
		s->first = copy;
	s->last = copy;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* Ends all captures with an error if there are any. */
static int captured(void)
{
	pthread_mutex_lock(&lock);
	int any = captures;
	for (struct stream *s = streams; s; s = s->next)
		s->invalid |= s->captured != NULL;
	pthread_mutex_unlock(&lock);
	return any ? CAPTURE_UNSUPPORTED : 0;
}

#define NOT_CAPTURED() \
	do { \
		int code_ = captured(); \
		if (code_) \
			return code_; \
	} while (0)

int cuStreamBeginCapture_v2(cua_handle h, int mode)
{
	struct stream *s = (struct stream *)h;
	pthread_mutex_lock(&lock);
	int r = !find(s) || s->captured || mode ? INVALID_VALUE : 0;
	if (!r) {
		s->captured = calloc(1, sizeof *s->captured);
		s->invalid = 0;
		captures++;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

int cuStreamEndCapture(cua_handle h, cua_handle *graph)
{
	struct stream *s = (struct stream *)h;
	pthread_mutex_lock(&lock);
	int r = !s->captured ? INVALID_VALUE : s->invalid ? CAPTURE_INVALIDATED : 0;
	*graph = r ? 0 : (cua_handle)s->captured;
	captures -= s->captured != NULL;
	s->captured = NULL;
	pthread_mutex_unlock(&lock);
	return r;
}

int cuGraphInstantiateWithFlags(cua_handle *e, cua_handle graph, unsigned long long flags)
{
	*e = graph;
	return flags ? INVALID_VALUE : 0;
}

int cuGraphLaunch(cua_handle e, cua_handle stream)
{
	for (struct op *o = ((struct graph *)e)->first; o; o = o->next)
		give(stream, *o);
	return 0;
}

int cuGraphExecDestroy(cua_handle e) { return e ? 0 : INVALID_VALUE; }

int cuGraphDestroy(cua_handle graph)
{
	struct graph *g = (struct graph *)graph;
	while (g->first) {
		struct op *o = g->first;
		g->first = o->next;
		free(o);
	}
	free(g);
	return 0;
}

int cuStreamIsCapturing(cua_handle h, int *capturing)
{
	IN_CONTEXT("cuStreamIsCapturing");
	struct stream *s = (struct stream *)h;
	pthread_mutex_lock(&lock);
	*capturing = h && find(s) && s->captured;
	pthread_mutex_unlock(&lock);
	return 0;
}

int cuStreamGetCtx(cua_handle h, cua_handle *context)
{
	IN_CONTEXT("cuStreamGetCtx");
	pthread_mutex_lock(&lock);
	int known = !h || find((struct stream *)h);
	pthread_mutex_unlock(&lock);
	*context = CONTEXT;
	return known ? 0 : INVALID_HANDLE;
}

int cuStreamCreate(cua_handle *s, unsigned int flags)
{
	IN_CONTEXT("cuStreamCreate");
	if (flags != CU_STREAM_NON_BLOCKING)
		return INVALID_VALUE;
	struct stream *new = calloc(1, sizeof *new);
	pthread_mutex_lock(&lock);
	new->next = streams;
	streams = new;
	pthread_mutex_unlock(&lock);
	pthread_create(&new->thread, NULL, work, new);
	pthread_detach(new->thread);
	*s = (cua_handle)new;
	__atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
	return 0;
}

int cuStreamDestroy_v2(cua_handle h)
{
	struct stream *s = (struct stream *)h;
	if (!current)
		return INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	if (!find(s)) {
		pthread_mutex_unlock(&lock);
		return INVALID_HANDLE;
	}
	s->end = 1;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	__atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
	return 0;
}

int cuStreamSynchronize(cua_handle h)
{
	IN_CONTEXT("cuStreamSynchronize");
	struct stream *s = (struct stream *)h;
	NOT_CAPTURED();
	pthread_mutex_lock(&lock);
	while (!dead && (s->first || s->busy))
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return dead;
}

int cuStreamQuery(cua_handle h)
{
	IN_CONTEXT("cuStreamQuery");
	struct stream *s = (struct stream *)h;
	if (s && s->captured)
		NOT_CAPTURED();
	pthread_mutex_lock(&lock);
	int r = !find(s) ? INVALID_HANDLE : s->first || s->busy ? CUDA_ERROR_NOT_READY : 0;
	pthread_mutex_unlock(&lock);
	return r;
}

int cuCtxSynchronize(void)
{
	IN_CONTEXT("cuCtxSynchronize");
	NOT_CAPTURED();
	pthread_mutex_lock(&lock);
	for (struct stream *s = streams; s && !dead;) {
		if (s->first || s->busy) {
			pthread_cond_wait(&changed, &lock);
			s = streams; /* the list may have changed */
		} else
			s = s->next;
	}
	pthread_mutex_unlock(&lock);
	return dead;
}

static int make(cua_handle *h)
{
	*h = (cua_handle)calloc(1, 64);
	__atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
	return 0;
}

static int unmake(cua_handle h)
{
	free((void *)h);
	__atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
	return 0;
}

int cuEventCreate(cua_handle *e, unsigned int flags)
{
	IN_CONTEXT("cuEventCreate");
	return flags ? INVALID_VALUE : make(e);
}

int cuEventDestroy_v2(cua_handle e) { return unmake(e); }

int cuEventRecord(cua_handle e, cua_handle s)
{
	IN_CONTEXT("cuEventRecord");
	return e && s ? 0 : INVALID_VALUE;
}

int cuEventElapsedTime(float *ms, cua_handle from, cua_handle to)
{
	IN_CONTEXT("cuEventElapsedTime");
	*ms = 1.5f;
	return from && to ? 0 : INVALID_VALUE;
}

int cuModuleLoadDataEx(cua_handle *m, const void *image, unsigned int n, int *options, void **values)
{
	IN_CONTEXT("cuModuleLoadDataEx");
	NOT_CAPTURED();
	if (n != 2 || options[0] != CU_JIT_ERROR_LOG_BUFFER || options[1] != CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
		return INVALID_VALUE;
	if (!strncmp(image, "broken", 6)) {
		snprintf(values[0], (size_t)values[1], "line 1: no such\n  instruction");
		return INVALID_PTX;
	}
	return make(m);
}

int cuModuleUnload(cua_handle m)
{
	IN_CONTEXT("cuModuleUnload");
	return unmake(m);
}

int cuModuleGetFunction(cua_handle *f, cua_handle m, const char *name)
{
	IN_CONTEXT("cuModuleGetFunction");
	for (int i = 0; i < 64; i++)
		if (!names[i][0] || !strcmp(names[i], name)) {
			snprintf(names[i], sizeof names[i], "%s", name);
			*f = (cua_handle)i + 1;
			return m ? 0 : INVALID_VALUE;
		}
	return NOT_FOUND;
}

int cuFuncSetAttribute(cua_handle f, int attribute, int value)
{
	IN_CONTEXT("cuFuncSetAttribute");
	if (attribute != CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES || value > MAX_SHARED)
		return INVALID_VALUE;
	shared_of[f - 1] = value;
	return 0;
}

int cuFuncGetAttribute(int *value, int attribute, cua_handle f)
{
	IN_CONTEXT("cuFuncGetAttribute");
	*value = 0;
	return attribute == CU_FUNC_SHARED_SIZE_BYTES && f ? 0 : INVALID_VALUE;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, cua_handle f, int threads, size_t shared)
{
	IN_CONTEXT("cuOccupancy");
	*n = 2;
	return f && threads > 0 && shared <= MAX_SHARED ? 0 : INVALID_VALUE;
}

int cuTensorMapEncodeTiled(CUtensorMap *m, int type, uint32_t rank, void *base, const uint64_t *dims, const uint64_t *strides,
	const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill)
{
	CHECK("cuTensorMapEncodeTiled");
	int elements = type == 7 ? 4 : 2;
	if (((uintptr_t)m & 63) || rank != 4 || ((uintptr_t)base & 15) || interleave || fill || promotion > 3)
		return INVALID_VALUE;
	for (int i = 0; i < 4; i++)
		if (!dims[i] || !box[i] || box[i] > 256 || steps[i] != 1 || (i && ((strides[i - 1] & 15) || strides[i - 1] >= 1ull << 40)))
			return INVALID_VALUE;
	if (swizzle == 3 && box[0] * elements > 128)
		return INVALID_VALUE;
	m->opaque[0] = 0xfeed;
	const uint64_t words[] = {(uint64_t)base, (uint64_t)type, (uint64_t)swizzle, (uint64_t)promotion};
	m->opaque[1] = add(add(add(add(0, words, sizeof words), dims, 4 * sizeof *dims), strides, 3 * sizeof *strides), box, 4 * sizeof *box);
	return 0;
}

/* Tensor maps that precede the parameters of a kernel. */
static int maps_of(const char *name)
{
	if (!strstr(name, "fa3"))
		return 0;
	if (strstr(name, "_latent"))
		return !strstr(name, "_combine") && !strstr(name, "_tokens") && !strstr(name, "_offsets") && !strstr(name, "_fp8_ds_mla"); /* K */
	if (!strstr(name, "_backward_"))
		return 3;
	if (strstr(name, "_dq_"))
		return strstr(name, "_d192") || strstr(name, "_d256"); /* K, to multiply with dS */
	return strstr(name, "_main_") ? 4 : 0;
}

static int launch(cua_handle f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
	unsigned int bz, unsigned int shared, cua_handle stream, void **arguments, void **extra, const char *how)
{
	if (!f || !gx || !gy || !gz || gy > 65535 || gz > 65535 || by != 1 || bz != 1 || extra || (int)shared > shared_of[f - 1])
		return INVALID_VALUE;
	int maps = maps_of(names[f - 1]);
	for (int i = 0; i < maps; i++)
		if (((CUtensorMap *)arguments[i])->opaque[0] != 0xfeed)
			return INVALID_VALUE;
	const char *name = names[f - 1];
	const int threads = strstr(name, "_backward_") || strstr(name, "_append_"); /* of the test run it */
	size_t bytes = strstr(name, "_append_") ? 384 : threads ? 376 : sizeof(struct params);
	if (strstr(name, "_general"))
		bytes += 224;
	else if (strstr(name, "_latent"))
		bytes += sizeof ((struct op *)0)->options;
	else if (strstr(name, "_decode_"))
		bytes = 360;
	const intptr_t distance = (intptr_t)arguments - (intptr_t)&maps;
	const uint64_t words[] = {f, gx, gy, gz, bx, shared, stream};
	pthread_mutex_lock(&lock);
	direct += distance > -(1 << 16) && distance < 1 << 16;
	sum = add(add(add(sum, words, sizeof words), how, strlen(how)), arguments[maps], bytes);
	for (int i = 0; i < maps; i++)
		sum = add(sum, &((CUtensorMap *)arguments[i])->opaque[1], 8);
	pthread_mutex_unlock(&lock);
	struct op o = {.kind = LAUNCH, .function = (int)f - 1};
	if (threads) {
		o.backward = names[f - 1];
		memcpy(o.backward_params, arguments[maps], bytes);
		o.grid[0] = gx, o.grid[1] = gy, o.grid[2] = gz, o.threads = bx;
		pthread_mutex_lock(&lock);
		size_t n = strlen(launches);
		int first; /* of AttnBackwardParams, behind 8 tensors and 7 addresses */
		memcpy(&first, (char *)arguments[maps] + 8 * 32 + 7 * 8, sizeof first);
		snprintf(launches + n, sizeof launches - n, "%s grid %u,%u,%u threads %u shared %u first %d%s\n", names[f - 1], gx, gy, gz, bx, shared, first, how);
		pthread_mutex_unlock(&lock);
		give(stream, o);
		return 0;
	}
	memcpy(&o.p, arguments[maps], bytes);
	pthread_mutex_lock(&lock);
	size_t n = strlen(launches);
	snprintf(launches + n, sizeof launches - n, "%s grid %u,%u,%u threads %u shared %u b%d hq%d hkv%d sq%d sk%d d%d dv%d off%d\n", names[f - 1],
		gx, gy, gz, bx, shared, o.p.b, o.p.hq, o.p.hkv, o.p.sq, o.p.sk, o.p.d, o.p.dv, o.p.causal_offset);
	pthread_mutex_unlock(&lock);
	give(stream, o);
	return 0;
}

int cuLaunchKernel(cua_handle f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
	unsigned int bz, unsigned int shared, cua_handle stream, void **arguments, void **extra)
{
	IN_CONTEXT("cuLaunchKernel");
	return launch(f, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra, "");
}

int cuLaunchKernelEx(const CUlaunchConfig *c, cua_handle f, void **arguments, void **extra)
{
	IN_CONTEXT("cuLaunchKernelEx");
	if (c->count != 1 || c->attributes->id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION || c->attributes->value.allowed != 1)
		return INVALID_VALUE;
	return launch(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream, arguments, extra, " early");
}

/* Memory is a file in memory. */
struct memory {
	int fd;
	uint64_t bytes;
};

int cuMemGetAllocationGranularity(size_t *n, const CUmemAllocationProp *p, int which)
{
	IN_CONTEXT("cuMemGetAllocationGranularity");
	*n = 2 << 20;
	return p->type == CU_MEM_ALLOCATION_PINNED && p->handles == CU_MEM_HANDLE_POSIX_FD && p->location.type == CU_MEM_LOCATION_DEVICE &&
			which == CU_MEM_GRANULARITY_RECOMMENDED ?
		0 : INVALID_VALUE;
}

int cuMemCreate(cua_handle *h, size_t n, const CUmemAllocationProp *p, unsigned long long flags)
{
	IN_CONTEXT("cuMemCreate");
	NOT_CAPTURED();
	if (n % (2 << 20) || p->handles != CU_MEM_HANDLE_POSIX_FD || flags)
		return INVALID_VALUE;
	make(h);
	struct memory *m = (struct memory *)*h;
	m->fd = memfd_create("fakecuda", MFD_CLOEXEC);
	m->bytes = n;
	return ftruncate(m->fd, (off_t)n) ? OUT_OF_MEMORY : 0;
}

int cuMemRelease(cua_handle h)
{
	close(((struct memory *)h)->fd);
	return unmake(h);
}

int cuMemAddressReserve(uint64_t *at, size_t n, size_t align, uint64_t hint, unsigned long long flags)
{
	IN_CONTEXT("cuMemAddressReserve");
	*at = (uint64_t)mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	__atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
	return align || hint || flags ? INVALID_VALUE : 0;
}

int cuMemAddressFree(uint64_t at, size_t n)
{
	__atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
	return munmap((void *)at, n) ? INVALID_VALUE : 0;
}

int cuMemMap(uint64_t at, size_t n, size_t offset, cua_handle h, unsigned long long flags)
{
	IN_CONTEXT("cuMemMap");
	struct memory *m = (struct memory *)h;
	return n != m->bytes || offset || flags ||
			mmap((void *)at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, m->fd, 0) == MAP_FAILED ?
		INVALID_VALUE : 0;
}

int cuMemUnmap(uint64_t at, size_t n)
{
	return mmap((void *)at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ? INVALID_VALUE : 0;
}

int cuMemSetAccess(uint64_t at, size_t n, const CUmemAccessDesc *d, size_t count)
{
	IN_CONTEXT("cuMemSetAccess");
	return at && n && count == 1 && d->flags == CU_MEM_ACCESS_READWRITE ? 0 : INVALID_VALUE;
}

int cuMemExportToShareableHandle(void *fd, cua_handle h, int type, unsigned long long flags)
{
	IN_CONTEXT("cuMemExportToShareableHandle");
	*(int *)fd = dup(((struct memory *)h)->fd);
	return type == CU_MEM_HANDLE_POSIX_FD && !flags ? 0 : INVALID_VALUE;
}

int cuImportExternalMemory(cua_handle *h, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *d)
{
	IN_CONTEXT("cuImportExternalMemory");
	if (d->type != CU_EXTERNAL_MEMORY_OPAQUE_FD || !d->size)
		return INVALID_VALUE;
	make(h);
	*(struct memory *)*h = (struct memory){d->handle.fd, d->size};
	return 0;
}

int cuExternalMemoryGetMappedBuffer(uint64_t *at, cua_handle h, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *d)
{
	IN_CONTEXT("cuExternalMemoryGetMappedBuffer");
	struct memory *m = (struct memory *)h;
	/* lavapipe's files begin with their size and where the memory begins in them. */
	uint64_t header[2] = {0, 0};
	struct stat file;
	if (fstat(m->fd, &file) || pread(m->fd, header, sizeof header, 0) != sizeof header || header[0] != (uint64_t)file.st_size)
		return INVALID_VALUE;
	void *p = mmap(NULL, d->size, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, (off_t)header[1]);
	if (p == MAP_FAILED || d->offset || d->size != m->bytes)
		return INVALID_VALUE;
	*at = (uint64_t)p;
	return 0;
}

/* Ordinary memory, in a list. */
struct block {
	struct block *next;
	void *memory;
};

static struct block *blocks;

int cuMemAlloc_v2(uint64_t *at, size_t n)
{
	IN_CONTEXT("cuMemAlloc");
	NOT_CAPTURED();
	struct block *b = calloc(1, sizeof *b);
	if (!n || n > (size_t)1 << 30 || posix_memalign(&b->memory, 256, (n + 255) / 256 * 256)) {
		free(b);
		return OUT_OF_MEMORY;
	}
	memset(b->memory, 0xff, n);
	*at = (uint64_t)b->memory;
	pthread_mutex_lock(&lock);
	b->next = blocks;
	blocks = b;
	live++;
	pthread_mutex_unlock(&lock);
	return 0;
}

/* Of imports the mapping stays for who is late. */
int cuMemFree_v2(uint64_t at)
{
	NOT_CAPTURED();
	pthread_mutex_lock(&lock);
	for (struct block **b = &blocks; *b; b = &(*b)->next)
		if ((uint64_t)(*b)->memory == at) {
			struct block *gone = *b;
			*b = gone->next;
			live--;
			free(gone->memory);
			free(gone);
			break;
		}
	pthread_mutex_unlock(&lock);
	return at ? 0 : INVALID_VALUE;
}

int cuDestroyExternalMemory(cua_handle h)
{
	close(((struct memory *)h)->fd);
	return unmake(h);
}

int cuImportExternalSemaphore(cua_handle *h, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *d)
{
	IN_CONTEXT("cuImportExternalSemaphore");
	if (d->type != CU_EXTERNAL_SEMAPHORE_TIMELINE_FD)
		return INVALID_VALUE;
	make(h);
	*(int *)*h = d->handle.fd;
	return 0;
}

int cuDestroyExternalSemaphore(cua_handle h)
{
	close(*(int *)h);
	return unmake(h);
}

int cuSignalExternalSemaphoresAsync(const cua_handle *h, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *p, unsigned int n, cua_handle s)
{
	IN_CONTEXT("cuSignalExternalSemaphoresAsync");
	if (n != 1)
		return INVALID_VALUE;
	give(s, (struct op){.kind = SIGNAL, .to = (uint64_t) * (int *)h[0], .n = p->params.value});
	return 0;
}

int cuWaitExternalSemaphoresAsync(const cua_handle *h, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *p, unsigned int n, cua_handle s)
{
	IN_CONTEXT("cuWaitExternalSemaphoresAsync");
	if (n != 1)
		return INVALID_VALUE;
	give(s, (struct op){.kind = WAIT, .to = (uint64_t) * (int *)h[0], .n = p->params.value});
	return 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, cua_handle s)
{
	IN_CONTEXT("cuMemcpyHtoDAsync");
	void *data = malloc(n);
	memcpy(data, from, n);
	give(s, (struct op){.kind = COPY, .to = to, .data = data, .n = n});
	return 0;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, cua_handle s)
{
	IN_CONTEXT("cuMemcpyDtoHAsync");
	give(s, (struct op){.kind = COPY, .to = (uint64_t)to, .from = from, .n = n});
	return 0;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, cua_handle s)
{
	IN_CONTEXT("cuMemcpyDtoDAsync");
	give(s, (struct op){.kind = COPY, .to = to, .from = from, .n = n});
	return 0;
}

int cuMemsetD32Async(uint64_t at, unsigned int word, size_t n, cua_handle s)
{
	IN_CONTEXT("cuMemsetD32Async");
	give(s, (struct op){.kind = FILL, .to = at, .from = word, .n = n});
	return 0;
}
