/* Feature structures as data: the same rows probe a device and enable it. */
#ifndef VKATTN_FEATURE_TABLE_H
#define VKATTN_FEATURE_TABLE_H

#include "abi.h"
#include "feature_bits.h"

#include <stddef.h>

enum { VKA_MAX_FLAGS = 8, VKA_FEATURE_ROWS = 20 };

/* Every feature structure is a head and a run of VkBool32. */
typedef struct vka_feature_struct {
	VKA_HEAD
	VkBool32 flags[VKA_MAX_FLAGS];
} vka_feature_struct;

enum { VKA_NO_FEATURE = -1, VKA_NO_FLAG = -2 };
typedef struct vka_feature_row {
	const char *name; /* of the structure */
	uint32_t type;
	uint32_t core; /* Vulkan version that needs no extension for it; 0: none */
	const char *extension, *alias;
	struct {
		int8_t bit; /* feature of the flag; VKA_NO_FEATURE: not used; VKA_NO_FLAG: end */
		const char *name;
	} flags[VKA_MAX_FLAGS];
} vka_feature_row;

extern const vka_feature_row vka_feature_rows[];
extern const uint32_t vka_feature_row_count;

/* Features of VkPhysicalDeviceFeatures. */
typedef struct vka_core_feature {
	int8_t bit;
	uint32_t offset;
	const char *name;
} vka_core_feature;
extern const vka_core_feature vka_core_features[];
extern const uint32_t vka_core_feature_count;
VkBool32 *vka_core_flag(VkPhysicalDeviceFeatures *, uint32_t i);

/* Extensions without a feature structure. */
typedef struct vka_extension_feature {
	int8_t bit;
	const char *extension, *alias;
} vka_extension_feature;
extern const vka_extension_feature vka_extension_features[];
extern const uint32_t vka_extension_feature_count;

/* What VkDeviceCreateInfo.pNext takes to enable features. The structures point at each other. */
typedef struct vka_feature_chain {
	VkPhysicalDeviceFeatures2 core;
	vka_feature_struct rows[VKA_FEATURE_ROWS];
} vka_feature_chain;
int vka_row_wanted(const vka_feature_row *, uint64_t features);
void vka_fill_chain(vka_feature_chain *, uint64_t features);

struct vka_instance;

/* A device's extensions, for lookups. */
typedef struct vka_extensions {
	uint32_t count;
	VkExtensionProperties *list;
} vka_extensions;
int vka_has_extension(const vka_extensions *, const char *name);
/* The caller frees e->list, whatever the result is. */
VkResult vka_list_extensions(struct vka_instance *, VkPhysicalDevice, vka_extensions *e);

#define VKA_VERSION(major, minor) ((uint32_t)(major) << 22 | (uint32_t)(minor) << 12)

/* The extension a row needs on a device of this version: "" none, NULL absent. */
const char *vka_row_extension(const vka_feature_row *, uint32_t api, const vka_extensions *);

#endif
