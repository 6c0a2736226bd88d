/* cuda.c computes attention in the CUDA memory and on the stream of a program that has both. It takes the driver at run
 * time, so that it needs nothing of CUDA to build. Its argument is the driver's file, without one libcuda.so.1.
 *
 *	make c
 *	cc -std=c99 -I build/c bindings/c/examples/cuda.c -L build/c -lvkattn -ldl -lm -Wl,-rpath,build/c -o cuda && ./cuda
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <vkattn.h>

enum { HEADS = 4, ROWS = 200, D = 64, COUNT = HEADS * ROWS * D };

/* The driver's functions in use. CUstream and CUcontext are pointers, CUdeviceptr is a number of 64 bits. */
static int (*init)(unsigned), (*retain)(void **, int), (*push)(void *), (*create)(void **, unsigned), (*wait)(void *);
static int (*allocate)(uint64_t *, size_t), (*release)(uint64_t);
static int (*in)(uint64_t, const void *, size_t, void *), (*out)(void *, uint64_t, size_t, void *);

static void cuda(const char *what, int result)
{
	if (result) {
		fprintf(stderr, "cuda: %s: CUresult(%d)\n", what, result);
		exit(1);
	}
}

static void check(vkattn_status status)
{
	if (status == VKATTN_OK)
		return;
	fprintf(stderr, "cuda: %s\n", vkattn_last_error());
	exit(1);
}

static void load(const char *path)
{
	const struct {
		const char *name;
		void *to;
	} list[] = {{"cuInit", &init}, {"cuDevicePrimaryCtxRetain", &retain}, {"cuCtxPushCurrent_v2", &push}, {"cuStreamCreate", &create},
		{"cuStreamSynchronize", &wait}, {"cuMemAlloc_v2", &allocate}, {"cuMemFree_v2", &release},
		{"cuMemcpyHtoDAsync_v2", &in}, {"cuMemcpyDtoHAsync_v2", &out}};
	void *driver = dlopen(path, RTLD_NOW);
	for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
		*(void **)list[i].to = driver ? dlsym(driver, list[i].name) : NULL;
		if (!*(void **)list[i].to) {
			fprintf(stderr, "cuda: %s\n", dlerror());
			exit(1);
		}
	}
}

int main(int argc, char **argv)
{
	void *context, *stream;
	load(argc > 1 ? argv[1] : "libcuda.so.1");
	cuda("cuInit", init(0));
	cuda("cuDevicePrimaryCtxRetain", retain(&context, 0));
	cuda("cuCtxPushCurrent", push(context));
	cuda("cuStreamCreate", create(&stream, 1));

	/* The device in the program's context, and its stream. */
	vkattn_cuda which = {.size = sizeof which, .device = "0", .context = context};
	vkattn_device device;
	vkattn_stream on;
	check(vkattn_device_open_cuda(&which, &device));
	check(vkattn_stream_wrap_cuda(device, stream, &on));
	vkattn_config config = {.size = sizeof config, .dtype = VKATTN_F32, .head_dim = D, .causal = VKATTN_TOP_LEFT};
	vkattn_op op;
	check(vkattn_op_create(device, &config, &op));

	/* Q, K, V and O in its memory. */
	const size_t bytes = COUNT * sizeof(float);
	float *host = malloc(bytes);
	uint64_t memory[4];
	vkattn_args args = {.size = sizeof args, .shape = {1, HEADS, HEADS, ROWS, ROWS}};
	vkattn_tensor *tensors[] = {&args.q, &args.k, &args.v, &args.o};
	for (int i = 0; i < 4; i++) {
		cuda("cuMemAlloc", allocate(&memory[i], bytes));
		for (size_t j = 0; j < COUNT; j++)
			host[j] = (float)((j + (size_t)i) * 2654435761u % 2001u) / 1000.0f - 1.0f;
		cuda("cuMemcpyHtoDAsync", in(memory[i], host, bytes, stream));
		cuda("cuStreamSynchronize", wait(stream)); /* host is used again */
		check(vkattn_buffer_wrap_cuda(device, memory[i], bytes, &tensors[i]->buffer));
	}

	/* The second call neither allocates nor waits: a CUDA graph can capture it. */
	check(vkattn_op_forward(op, on, &args));
	check(vkattn_op_forward(op, on, &args));
	cuda("cuMemcpyDtoHAsync", out(host, memory[3], bytes, stream));
	cuda("cuStreamSynchronize", wait(stream));

	/* The first row of each head attends to its own key alone: it is the row of V. */
	double worst = 0;
	for (size_t h = 0; h < HEADS; h++)
		for (size_t d = 0; d < D; d++) {
			size_t j = h * ROWS * D + d;
			worst = fmax(worst, fabs(host[j] - ((float)((j + 2) * 2654435761u % 2001u) / 1000.0f - 1.0f)));
		}
	printf("O differs by at most %.1e\n", worst);

	for (int i = 0; i < 4; i++) {
		check(vkattn_buffer_destroy(tensors[i]->buffer));
		cuda("cuMemFree", release(memory[i]));
	}
	check(vkattn_op_destroy(op));
	check(vkattn_stream_destroy(on));
	check(vkattn_device_destroy(device));
	free(host);
	return worst < 1e-6 ? 0 : 1;
}
