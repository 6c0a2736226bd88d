/* The CUDA face on the fake driver of package cudapath, the first argument, whose memory is the process's: a call on a
 * stream of the caller's, in buffers and in host memory against the CPU, and wrong uses. */
#define _GNU_SOURCE
#include "test.h"

#include <dlfcn.h>
#include <math.h>

enum { B = 2, HQ = 4, HKV = 2, SQ = 12, SK = 37, D = 32, Q = B * HQ * SQ * D, K = B * HKV * SK * D, ROWS = B * HQ * SQ };

static vkattn_config config = {.size = sizeof config, .dtype = VKATTN_F32, .head_dim = D, .causal = VKATTN_BOTTOM_RIGHT};

static vkattn_args arguments(void)
{
	vkattn_args a = {.size = sizeof a, .shape = {B, HQ, HKV, SQ, SK}, .q = floats(Q), .k = floats(K), .v = floats(K), .o = floats(Q), .lse = floats(ROWS)};
	return a;
}

static void same(const vkattn_args *a, const vkattn_args *b)
{
	for (int i = 0; i < Q; i++)
		REQUIRE(fabsf(((float *)a->o.data)[i] - ((float *)b->o.data)[i]) < 1e-5f);
	for (int i = 0; i < ROWS; i++)
		REQUIRE(fabsf(((float *)a->lse.data)[i] - ((float *)b->lse.data)[i]) < 1e-5f);
}

int main(int argc, char **argv)
{
	vkattn_device cpu, cuda;
	vkattn_op op, on_cpu;
	vkattn_stream stream, again;
	vkattn_buffer buffer;
	vkattn_device_info info = {.size = sizeof info};
	vkattn_device_options host = {.size = sizeof host, .cpu = 1};
	vkattn_cuda which = {.size = sizeof which, .device = "0"};
	REQUIRE(argc == 2);

	OK(vkattn_device_open(&host, &cpu));
	OK(vkattn_device_open_cuda(&which, &cuda));
	OK(vkattn_device_get_info(cuda, &info));
	REQUIRE(info.kind == VKATTN_DEVICE_CUDA && strstr(info.name, "fake"));
	OK(vkattn_op_create(cpu, &config, &on_cpu));
	OK(vkattn_op_create(cuda, &config, &op));
	vkattn_args want = arguments(), got = arguments();
	OK(vkattn_op_forward(on_cpu, NULL, &want));

	/* On a stream data is memory of the device. */
	void *driver = dlopen(argv[1], RTLD_NOW);
	int (*push)(void *), (*create)(void **, unsigned), (*wait)(void *);
	*(void **)&push = dlsym(driver, "cuCtxPushCurrent_v2");
	*(void **)&create = dlsym(driver, "cuStreamCreate");
	*(void **)&wait = dlsym(driver, "cuStreamSynchronize");
	void *of_cuda;
	REQUIRE(!push((void *)4711) && !create(&of_cuda, 1));
	OK(vkattn_stream_wrap_cuda(cuda, of_cuda, &stream));
	OK(vkattn_op_prepare(op, &got));
	OK(vkattn_op_forward(op, stream, &got));
	REQUIRE(!wait(of_cuda));
	same(&want, &got);

	/* In buffers, of the library's own and of the caller's. */
	vkattn_args in = arguments();
	vkattn_tensor *of[] = {&in.q, &in.k, &in.v, &in.o, &in.lse};
	for (int i = 0; i < 5; i++) {
		if (i < 3) {
			OK(vkattn_buffer_create(cuda, of[i]->bytes, &of[i]->buffer));
			OK(vkattn_buffer_write(of[i]->buffer, 0, of[i]->data, of[i]->bytes));
		} else {
			memset(of[i]->data, 0xff, of[i]->bytes);
			OK(vkattn_buffer_wrap_cuda(cuda, (uint64_t)(uintptr_t)of[i]->data, of[i]->bytes, &of[i]->buffer));
		}
	}
	vkattn_args results = in;
	for (int i = 0; i < 5; i++)
		of[i]->data = NULL, of[i]->bytes = 0;
	OK(vkattn_op_forward(op, NULL, &in));
	OK(vkattn_device_wait(cuda, UINT64_MAX));
	same(&want, &results);

	/* In host memory: the device gets copies. */
	memset(got.o.data, 0xff, got.o.bytes);
	memset(got.lse.data, 0xff, got.lse.bytes);
	OK(vkattn_op_forward(op, NULL, &got));
	same(&want, &got);

	/* Wrong uses. */
	INVALID("of CUDA", vkattn_stream_barrier(stream));
	INVALID("of CUDA", vkattn_stream_reset(stream));
	INVALID("no CUDA device", vkattn_stream_wrap_cuda(cpu, of_cuda, &again));
	INVALID("no CUDA device", vkattn_buffer_wrap_cuda(cpu, 4096, 16, &buffer));
	INVALID("no address", vkattn_buffer_wrap_cuda(cuda, 0, 16, &buffer));
	INVALID("2^64", vkattn_buffer_wrap_cuda(cuda, UINT64_MAX, 16, &buffer));
	INVALID("caller's", vkattn_buffer_read(in.o.buffer, 0, got.o.data, 4));
	INVALID("NULL", vkattn_stream_wrap_cuda(cuda, of_cuda, NULL));
	INVALID("NULL", vkattn_buffer_wrap_cuda(cuda, 4096, 16, NULL));
	INVALID("NULL", vkattn_device_open_cuda(&which, NULL));
	INVALID("NULL", vkattn_device_open_cuda(NULL, &cpu));
	INVALID("did not make it", vkattn_stream_wrap_vulkan(cuda, of_cuda, &again));
	which.device = "7";
	REFUSED(VKATTN_ERROR_NO_DEVICE, "no CUDA device 7", vkattn_device_open_cuda(&which, &cpu));
	got.q.bytes -= 4;
	INVALID("q", vkattn_op_forward(op, stream, &got));
	got.q.bytes += 4;
	INVALID("", vkattn_op_forward(on_cpu, stream, &got)); /* another device's stream */
	config.softcap = 3;
	vkattn_op softcap; /* of gradients alone */
	OK(vkattn_op_create(cuda, &config, &softcap));
	REFUSED(VKATTN_ERROR_UNSUPPORTED, "softcap", vkattn_op_forward(softcap, stream, &got));

	OK(vkattn_stream_destroy(stream));
	INVALID("was destroyed", vkattn_op_forward(op, stream, &got));
	OK(vkattn_device_destroy(cuda));
	INVALID("was destroyed", vkattn_op_forward(op, NULL, &got));
	return 0;
}
