/* Feature structures as data: the same rows probe a device and enable it. */
#ifndef VKATTN_FEATURE_TABLE_H
#define VKATTN_FEATURE_TABLE_H

#include "abi.h"
#include "feature_bits.h"

enum { VKA_MAX_FLAGS = 8, VKA_FEATURE_ROWS = 20 };

/* Every feature structure is a head and a run of VkBool32. */
typedef struct vka_feature_struct {
	VKA_HEAD
	VkBool32 flags[VKA_MAX_FLAGS];
} vka_feature_struct;

typedef struct vka_feature_row {
	uint32_t type;
	uint32_t core; /* Vulkan version that needs no extension for it; 0: none */
	const char *extension, *alias;
	int8_t bits[VKA_MAX_FLAGS]; /* the feature of each flag; -1: not used; -2: end */
} vka_feature_row;

extern const vka_feature_row vka_feature_rows[];
extern const uint32_t vka_feature_row_count;

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
