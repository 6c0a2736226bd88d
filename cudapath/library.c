#define _GNU_SOURCE
#include "with.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#include <windows.h>
#define dlsym(library, symbol) GetProcAddress(library, symbol)
#define dlclose(library) FreeLibrary(library)
#else
#include <dlfcn.h>

void *cua_open(const char *path, char **why)
{
	*why = NULL;
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		*why = strdup(dlerror());
	return library;
}
#endif

cua_api *cua_bind(void *library, char **why)
{
	*why = NULL;
	cua_api *a = calloc(1, sizeof *a);
	const char *missing = NULL;
	a->library = library;
#define F(name, symbol, args) a->name = (int(*) args)dlsym(library, symbol);
	CUA_FUNCTIONS(F)
	CUA_OPTIONAL(F)
#undef F
#define F(name, symbol, args) \
	if (!a->name && !missing) \
		missing = symbol;
	CUA_FUNCTIONS(F)
#undef F
	if (missing) {
		if (asprintf(why, "it has no %s: a driver for CUDA 11.2 or newer is needed", missing) < 0)
			*why = strdup("functions are missing");
		free(a);
		dlclose(library);
		return NULL;
	}
	return a;
}

int cua_init(const cua_api *a, int *version, int *devices)
{
	int r = a->Init(0);
	if (r == CUDA_SUCCESS)
		r = a->DriverGetVersion(version);
	if (r == CUDA_SUCCESS)
		r = a->DeviceGetCount(devices);
	return r;
}

const char *cua_error_name(const cua_api *a, int code)
{
	const char *name = NULL;
	return a->GetErrorName(code, &name) == CUDA_SUCCESS ? name : NULL;
}

int cua_device(const cua_api *a, int ordinal, cua_device_info *info)
{
	size_t memory = 0;
	CUuuid uuid;
	int r = a->DeviceGet(&info->device, ordinal);
	if (r == CUDA_SUCCESS)
		r = a->DeviceGetName(info->name, sizeof info->name, info->device);
	if (r == CUDA_SUCCESS)
		r = a->DeviceGetUuid(&uuid, info->device);
	if (r == CUDA_SUCCESS)
		r = a->DeviceTotalMem(&memory, info->device);
	const struct {
		int attribute, *to;
	} list[] = {
		{CU_COMPUTE_CAPABILITY_MAJOR, &info->major},
		{CU_COMPUTE_CAPABILITY_MINOR, &info->minor},
		{CU_MULTIPROCESSOR_COUNT, &info->sms},
		{CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &info->max_shared},
		{CU_MAX_THREADS_PER_BLOCK, &info->max_threads},
		{CU_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, &info->virtual_memory},
		{CU_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, &info->posix_fd},
	};
	for (size_t i = 0; r == CUDA_SUCCESS && i < sizeof list / sizeof *list; i++)
		r = a->DeviceGetAttribute(list[i].to, list[i].attribute, info->device);
	if (r == CUDA_SUCCESS) {
		info->memory = memory;
		memcpy(info->uuid, uuid.bytes, sizeof info->uuid);
	}
	return r;
}

int cua_retain(const cua_api *a, int device, cua_handle *context)
{
	return a->PrimaryCtxRetain(context, device);
}

int cua_release(const cua_api *a, int device)
{
	return a->PrimaryCtxRelease(device);
}

int cua_context_device(const cua_api *a, cua_handle context, int *device)
{
	return with(context, a->CtxGetDevice(device));
}
