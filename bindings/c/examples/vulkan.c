/* vulkan.c owns a Vulkan device and records attention and its gradients into its own command buffer. It
 * creates the device with what vkattn_requirements_get_info lists. The library creates no device, no memory
 * for tensors and no queue.
 *
 *	make c
 *	cc -std=c99 -I build/c bindings/c/examples/vulkan.c -L build/c -lvkattn -lvulkan -lm -Wl,-rpath,build/c -o vulkan
 *	./vulkan [coopmat2|coopmat|scalar]
 *
 * It exits with 0 if the results are right, 1 if they are wrong or something fails, and 3 if no tier runs on
 * the device.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vkattn.h>
#include <vulkan/vulkan.h>

enum { B = 1, H = 2, S = 40, D = 32, N = B * H * S * D };

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "vulkan: %s: %s\n", what, why);
	exit(1);
}

static void check(const char *what, vkattn_status status)
{
	if (status != VKATTN_OK)
		fail(what, vkattn_last_error());
}

static void vk(const char *what, VkResult result)
{
	if (result != VK_SUCCESS) {
		char number[16];
		snprintf(number, sizeof number, "%d", (int)result);
		fail(what, number);
	}
}

/* The best tier that the device supports, or the one that is named; its requirements, or NULL. */
static vkattn_requirements choose(const char *named, const uint8_t uuid[16], vkattn_config *config)
{
	static const struct {
		const char *name;
		int32_t tier;
	} tiers[] = {{"coopmat2", VKATTN_TIER_COOPMAT2}, {"coopmat", VKATTN_TIER_COOPMAT}, {"scalar", VKATTN_TIER_SCALAR}};
	for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
		if (named && strcmp(named, tiers[i].name))
			continue;
		vkattn_requirements need;
		config->tier = tiers[i].tier;
		check("vkattn_requirements_create", vkattn_requirements_create(config, &need));
		if (vkattn_requirements_check(need, uuid) == VKATTN_OK)
			return need;
		printf("not by tier %s: %s\n", tiers[i].name, vkattn_last_error());
		vkattn_requirements_destroy(need);
	}
	return NULL;
}

/* A storage buffer in memory that the host sees. */
static float *new_buffer(VkPhysicalDevice physical, VkDevice device, VkDeviceSize bytes, VkBuffer *buffer,
	VkDeviceMemory *memory)
{
	VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = bytes,
		.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT};
	vk("vkCreateBuffer", vkCreateBuffer(device, &info, NULL, buffer));
	VkMemoryRequirements need;
	vkGetBufferMemoryRequirements(device, *buffer, &need);
	VkPhysicalDeviceMemoryProperties types;
	vkGetPhysicalDeviceMemoryProperties(physical, &types);
	const VkMemoryPropertyFlags wanted = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
	uint32_t type = 0;
	while (!(need.memoryTypeBits >> type & 1) || (types.memoryTypes[type].propertyFlags & wanted) != wanted)
		if (++type == types.memoryTypeCount)
			fail("memory", "no type is host-visible and coherent");
	VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = need.size,
		.memoryTypeIndex = type};
	vk("vkAllocateMemory", vkAllocateMemory(device, &allocate, NULL, memory));
	vk("vkBindBufferMemory", vkBindBufferMemory(device, *buffer, *memory, 0));
	void *mapped;
	vk("vkMapMemory", vkMapMemory(device, *memory, 0, VK_WHOLE_SIZE, 0, &mapped));
	return mapped;
}

/* The largest difference of O and of dV from the formula in double. */
static double difference(const float *q, const float *k, const float *v, const float *o, const float *d_o,
	const float *d_v)
{
	static double p[S], want_v[S * D];
	double worst = 0;
	for (int h = 0; h < B * H; h++, q += S * D, k += S * D, v += S * D, o += S * D, d_o += S * D, d_v += S * D) {
		memset(want_v, 0, sizeof want_v);
		for (int i = 0; i < S; i++) {
			double sum = 0;
			for (int j = 0; j <= i; j++) {
				double s = 0;
				for (int d = 0; d < D; d++)
					s += (double)q[i * D + d] * k[j * D + d];
				sum += p[j] = exp(s / sqrt(D));
			}
			for (int d = 0; d < D; d++) {
				double want = 0;
				for (int j = 0; j <= i; j++) {
					want += p[j] / sum * v[j * D + d];
					want_v[j * D + d] += p[j] / sum * d_o[i * D + d];
				}
				worst = fmax(worst, fabs(want - o[i * D + d]));
			}
		}
		for (int i = 0; i < S * D; i++)
			worst = fmax(worst, fabs(want_v[i] - d_v[i]));
	}
	return worst;
}

int main(int argc, char **argv)
{
	/* An instance, and the first device with its first queue family that computes. */
	VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_2};
	VkInstanceCreateInfo create = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &app};
	VkInstance instance;
	vk("vkCreateInstance", vkCreateInstance(&create, NULL, &instance));
	VkPhysicalDevice physical;
	uint32_t one = 1;
	VkResult listed = vkEnumeratePhysicalDevices(instance, &one, &physical);
	if (listed != VK_INCOMPLETE)
		vk("vkEnumeratePhysicalDevices", listed);
	VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
	VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &id};
	vkGetPhysicalDeviceProperties2(physical, &properties);
	VkQueueFamilyProperties families[16];
	uint32_t count = 16, family = 0;
	vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, families);
	while (family < count && !(families[family].queueFlags & VK_QUEUE_COMPUTE_BIT))
		family++;

	/* What to create the device with. A program adds what it needs itself. */
	vkattn_config config = {.size = sizeof config, .dtype = VKATTN_F32, .head_dim = D, .causal = VKATTN_TOP_LEFT};
	vkattn_requirements need = choose(argc > 1 ? argv[1] : NULL, id.deviceUUID, &config);
	if (!need)
		return 3;
	uint32_t version = properties.properties.apiVersion;
	if (version > app.apiVersion)
		version = app.apiVersion;
	vkattn_requirements_info requires = {.size = sizeof requires};
	check("vkattn_requirements_get_info", vkattn_requirements_get_info(need, version, &requires));
	printf("%s needs:\n%s\n", properties.properties.deviceName, requires.text);
	float priority = 1;
	VkDeviceQueueCreateInfo queues = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueFamilyIndex = family,
		.queueCount = 1, .pQueuePriorities = &priority};
	VkDeviceCreateInfo create_device = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = requires.features2,
		.queueCreateInfoCount = 1, .pQueueCreateInfos = &queues, .enabledExtensionCount = requires.extension_count,
		.ppEnabledExtensionNames = requires.extensions};
	VkDevice device;
	vk("vkCreateDevice", vkCreateDevice(physical, &create_device, NULL, &device));
	VkQueue queue;
	vkGetDeviceQueue(device, family, 0, &queue);

	/* The device and an operation of the library on it. */
	vkattn_vulkan vulkan = {.size = sizeof vulkan, .instance = instance, .physical_device = physical, .device = device,
		.queue = queue, .queue_family = family, .api_version = app.apiVersion, .requirements = need,
		.get_instance_proc_addr = (void (*)(void))vkGetInstanceProcAddr};
	vkattn_device dev;
	vkattn_op op;
	check("vkattn_device_wrap_vulkan", vkattn_device_wrap_vulkan(&vulkan, &dev));
	check("vkattn_op_create", vkattn_op_create(dev, &config, &op));

	/* One buffer for all tensors: Q, K, V, dO, O, dQ, dK, dV and LSE. */
	VkBuffer buffer;
	VkDeviceMemory memory;
	VkDeviceSize bytes = (8 * N + B * H * S) * sizeof(float);
	float *x = new_buffer(physical, device, bytes, &buffer, &memory);
	for (int i = 0; i < 4 * N; i++)
		x[i] = (float)((unsigned)i * 2654435761u % 2001u) / 1000.0f - 1.0f;
	vkattn_buffer tensors;
	check("vkattn_buffer_wrap_vulkan", vkattn_buffer_wrap_vulkan(dev, (uint64_t)buffer, 0, bytes, 0, &tensors));
	vkattn_args args = {.size = sizeof args, .shape = {B, H, H, S, S}, .q = {.buffer = tensors},
		.k = {.buffer = tensors, .offset = N}, .v = {.buffer = tensors, .offset = 2 * N},
		.o = {.buffer = tensors, .offset = 4 * N}, .lse = {.buffer = tensors, .offset = 8 * N}};
	vkattn_backward_args back = {.size = sizeof back, .forward = &args, .d_o = {.buffer = tensors, .offset = 3 * N},
		.d_q = {.buffer = tensors, .offset = 5 * N}, .d_k = {.buffer = tensors, .offset = 6 * N},
		.d_v = {.buffer = tensors, .offset = 7 * N}};
	vkattn_plan plan = {.size = sizeof plan};
	check("vkattn_op_plan", vkattn_op_plan(op, &args, &plan));
	printf("%s\n", plan.text);

	/* Both calls in the program's command buffer. Its barriers are the program's: Backward reads O and LSE. */
	VkCommandPoolCreateInfo pools = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .queueFamilyIndex = family};
	VkCommandPool pool;
	vk("vkCreateCommandPool", vkCreateCommandPool(device, &pools, NULL, &pool));
	VkCommandBufferAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = pool,
		.commandBufferCount = 1};
	VkCommandBuffer commands;
	vk("vkAllocateCommandBuffers", vkAllocateCommandBuffers(device, &allocate, &commands));
	VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
	vk("vkBeginCommandBuffer", vkBeginCommandBuffer(commands, &begin));
	vkattn_stream stream;
	check("vkattn_stream_wrap_vulkan", vkattn_stream_wrap_vulkan(dev, commands, &stream));
	check("vkattn_op_forward", vkattn_op_forward(op, stream, &args));
	check("vkattn_stream_barrier", vkattn_stream_barrier(stream));
	check("vkattn_op_backward", vkattn_op_backward(op, stream, &back));
	VkMemoryBarrier read = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
		.dstAccessMask = VK_ACCESS_HOST_READ_BIT};
	vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &read, 0,
		NULL, 0, NULL);
	vk("vkEndCommandBuffer", vkEndCommandBuffer(commands));
	VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands};
	vk("vkQueueSubmit", vkQueueSubmit(queue, 1, &submit, VK_NULL_HANDLE));
	vk("vkQueueWaitIdle", vkQueueWaitIdle(queue));
	double worst = difference(x, x + N, x + 2 * N, x + 4 * N, x + 3 * N, x + 7 * N);
	printf("O and dV differ from double by at most %.1e\n", worst);

	/* The library first: it destroys what it made, and nothing of the program. Destroying the device destroys the rest. */
	check("vkattn_stream_destroy", vkattn_stream_destroy(stream));
	check("vkattn_device_destroy", vkattn_device_destroy(dev));
	check("vkattn_requirements_destroy", vkattn_requirements_destroy(need));
	vkDestroyBuffer(device, buffer, NULL);
	vkFreeMemory(device, memory, NULL);
	vkDestroyCommandPool(device, pool, NULL);
	vkDestroyDevice(device, NULL);
	vkDestroyInstance(instance, NULL);
	return worst < 1e-5 ? 0 : 1;
}
