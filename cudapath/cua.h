/* One function for each operation: it makes the context current, calls the driver
 * and leaves the thread as it found it, so that a goroutine may change threads
 * between two calls. Arguments are flat and no pointer is used after a call. */
#ifndef CUDAPATH_CUA_H
#define CUDAPATH_CUA_H

#include "driver.h"

typedef struct cua_api {
	void *library;
#define F(name, symbol, args) int(*name) args;
	CUA_FUNCTIONS(F)
	CUA_OPTIONAL(F)
#undef F
} cua_api;

/* The library at path, or NULL and why in a string to free. Not for Windows. */
void *cua_open(const char *path, char **why);
/* The functions of the library, which is closed if it lacks one; or NULL and why likewise. */
cua_api *cua_bind(void *library, char **why);

int cua_init(const cua_api *a, int *version, int *devices);
const char *cua_error_name(const cua_api *a, int code);

typedef struct {
	int device, major, minor, sms, max_shared, max_threads, virtual_memory, posix_fd;
	uint64_t memory;
	uint8_t uuid[16];
	char name[256];
} cua_device_info;

int cua_device(const cua_api *a, int ordinal, cua_device_info *info);
int cua_retain(const cua_api *a, int device, cua_handle *context);
int cua_release(const cua_api *a, int device);
/* The device of a context, which need not be current. */
int cua_context_device(const cua_api *a, cua_handle context, int *device);

int cua_stream_create(const cua_api *a, cua_handle context, cua_handle *stream);
int cua_stream_destroy(const cua_api *a, cua_handle context, cua_handle stream);
/* Asks until the stream is done, an error, or the time is over (CUDA_ERROR_NOT_READY). */
int cua_stream_poll(const cua_api *a, cua_handle context, cua_handle stream, uint64_t at_most_ns);

/* The context of a stream, and whether it is being captured into a graph. */
int cua_stream_context(const cua_api *a, cua_handle context, cua_handle stream, cua_handle *of);
int cua_stream_capturing(const cua_api *a, cua_handle context, cua_handle stream, int *capturing);

int cua_event_create(const cua_api *a, cua_handle context, cua_handle *event);
int cua_event_destroy(const cua_api *a, cua_handle context, cua_handle event);
int cua_event_record(const cua_api *a, cua_handle context, cua_handle event, cua_handle stream);
int cua_event_elapsed(const cua_api *a, cua_handle context, cua_handle from, cua_handle to, float *ms);

/* image: a cubin, or PTX that ends in a NUL. log takes what the compiler says of an error. */
int cua_module_load(const cua_api *a, cua_handle context, const void *image, char *log, size_t log_bytes, cua_handle *module);
int cua_module_unload(const cua_api *a, cua_handle context, cua_handle module);
/* Finds a function and lets it have so much dynamic shared memory; blocks is how many
 * of its blocks a multiprocessor holds, fixed_shared its static shared memory. */
int cua_function(const cua_api *a, cua_handle context, cua_handle module, const char *name, int threads, int shared,
	cua_handle *function, int *fixed_shared, int *blocks);

/* A tensor map: dimensions are dim, row, head, batch. */
typedef struct {
	uint64_t base;
	uint64_t dims[4];
	uint64_t strides[3]; /* bytes, of row, head, batch */
	uint32_t box[4];
	int32_t type, swizzle; /* as the driver numbers them */
} cua_map;

typedef struct {
	uint64_t base;
	int64_t batch, head, row;
} cua_tensor;

/* As AttnParams of kernels/attn.h. */
typedef struct {
	cua_tensor q, k, v, o;
	uint64_t lse;
	int32_t b, hq, hkv, sq, sk, d, dv, causal_offset;
	float scale, scale_log2, unit_high, unit_low;
} cua_params;

typedef struct {
	cua_handle function;
	uint32_t grid[3], threads, shared, maps;
	uint32_t early; /* may start before the kernel before it on the stream ends, for which it waits itself */
	cua_map map[4];
	cua_params params;
} cua_call;

/* Whether the driver takes calls with early. */
int cua_launches_early(const cua_api *a);

/* op tells which function of the driver failed. */
int cua_launch(const cua_api *a, cua_handle context, cua_handle stream, const cua_call *call, const char **op);

/* As cua_launch, with a struct of any type instead of call's params, which the driver copies. */
int cua_launch_params(const cua_api *a, cua_handle context, cua_handle stream, const cua_call *call, const void *params, const char **op);

/* On success the driver owns fd. op as above. */
int cua_import_memory(const cua_api *a, cua_handle context, int fd, uint64_t bytes, int dedicated, cua_handle *memory,
	uint64_t *address, const char **op);
int cua_drop_memory(const cua_api *a, cua_handle context, cua_handle memory, uint64_t address);
int cua_import_timeline(const cua_api *a, cua_handle context, int fd, cua_handle *semaphore);
int cua_drop_timeline(const cua_api *a, cua_handle context, cua_handle semaphore);
int cua_signal(const cua_api *a, cua_handle context, cua_handle stream, cua_handle semaphore, uint64_t value);
int cua_wait(const cua_api *a, cua_handle context, cua_handle stream, cua_handle semaphore, uint64_t value);

/* Exportable memory, mapped; rounded is what it takes. */
int cua_alloc(const cua_api *a, cua_handle context, int device, uint64_t bytes, uint64_t *rounded, cua_handle *memory,
	uint64_t *address, const char **op);
int cua_free(const cua_api *a, cua_handle context, cua_handle memory, uint64_t address, uint64_t rounded);
int cua_export(const cua_api *a, cua_handle context, cua_handle memory, int *fd);

/* Ordinary memory. cua_mem_free waits for all work of the context first. */
int cua_mem_alloc(const cua_api *a, cua_handle context, uint64_t bytes, uint64_t *address);
int cua_mem_free(const cua_api *a, cua_handle context, uint64_t address);

int cua_copy_in(const cua_api *a, cua_handle context, cua_handle stream, uint64_t to, const void *from, uint64_t bytes);
int cua_copy_out(const cua_api *a, cua_handle context, cua_handle stream, void *to, uint64_t from, uint64_t bytes);
int cua_copy(const cua_api *a, cua_handle context, cua_handle stream, uint64_t to, uint64_t from, uint64_t bytes);
int cua_fill(const cua_api *a, cua_handle context, cua_handle stream, uint64_t at, uint32_t word, uint64_t words);

#endif
