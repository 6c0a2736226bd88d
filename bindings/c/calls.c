//go:build linux

/* The functions of vkattn.h. Each enters Go, unless the process is one in which Go cannot run:
 * the child of a fork has one thread and none of the runtime's, and at exit the drivers are
 * taken down. */

#include "_cgo_export.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS, EXITS, FORKED };

static volatile int process = RUNS;
static pthread_key_t error_key; /* the text of a thread's last error, freed with the thread */

static const char *const why[] = {
	[EXITS] = "vkattn: the process exits",
	[FORKED] = "vkattn: in the child of a fork only exec works: the library runs in the process that loaded it",
};

static void child(void) { process = FORKED; }

__attribute__((constructor)) static void load(void)
{
	pthread_key_create(&error_key, free);
	pthread_atfork(NULL, NULL, child);
}

/* A driver that is taken down while its device works may crash. Devices are therefore closed first: handlers run in
 * reverse order, and this one is registered after what the driver registers. It runs once. */
static void at_exit(void)
{
	if (process != RUNS)
		return;
	process = EXITS;
	goExit();
}

void vka_keep_error(char *text)
{
	free(pthread_getspecific(error_key));
	if (pthread_setspecific(error_key, text))
		free(text);
}

void vka_at_exit(void) { atexit(at_exit); }

const char *vkattn_last_error(void)
{
	if (process != RUNS)
		return why[process];
	const char *text = pthread_getspecific(error_key);
	return text ? text : "";
}

int32_t vkattn_abi(void) { return VKATTN_ABI; }

#define ENTER(call) return process == RUNS ? (call) : VKATTN_ERROR_PROCESS

/* Go knows no const: it only reads what these pointers point to. */
#define GO(type, p) ((type *)(p))

vkattn_status vkattn_device_open(const vkattn_device_options *options, vkattn_device *device)
{
	ENTER(goDeviceOpen(GO(vkattn_device_options, options), device));
}

vkattn_status vkattn_device_wrap_vulkan(const vkattn_vulkan *vulkan, vkattn_device *device)
{
	ENTER(goDeviceWrapVulkan(GO(vkattn_vulkan, vulkan), device));
}

vkattn_status vkattn_device_get_info(vkattn_device device, vkattn_device_info *info)
{
	ENTER(goDeviceGetInfo(device, info));
}

vkattn_status vkattn_device_wait(vkattn_device device, uint64_t timeout_ns) { ENTER(goDeviceWait(device, timeout_ns)); }

vkattn_status vkattn_buffer_create(vkattn_device device, uint64_t bytes, vkattn_buffer *buffer)
{
	ENTER(goBufferCreate(device, bytes, buffer));
}

vkattn_status vkattn_buffer_wrap_vulkan(vkattn_device device, uint64_t vk_buffer, uint64_t offset, uint64_t bytes,
	uint64_t address, vkattn_buffer *buffer)
{
	ENTER(goBufferWrapVulkan(device, vk_buffer, offset, bytes, address, buffer));
}

vkattn_status vkattn_buffer_write(vkattn_buffer buffer, uint64_t at, const void *from, uint64_t bytes)
{
	ENTER(goBufferWrite(buffer, at, GO(void, from), bytes));
}

vkattn_status vkattn_buffer_read(vkattn_buffer buffer, uint64_t at, void *to, uint64_t bytes)
{
	ENTER(goBufferRead(buffer, at, to, bytes));
}

vkattn_status vkattn_op_create(vkattn_device device, const vkattn_config *config, vkattn_op *op)
{
	ENTER(goOpCreate(device, GO(vkattn_config, config), op));
}

vkattn_status vkattn_op_forward(vkattn_op op, vkattn_stream stream, const vkattn_args *args)
{
	ENTER(goOpForward(op, stream, GO(vkattn_args, args)));
}

vkattn_status vkattn_op_backward(vkattn_op op, vkattn_stream stream, const vkattn_backward_args *args)
{
	ENTER(goOpBackward(op, stream, GO(vkattn_backward_args, args)));
}

vkattn_status vkattn_op_prepare(vkattn_op op, const vkattn_args *args)
{
	ENTER(goOpPrepare(op, GO(vkattn_args, args)));
}

vkattn_status vkattn_op_prepare_backward(vkattn_op op, const vkattn_backward_args *args)
{
	ENTER(goOpPrepareBackward(op, GO(vkattn_backward_args, args)));
}

vkattn_status vkattn_op_plan(vkattn_op op, const vkattn_args *args, vkattn_plan *plan)
{
	ENTER(goOpPlan(op, GO(vkattn_args, args), plan));
}

vkattn_status vkattn_op_plan_backward(vkattn_op op, const vkattn_backward_args *args, vkattn_plan *plan)
{
	ENTER(goOpPlanBackward(op, GO(vkattn_backward_args, args), plan));
}

vkattn_status vkattn_call_create_forward(vkattn_op op, const vkattn_args *args, vkattn_call *call)
{
	ENTER(goCallCreateForward(op, GO(vkattn_args, args), call));
}

vkattn_status vkattn_call_create_backward(vkattn_op op, const vkattn_backward_args *args, vkattn_call *call)
{
	ENTER(goCallCreateBackward(op, GO(vkattn_backward_args, args), call));
}

vkattn_status vkattn_call_run(vkattn_call call, vkattn_stream stream, const void *const *data)
{
	ENTER(vka_call_run(call, stream, data) ? VKATTN_OK : goCallRun(call, stream, GO(void *, data)));
}

vkattn_status vkattn_append_create(vkattn_device device, const vkattn_append_config *config, vkattn_append *append)
{
	ENTER(goAppendCreate(device, GO(vkattn_append_config, config), append));
}

vkattn_status vkattn_append_forward(vkattn_append append, vkattn_stream stream, const vkattn_append_args *args)
{
	ENTER(goAppendForward(append, stream, GO(vkattn_append_args, args)));
}

vkattn_status vkattn_stream_wrap_vulkan(vkattn_device device, void *command_buffer, vkattn_stream *stream)
{
	ENTER(goStreamWrapVulkan(device, command_buffer, stream));
}

vkattn_status vkattn_device_open_cuda(const vkattn_cuda *cuda, vkattn_device *device)
{
	ENTER(goDeviceOpenCUDA(GO(vkattn_cuda, cuda), device));
}

vkattn_status vkattn_buffer_wrap_cuda(vkattn_device device, uint64_t address, uint64_t bytes, vkattn_buffer *buffer)
{
	ENTER(goBufferWrapCUDA(device, address, bytes, buffer));
}

vkattn_status vkattn_stream_wrap_cuda(vkattn_device device, void *cuda_stream, vkattn_stream *stream)
{
	ENTER(goStreamWrapCUDA(device, cuda_stream, stream));
}

vkattn_status vkattn_stream_barrier(vkattn_stream stream) { ENTER(goStreamBarrier(stream)); }

vkattn_status vkattn_stream_reset(vkattn_stream stream) { ENTER(goStreamReset(stream)); }

vkattn_status vkattn_requirements_create(const vkattn_config *config, vkattn_requirements *requirements)
{
	ENTER(goRequirementsCreate(GO(vkattn_config, config), requirements));
}

vkattn_status vkattn_requirements_get_info(vkattn_requirements requirements, uint32_t api_version,
	vkattn_requirements_info *info)
{
	ENTER(goRequirementsGetInfo(requirements, api_version, info));
}

vkattn_status vkattn_requirements_check(vkattn_requirements requirements, const uint8_t uuid[16])
{
	ENTER(goRequirementsCheck(requirements, GO(uint8_t, uuid)));
}

vkattn_status vkattn_device_destroy(vkattn_device device) { ENTER(goDestroy(device, KIND_DEVICE)); }

vkattn_status vkattn_op_destroy(vkattn_op op) { ENTER(goDestroy(op, KIND_OP)); }

vkattn_status vkattn_call_destroy(vkattn_call call) { ENTER(goDestroy(call, KIND_CALL)); }

vkattn_status vkattn_append_destroy(vkattn_append append) { ENTER(goDestroy(append, KIND_APPEND)); }

vkattn_status vkattn_buffer_destroy(vkattn_buffer buffer) { ENTER(goDestroy(buffer, KIND_BUFFER)); }

vkattn_status vkattn_stream_destroy(vkattn_stream stream) { ENTER(goDestroy(stream, KIND_STREAM)); }

vkattn_status vkattn_requirements_destroy(vkattn_requirements requirements)
{
	ENTER(goDestroy(requirements, KIND_REQUIREMENTS));
}
