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

/* Go knows no const: it only reads what these pointers point to. */
#define GO(type, p) ((type *)(p))

/* A function of vkattn.h with its parameters, and the call that it is where Go runs. */
#define FUNCTION(name, parameters, call) \
	vkattn_status vkattn_##name parameters { return process == RUNS ? (call) : VKATTN_ERROR_PROCESS; }

#define DESTROY(name, kind) FUNCTION(name##_destroy, (vkattn_##name name), goDestroy(name, kind))

FUNCTION(device_open, (const vkattn_device_options *options, vkattn_device *device),
	goDeviceOpen(GO(vkattn_device_options, options), device))
FUNCTION(device_wrap_vulkan, (const vkattn_vulkan *vulkan, vkattn_device *device),
	goDeviceWrapVulkan(GO(vkattn_vulkan, vulkan), device))
FUNCTION(device_get_info, (vkattn_device device, vkattn_device_info *info), goDeviceGetInfo(device, info))
FUNCTION(device_wait, (vkattn_device device, uint64_t timeout_ns), goDeviceWait(device, timeout_ns))
FUNCTION(buffer_create, (vkattn_device device, uint64_t bytes, vkattn_buffer *buffer),
	goBufferCreate(device, bytes, buffer))
FUNCTION(buffer_wrap_vulkan, (vkattn_device device, uint64_t vk_buffer, uint64_t offset, uint64_t bytes,
		uint64_t address, vkattn_buffer *buffer),
	goBufferWrapVulkan(device, vk_buffer, offset, bytes, address, buffer))
FUNCTION(buffer_write, (vkattn_buffer buffer, uint64_t at, const void *from, uint64_t bytes),
	goBufferWrite(buffer, at, GO(void, from), bytes))
FUNCTION(buffer_read, (vkattn_buffer buffer, uint64_t at, void *to, uint64_t bytes),
	goBufferRead(buffer, at, to, bytes))
FUNCTION(op_create, (vkattn_device device, const vkattn_config *config, vkattn_op *op),
	goOpCreate(device, GO(vkattn_config, config), op))
FUNCTION(op_forward, (vkattn_op op, vkattn_stream stream, const vkattn_args *args),
	goOpForward(op, stream, GO(vkattn_args, args)))
FUNCTION(op_backward, (vkattn_op op, vkattn_stream stream, const vkattn_backward_args *args),
	goOpBackward(op, stream, GO(vkattn_backward_args, args)))
FUNCTION(op_prepare, (vkattn_op op, const vkattn_args *args), goOpPrepare(op, GO(vkattn_args, args)))
FUNCTION(op_prepare_backward, (vkattn_op op, const vkattn_backward_args *args),
	goOpPrepareBackward(op, GO(vkattn_backward_args, args)))
FUNCTION(op_plan, (vkattn_op op, const vkattn_args *args, vkattn_plan *plan), goOpPlan(op, GO(vkattn_args, args), plan))
FUNCTION(op_plan_backward, (vkattn_op op, const vkattn_backward_args *args, vkattn_plan *plan),
	goOpPlanBackward(op, GO(vkattn_backward_args, args), plan))
FUNCTION(call_create_forward, (vkattn_op op, const vkattn_args *args, vkattn_call *call),
	goCallCreateForward(op, GO(vkattn_args, args), call))
FUNCTION(call_create_backward, (vkattn_op op, const vkattn_backward_args *args, vkattn_call *call),
	goCallCreateBackward(op, GO(vkattn_backward_args, args), call))
FUNCTION(call_run, (vkattn_call call, vkattn_stream stream, const void *const *data),
	vka_call_run(call, stream, data) ? VKATTN_OK : goCallRun(call, stream, GO(void *, data)))
FUNCTION(append_create, (vkattn_device device, const vkattn_append_config *config, vkattn_append *append),
	goAppendCreate(device, GO(vkattn_append_config, config), append))
FUNCTION(append_forward, (vkattn_append append, vkattn_stream stream, const vkattn_append_args *args),
	goAppendForward(append, stream, GO(vkattn_append_args, args)))
FUNCTION(stream_wrap_vulkan, (vkattn_device device, void *command_buffer, vkattn_stream *stream),
	goStreamWrapVulkan(device, command_buffer, stream))
FUNCTION(device_open_cuda, (const vkattn_cuda *cuda, vkattn_device *device),
	goDeviceOpenCUDA(GO(vkattn_cuda, cuda), device))
FUNCTION(buffer_wrap_cuda, (vkattn_device device, uint64_t address, uint64_t bytes, vkattn_buffer *buffer),
	goBufferWrapCUDA(device, address, bytes, buffer))
FUNCTION(stream_wrap_cuda, (vkattn_device device, void *cuda_stream, vkattn_stream *stream),
	goStreamWrapCUDA(device, cuda_stream, stream))
FUNCTION(stream_barrier, (vkattn_stream stream), goStreamBarrier(stream))
FUNCTION(stream_reset, (vkattn_stream stream), goStreamReset(stream))
FUNCTION(requirements_create, (const vkattn_config *config, vkattn_requirements *requirements),
	goRequirementsCreate(GO(vkattn_config, config), requirements))
FUNCTION(requirements_get_info, (vkattn_requirements requirements, uint32_t api_version,
		vkattn_requirements_info *info),
	goRequirementsGetInfo(requirements, api_version, info))
FUNCTION(requirements_check, (vkattn_requirements requirements, const uint8_t uuid[16]),
	goRequirementsCheck(requirements, GO(uint8_t, uuid)))
DESTROY(device, KIND_DEVICE)
DESTROY(op, KIND_OP)
DESTROY(call, KIND_CALL)
DESTROY(append, KIND_APPEND)
DESTROY(buffer, KIND_BUFFER)
DESTROY(stream, KIND_STREAM)
DESTROY(requirements, KIND_REQUIREMENTS)
