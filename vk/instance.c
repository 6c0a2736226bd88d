#include "host.h"

#include <stdlib.h>
#include <string.h>

typedef VkResult (*create_instance)(const VkInstanceCreateInfo *, const void *, VkInstance *);
typedef VkResult (*enumerate_version)(uint32_t *);
typedef VkResult (*enumerate_extensions)(const char *, uint32_t *, VkExtensionProperties *);
typedef VkResult (*enumerate_layers)(uint32_t *, VkLayerProperties *);

#define VALIDATION_LAYER "VK_LAYER_KHRONOS_validation"

uint32_t vka_loader_version(void *get)
{
	uint32_t version = 0;
	enumerate_version f = (enumerate_version)((vka_get_instance_proc)get)(NULL, "vkEnumerateInstanceVersion");
	if (!f || f(&version) != VK_SUCCESS)
		return 0;
	return version;
}

static int has_extension(vka_get_instance_proc get, const char *layer, const char *name)
{
	enumerate_extensions f = (enumerate_extensions)get(NULL, "vkEnumerateInstanceExtensionProperties");
	uint32_t n = 0;
	if (!f || f(layer, &n, NULL) != VK_SUCCESS || !n)
		return 0;
	VkExtensionProperties *list = calloc(n, sizeof *list);
	int found = 0;
	if (list && f(layer, &n, list) >= 0)
		for (uint32_t i = 0; i < n; i++)
			found |= !strcmp(list[i].extensionName, name);
	free(list);
	return found;
}

static int has_layer(vka_get_instance_proc get, const char *name)
{
	enumerate_layers f = (enumerate_layers)get(NULL, "vkEnumerateInstanceLayerProperties");
	uint32_t n = 0;
	if (!f || f(&n, NULL) != VK_SUCCESS || !n)
		return 0;
	VkLayerProperties *list = calloc(n, sizeof *list);
	int found = 0;
	if (list && f(&n, list) >= 0)
		for (uint32_t i = 0; i < n; i++)
			found |= !strcmp(list[i].layerName, name);
	free(list);
	return found;
}

void vka_need(vka_missing *missing, const char *field, const char *name, int found)
{
	if (found || missing->count == VKA_MAX_MISSING)
		return;
	missing->field[missing->count] = field;
	missing->function[missing->count++] = name;
}

/* Fills the table; a missing core function means a broken loader. */
static VkResult load(vka_instance *in, vka_missing *missing)
{
	VkInstance h = in->handle;
#define GET(name) (in->name = (__typeof__(in->name))in->get(h, "vk" #name))
#define NEED(name) vka_need(missing, "", "vk" #name, GET(name) != NULL)
	NEED(DestroyInstance);
	NEED(EnumeratePhysicalDevices);
	NEED(GetPhysicalDeviceProperties);
	NEED(GetPhysicalDeviceProperties2);
	NEED(GetPhysicalDeviceFeatures2);
	NEED(GetPhysicalDeviceMemoryProperties2);
	NEED(GetPhysicalDeviceQueueFamilyProperties);
	NEED(EnumerateDeviceExtensionProperties);
	NEED(GetPhysicalDeviceExternalBufferProperties);
	NEED(GetPhysicalDeviceExternalSemaphoreProperties);
	NEED(CreateDevice);
	NEED(GetDeviceProcAddr);
	GET(GetPhysicalDeviceCooperativeMatrixPropertiesKHR);
	GET(GetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV);
	vka_fn domains = in->get(h, "vkGetPhysicalDeviceCalibrateableTimeDomainsKHR");
	if (!domains)
		domains = in->get(h, "vkGetPhysicalDeviceCalibrateableTimeDomainsEXT");
	in->GetPhysicalDeviceCalibrateableTimeDomains = (__typeof__(in->GetPhysicalDeviceCalibrateableTimeDomains))domains;
	if (in->debug_utils) {
		GET(CreateDebugUtilsMessengerEXT);
		GET(DestroyDebugUtilsMessengerEXT);
	}
	return missing->count ? VK_ERROR_INITIALIZATION_FAILED : VK_SUCCESS;
#undef NEED
#undef GET
}

VkResult vka_wrap_instance(void *get, VkInstance handle, uint32_t api, int debug_utils, vka_missing *missing, vka_instance **out)
{
	vka_instance *in = calloc(1, sizeof *in);
	if (!in)
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	in->handle = handle;
	in->get = (vka_get_instance_proc)get;
	in->api = api;
	in->debug_utils = debug_utils;
	VkResult r = load(in, missing);
	if (r != VK_SUCCESS) {
		free(in);
		return r;
	}
	*out = in;
	return VK_SUCCESS;
}

VkResult vka_create_instance(void *get_address, uint32_t api, uint32_t flags, vka_messages *messages, vka_missing *missing, vka_instance **out)
{
	vka_get_instance_proc get = (vka_get_instance_proc)get_address;
	create_instance create = (create_instance)get(NULL, "vkCreateInstance");
	if (!create)
		return VK_ERROR_INITIALIZATION_FAILED;

	const char *layers[] = {VALIDATION_LAYER};
	const char *extensions[4];
	uint32_t layer_count = 0, extension_count = 0;
	const char *layer = NULL;
	if (flags & VKA_INSTANCE_VALIDATION) {
		if (!has_layer(get, VALIDATION_LAYER))
			return -6; /* VK_ERROR_LAYER_NOT_PRESENT */
		layer_count = 1;
		layer = VALIDATION_LAYER;
	}
	int debug = 0;
	if ((flags & VKA_INSTANCE_DEBUG) &&
		(has_extension(get, NULL, "VK_EXT_debug_utils") || (layer && has_extension(get, layer, "VK_EXT_debug_utils")))) {
		extensions[extension_count++] = "VK_EXT_debug_utils";
		debug = 1;
	}
	int portable = has_extension(get, NULL, "VK_KHR_portability_enumeration");
	if (portable)
		extensions[extension_count++] = "VK_KHR_portability_enumeration";

	/* With the messenger in this chain, instance creation and destruction are heard too. */
	VkDebugUtilsMessengerCreateInfoEXT messenger = {
		.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
		.messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
		.messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
		.pfnUserCallback = vka_on_message,
		.pUserData = messages,
	};
	uint32_t enable[2], enables = 0;
	if (flags & VKA_INSTANCE_SYNC)
		enable[enables++] = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT;
	if (flags & VKA_INSTANCE_GPU_ASSISTED)
		enable[enables++] = VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_EXT;
	VkValidationFeaturesEXT features = {
		.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
		.enabledValidationFeatureCount = enables,
		.pEnabledValidationFeatures = enable,
	};
	const void *next = NULL;
	if (layer && enables) {
		if (!has_extension(get, layer, "VK_EXT_validation_features"))
			return VK_ERROR_EXTENSION_NOT_PRESENT;
		extensions[extension_count++] = "VK_EXT_validation_features";
		features.pNext = next;
		next = &features;
	}
	if (debug && messages) {
		messenger.pNext = next;
		next = &messenger;
	}
	VkApplicationInfo app = {
		.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
		.pApplicationName = "vkattn",
		.pEngineName = "vkattn",
		.apiVersion = api,
	};
	VkInstanceCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
		.pNext = next,
		.flags = portable ? VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR : 0,
		.pApplicationInfo = &app,
		.enabledLayerCount = layer_count,
		.ppEnabledLayerNames = layers,
		.enabledExtensionCount = extension_count,
		.ppEnabledExtensionNames = extensions,
	};
	VkInstance handle = NULL;
	VkResult r = create(&info, NULL, &handle);
	if (r != VK_SUCCESS)
		return r;
	vka_instance *in = NULL;
	r = vka_wrap_instance(get_address, handle, api, debug, missing, &in);
	if (r != VK_SUCCESS) {
		void (*destroy)(VkInstance, const void *) = (void (*)(VkInstance, const void *))get(handle, "vkDestroyInstance");
		if (destroy)
			destroy(handle, NULL);
		return r;
	}
	in->owned = 1;
	in->messages = messages;
	if (debug && messages && in->CreateDebugUtilsMessengerEXT) {
		messenger.pNext = NULL;
		r = in->CreateDebugUtilsMessengerEXT(handle, &messenger, NULL, &in->messenger);
		if (r != VK_SUCCESS) {
			vka_destroy_instance(in);
			return r;
		}
	}
	*out = in;
	return VK_SUCCESS;
}

void vka_destroy_instance(vka_instance *in)
{
	if (!in)
		return;
	if (in->messenger)
		in->DestroyDebugUtilsMessengerEXT(in->handle, in->messenger, NULL);
	if (in->owned)
		in->DestroyInstance(in->handle, NULL);
	free(in);
}

VkResult vka_physical_devices(vka_instance *in, uint32_t *count, VkPhysicalDevice *list)
{
	return in->EnumeratePhysicalDevices(in->handle, count, list);
}
