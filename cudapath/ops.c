#include "with.h"

int cua_stream_create(const cua_api *a, cua_handle context, cua_handle *stream)
{
	return with(context, a->StreamCreate(stream, CU_STREAM_NON_BLOCKING));
}

int cua_stream_destroy(const cua_api *a, cua_handle context, cua_handle stream)
{
	return with(context, a->StreamDestroy(stream));
}

#ifdef _WIN32
#include <windows.h>

static uint64_t now(void)
{
	LARGE_INTEGER t, frequency;
	QueryPerformanceCounter(&t);
	QueryPerformanceFrequency(&frequency);
	return (uint64_t)((double)t.QuadPart * 1e9 / (double)frequency.QuadPart);
}

/* Windows sleeps for a millisecond at least: lets other threads run instead. */
static void rest(void) { SwitchToThread(); }
#else
#include <time.h>

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void rest(void)
{
	const struct timespec pause = {.tv_nsec = 20000};
	nanosleep(&pause, NULL);
}
#endif

static int poll(const cua_api *a, cua_handle stream, uint64_t at_most_ns)
{
	/* As long as a launch and a short kernel take there is no pause. Go's own sleep
	 * is too coarse for what follows: it may take a millisecond. */
	const uint64_t spin_ns = 200000;
	int r = a->StreamQuery(stream);
	for (uint64_t start = now(), t = start; r == CUDA_ERROR_NOT_READY && t - start < at_most_ns; t = now()) {
		if (t - start > spin_ns)
			rest();
		r = a->StreamQuery(stream);
	}
	return r;
}

int cua_stream_poll(const cua_api *a, cua_handle context, cua_handle stream, uint64_t at_most_ns)
{
	return with(context, poll(a, stream, at_most_ns));
}

int cua_stream_context(const cua_api *a, cua_handle context, cua_handle stream, cua_handle *of)
{
	return with(context, a->StreamGetCtx(stream, of));
}

int cua_stream_capturing(const cua_api *a, cua_handle context, cua_handle stream, int *capturing)
{
	return with(context, a->StreamIsCapturing(stream, capturing));
}

int cua_event_create(const cua_api *a, cua_handle context, cua_handle *event)
{
	return with(context, a->EventCreate(event, CU_EVENT_DEFAULT));
}

int cua_event_destroy(const cua_api *a, cua_handle context, cua_handle event)
{
	return with(context, a->EventDestroy(event));
}

int cua_event_record(const cua_api *a, cua_handle context, cua_handle event, cua_handle stream)
{
	return with(context, a->EventRecord(event, stream));
}

int cua_event_elapsed(const cua_api *a, cua_handle context, cua_handle from, cua_handle to, float *ms)
{
	return with(context, a->EventElapsedTime(ms, from, to));
}

int cua_module_load(const cua_api *a, cua_handle context, const void *image, char *log, size_t log_bytes, cua_handle *module)
{
	int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {log, (void *)(uintptr_t)log_bytes};
	log[0] = 0;
	return with(context, a->ModuleLoadDataEx(module, image, 2, options, values));
}

int cua_module_unload(const cua_api *a, cua_handle context, cua_handle module)
{
	return with(context, a->ModuleUnload(module));
}

static int function(const cua_api *a, cua_handle module, const char *name, int threads, int shared, cua_handle *f,
	int *fixed_shared, int *blocks)
{
	int r = a->ModuleGetFunction(f, module, name);
	if (r == CUDA_SUCCESS)
		r = a->FuncGetAttribute(fixed_shared, CU_FUNC_SHARED_SIZE_BYTES, *f);
	if (r == CUDA_SUCCESS && shared > 0)
		r = a->FuncSetAttribute(*f, CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared);
	if (r == CUDA_SUCCESS)
		r = a->Occupancy(blocks, *f, threads, (size_t)shared);
	return r;
}

int cua_function(const cua_api *a, cua_handle context, cua_handle module, const char *name, int threads, int shared,
	cua_handle *f, int *fixed_shared, int *blocks)
{
	return with(context, function(a, module, name, threads, shared, f, fixed_shared, blocks));
}

static int launch(const cua_api *a, cua_handle stream, const cua_call *c, const void *params, const char **op)
{
	CUtensorMap maps[4];
	void *arguments[5];
	static const uint32_t ones[4] = {1, 1, 1, 1};
	enum { INTERLEAVE_NONE = 0, PROMOTE_256B = 3, FILL_ZERO = 0 };
	*op = "cuTensorMapEncodeTiled";
	for (uint32_t i = 0; i < c->maps; i++) {
		const cua_map *m = &c->map[i];
		int r = a->TensorMapEncode(&maps[i], m->type, 4, (void *)(uintptr_t)m->base, m->dims, m->strides, m->box, ones,
			INTERLEAVE_NONE, m->swizzle, PROMOTE_256B, FILL_ZERO);
		if (r != CUDA_SUCCESS)
			return r;
		arguments[i] = &maps[i];
	}
	arguments[c->maps] = (void *)params;
	if (c->early) {
		CUlaunchAttribute serialization = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, .value.allowed = 1};
		const CUlaunchConfig config = {
			.grid = {c->grid[0], c->grid[1], c->grid[2]}, .block = {c->threads, 1, 1}, .shared = c->shared,
			.stream = stream, .attributes = &serialization, .count = 1,
		};
		*op = "cuLaunchKernelEx";
		return a->LaunchKernelEx(&config, c->function, arguments, 0);
	}
	*op = "cuLaunchKernel";
	return a->LaunchKernel(c->function, c->grid[0], c->grid[1], c->grid[2], c->threads, 1, 1, c->shared, stream, arguments, 0);
}

int cua_launches_early(const cua_api *a)
{
	return a->LaunchKernelEx != NULL;
}

int cua_launch(const cua_api *a, cua_handle context, cua_handle stream, const cua_call *call, const char **op)
{
	return with(context, launch(a, stream, call, &call->params, op));
}

int cua_launch_params(const cua_api *a, cua_handle context, cua_handle stream, const cua_call *call, const void *params, const char **op)
{
	return with(context, launch(a, stream, call, params, op));
}
