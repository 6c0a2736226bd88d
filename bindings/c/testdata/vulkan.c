/* Wrong use in a Vulkan program is an error, a command buffer is recorded again, and one stream is used by one thread at
 * a time. With the word "leave" the program exits without the library's leave. */
#define _GNU_SOURCE
#include "test.h"

#include <pthread.h>
#include <vulkan/vulkan.h>

enum { H = 2, S = 32, D = 32, N = H * S * D };

static VkInstance instance;
static VkPhysicalDevice physical;
static uint32_t version;

#define VK(call) REQUIRE((call) == VK_SUCCESS)

static VkDevice create(const vkattn_requirements_info *need, VkQueue *queue)
{
	float priority = 1;
	VkDeviceQueueCreateInfo queues = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority};
	VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .queueCreateInfoCount = 1, .pQueueCreateInfos = &queues};
	if (need) {
		info.pNext = need->features2;
		info.enabledExtensionCount = need->extension_count;
		info.ppEnabledExtensionNames = need->extensions;
	}
	VkDevice device;
	VK(vkCreateDevice(physical, &info, NULL, &device));
	vkGetDeviceQueue(device, 0, 0, queue);
	return device;
}

static vkattn_requirements require_tier(int32_t tier, int32_t dtype, vkattn_requirements_info *info)
{
	vkattn_config c = {.size = sizeof c, .head_dim = D, .dtype = dtype, .tier = tier};
	vkattn_requirements need;
	OK(vkattn_requirements_create(&c, &need));
	memset(info, 0, sizeof *info);
	info->size = sizeof *info;
	OK(vkattn_requirements_get_info(need, version, info));
	REQUIRE(info->features2 && info->api_version && info->feature_count && info->limit_count && *info->text);
	for (size_t i = 0; i < info->feature_count; i++)
		REQUIRE(strstr(info->text, *info->features[i].name ? info->features[i].name : info->features[i].extension));
	return need;
}

static vkattn_stream stream;

static void *barriers(void *unused)
{
	for (int i = 0; i < 5000; i++) {
		vkattn_status s = vkattn_stream_barrier(stream);
		REQUIRE(s == VKATTN_OK || s == VKATTN_ERROR_BUSY);
	}
	return unused;
}

int main(int argc, char **argv)
{
	VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_1};
	VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &app};
	VK(vkCreateInstance(&info, NULL, &instance));
	uint32_t one = 1;
	VkResult listed = vkEnumeratePhysicalDevices(instance, &one, &physical);
	REQUIRE(listed == VK_SUCCESS || listed == VK_INCOMPLETE);
	version = app.apiVersion;

	vkattn_requirements_info scalar_info, coopmat_info;
	vkattn_requirements scalar = require_tier(VKATTN_TIER_SCALAR, VKATTN_F32, &scalar_info);
	vkattn_requirements coopmat = require_tier(VKATTN_TIER_COOPMAT2, VKATTN_F16, &coopmat_info);
	REQUIRE(coopmat_info.extension_count > scalar_info.extension_count); /* Vulkan 1.1 has none of them */
	VkQueue queue, bare_queue;
	VkDevice device = create(&scalar_info, &queue), bare = create(NULL, &bare_queue);

	/* What is missing, all of it. */
	vkattn_device dev = NULL;
	vkattn_vulkan v = {.size = sizeof v, .instance = instance, .physical_device = physical, .device = device, .queue = queue,
		.api_version = app.apiVersion, .get_instance_proc_addr = (void (*)(void))vkGetInstanceProcAddr, .pipeline_cache = "off"};
	vkattn_vulkan w = v;
	INVALID("NULL", vkattn_device_wrap_vulkan(&w, &dev)); /* no requirements */
	v.requirements = scalar;
	for (int i = 0; i < 4; i++) {
		w = v;
		*(void **[]){&w.instance, &w.physical_device, &w.device, &w.queue}[i] = NULL;
		INVALID("all needed", vkattn_device_wrap_vulkan(&w, &dev));
	}
	w = v;
	w.queue_family = 99;
	INVALID("queue family 99", vkattn_device_wrap_vulkan(&w, &dev));
	w = v;
	w.device = bare;
	w.queue = bare_queue;
	REQUIRE(vkattn_device_wrap_vulkan(&w, &dev) != VKATTN_OK); /* without timeline semaphores */
	REQUIRE(strstr(vkattn_last_error(), "Semaphore"));
	w.queue_family = 99;
	REQUIRE(vkattn_device_wrap_vulkan(&w, &dev) != VKATTN_OK);
	REQUIRE(strstr(vkattn_last_error(), "Semaphore") && strstr(vkattn_last_error(), "queue family 99"));
	w = v;
	w.timeout_ms = -1;
	INVALID("timeout_ms", vkattn_device_wrap_vulkan(&w, &dev));
	INVALID("NULL", vkattn_device_wrap_vulkan(&v, NULL));
	REQUIRE(!dev);
	OK(vkattn_device_wrap_vulkan(&v, &dev));
	if (argc > 1 && !strcmp(argv[1], "leave")) {
		vkattn_buffer b;
		OK(vkattn_buffer_create(dev, 1000, &b));
		vkDeviceWaitIdle(device);
		vkDestroyDevice(device, NULL);
		vkDestroyInstance(instance, NULL);
		return 0;
	}
	vkattn_device_info about = {.size = sizeof about};
	OK(vkattn_device_get_info(dev, &about));
	REQUIRE(about.kind == VKATTN_DEVICE_VULKAN && about.wrapped == 1 && *about.name && !*about.why_cpu);

	/* Memory. */
	VkBufferCreateInfo buffers = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = 4 * N * sizeof(float),
		.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT};
	VkBuffer buffer;
	VK(vkCreateBuffer(device, &buffers, NULL, &buffer));
	VkMemoryRequirements need;
	vkGetBufferMemoryRequirements(device, buffer, &need);
	VkPhysicalDeviceMemoryProperties types;
	vkGetPhysicalDeviceMemoryProperties(physical, &types);
	uint32_t type = 0;
	while (!(need.memoryTypeBits >> type & 1) || (types.memoryTypes[type].propertyFlags & 6) != 6)
		REQUIRE(++type < types.memoryTypeCount);
	VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = need.size, .memoryTypeIndex = type};
	VkDeviceMemory memory;
	VK(vkAllocateMemory(device, &allocate, NULL, &memory));
	VK(vkBindBufferMemory(device, buffer, memory, 0));
	void *mapped;
	VK(vkMapMemory(device, memory, 0, VK_WHOLE_SIZE, 0, &mapped));
	float *x = mapped;
	for (uint32_t i = 0; i < 3 * N; i++)
		x[i] = number(i);
	vkattn_buffer b;
	INVALID("Handle and Size", vkattn_buffer_wrap_vulkan(dev, 0, 0, 4, 0, &b));
	INVALID("Handle and Size", vkattn_buffer_wrap_vulkan(dev, (uint64_t)buffer, 0, 0, 0, &b));
	INVALID("no multiple", vkattn_buffer_wrap_vulkan(dev, (uint64_t)buffer, 1, 4, 0, &b));
	INVALID("overflow", vkattn_buffer_wrap_vulkan(dev, (uint64_t)buffer, 256, UINT64_MAX, 0, &b));
	REFUSED(VKATTN_ERROR_UNSUPPORTED, "address", vkattn_buffer_wrap_vulkan(dev, (uint64_t)buffer, 0, 4, 4096, &b));
	OK(vkattn_buffer_wrap_vulkan(dev, (uint64_t)buffer, 0, buffers.size, 0, &b));
	INVALID("the caller's", vkattn_buffer_read(b, 0, x, 4));
	INVALID("the caller's", vkattn_buffer_write(b, 0, x, 4));

	/* Operations. */
	vkattn_config config = {.size = sizeof config, .dtype = VKATTN_F32, .head_dim = D, .tier = VKATTN_TIER_COOPMAT2};
	vkattn_op op, cpu_op;
	REFUSED(VKATTN_ERROR_UNSUPPORTED, "not enabled", vkattn_op_create(dev, &config, &op));
	config.tier = VKATTN_TIER_AUTO;
	OK(vkattn_op_create(dev, &config, &op));
	vkattn_device_options options = {.size = sizeof options, .cpu = 1};
	vkattn_device cpu;
	OK(vkattn_device_open(&options, &cpu));
	OK(vkattn_op_create(cpu, &config, &cpu_op));
	vkattn_args args = {.size = sizeof args, .shape = {1, H, H, S, S}, .q = {.buffer = b}, .k = {.buffer = b, .offset = N},
		.v = {.buffer = b, .offset = 2 * N}, .o = {.buffer = b, .offset = 3 * N}};
	vkattn_args on_host = {.size = sizeof args, .shape = {1, H, H, S, S}, .q = floats(N), .k = floats(N), .v = floats(N), .o = floats(N)};
	INVALID("another device", vkattn_op_forward(cpu_op, NULL, &args));

	/* Commands. */
	VkCommandPoolCreateInfo pools = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
		.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT};
	VkCommandPool pool;
	VK(vkCreateCommandPool(device, &pools, NULL, &pool));
	VkCommandBufferAllocateInfo lists = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = pool, .commandBufferCount = 1};
	VkCommandBuffer commands;
	VK(vkAllocateCommandBuffers(device, &lists, &commands));
	VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
	VK(vkBeginCommandBuffer(commands, &begin));
	INVALID("no command buffer", vkattn_stream_wrap_vulkan(dev, NULL, &stream));
	INVALID("did not make it", vkattn_stream_wrap_vulkan(cpu, commands, &stream));
	OK(vkattn_stream_wrap_vulkan(dev, commands, &stream));
	INVALID("host memory", vkattn_op_forward(op, stream, &on_host));
	vkattn_append_config stores = {.size = sizeof stores, .dtype = VKATTN_F32, .head_dim = D};
	vkattn_append append;
	OK(vkattn_append_create(dev, &stores, &append));
	vkattn_append_args row = {.size = sizeof row, .b = 1, .hkv = H, .new_rows = 1, .k = on_host.k, .k_cache = on_host.o, .capacity = S};
	INVALID("host memory", vkattn_append_forward(append, stream, &row));
	/* Row 0 of each head of V becomes that of K. */
	row.k = (vkattn_tensor){.buffer = b, .offset = N, .stride_batch = N, .stride_head = S * D, .stride_row = D};
	row.k_cache = (vkattn_tensor){.buffer = b, .offset = 2 * N};
	REFUSED(VKATTN_ERROR_UNSUPPORTED, "command buffer", vkattn_op_forward(cpu_op, stream, &on_host));
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, barriers, NULL));
	for (int i = 0; i < 2; i++)
		REQUIRE(!pthread_join(threads[i], NULL));

	/* The same commands twice, with an input that changes in between: V is 1, then 2, but for the row that is appended. */
	for (int round = 1; round <= 2; round++) {
		for (int i = 0; i < N; i++)
			x[2 * N + i] = i % (S * D) < D ? 0 : (float)round;
		for (int i = 0; i < H * D; i++)
			x[N + i / D * S * D + i % D] = (float)round;
		if (round > 1) {
			VK(vkBeginCommandBuffer(commands, &begin));
			OK(vkattn_stream_reset(stream));
		}
		OK(vkattn_append_forward(append, stream, &row));
		OK(vkattn_stream_barrier(stream));
		OK(vkattn_op_forward(op, stream, &args));
		VkMemoryBarrier read = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
			.dstAccessMask = VK_ACCESS_HOST_READ_BIT};
		vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &read, 0, NULL, 0, NULL);
		VK(vkEndCommandBuffer(commands));
		VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands};
		VK(vkQueueSubmit(queue, 1, &submit, VK_NULL_HANDLE));
		VK(vkQueueWaitIdle(queue));
		for (int i = 0; i < N; i++)
			REQUIRE(x[3 * N + i] > (float)round - 1e-5f && x[3 * N + i] < (float)round + 1e-5f);
	}
	OK(vkattn_op_forward(op, NULL, &on_host)); /* in host memory on the same device, through its queue */

	/* The device takes all of it along, and is not the caller's device. */
	OK(vkattn_device_destroy(dev));
	INVALID("destroyed", vkattn_stream_barrier(stream));
	INVALID("destroyed", vkattn_stream_destroy(stream));
	INVALID("destroyed", vkattn_op_forward(op, NULL, &on_host));
	INVALID("destroyed", vkattn_append_forward(append, NULL, &row));
	INVALID("destroyed", vkattn_buffer_destroy(b));
	OK(vkattn_requirements_destroy(scalar));
	OK(vkattn_requirements_destroy(coopmat));
	vkDestroyCommandPool(device, pool, NULL);
	vkDestroyBuffer(device, buffer, NULL);
	vkFreeMemory(device, memory, NULL);
	vkDestroyDevice(device, NULL);
	vkDestroyDevice(bare, NULL);
	vkDestroyInstance(instance, NULL);
	return 0;
}
