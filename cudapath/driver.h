/* The part of the CUDA driver's ABI in use, declared here so that neither a header
 * nor a library of CUDA is needed to build. Names in capitals are the driver's. */
#ifndef CUDAPATH_DRIVER_H
#define CUDAPATH_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* Handles are opaque numbers in Go: a pointer of the driver's is none of the
 * garbage collector's business. */
typedef uint64_t cua_handle;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_NOT_READY = 600,
	CUA_NO_LIBRARY = -1, /* ours */
};

enum { /* CUdevice_attribute */
	CU_MAX_THREADS_PER_BLOCK = 1,
	CU_MULTIPROCESSOR_COUNT = 16,
	CU_COMPUTE_CAPABILITY_MAJOR = 75,
	CU_COMPUTE_CAPABILITY_MINOR = 76,
	CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
	CU_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
	CU_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
};

enum { /* CUfunction_attribute */
	CU_FUNC_SHARED_SIZE_BYTES = 1,
	CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
};

enum { /* CUjit_option */
	CU_JIT_ERROR_LOG_BUFFER = 5,
	CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
};

enum {
	CU_STREAM_NON_BLOCKING = 1,
	CU_EVENT_DEFAULT = 0,
	CU_EXTERNAL_MEMORY_OPAQUE_FD = 1,
	CU_EXTERNAL_MEMORY_DEDICATED = 1,
	CU_EXTERNAL_SEMAPHORE_TIMELINE_FD = 9,
	CU_MEM_ALLOCATION_PINNED = 1,
	CU_MEM_HANDLE_POSIX_FD = 1,
	CU_MEM_LOCATION_DEVICE = 1,
	CU_MEM_ACCESS_READWRITE = 3,
	CU_MEM_GRANULARITY_RECOMMENDED = 1,
};

typedef struct {
	char bytes[16];
} CUuuid;

typedef union {
	int fd;
	struct {
		void *handle;
		const void *name;
	} win32;
} cua_os_handle;

typedef struct {
	int type;
	cua_os_handle handle;
	unsigned long long size;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;

typedef struct {
	unsigned long long offset;
	unsigned long long size;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_BUFFER_DESC;

typedef struct {
	int type;
	cua_os_handle handle;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC;

typedef struct {
	struct {
		unsigned long long value;
		unsigned long long sync;
		unsigned long long key;
		unsigned int reserved[12];
	} params;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS;

typedef struct {
	struct {
		unsigned long long value;
		unsigned long long sync;
		struct {
			unsigned long long key;
			unsigned int timeout;
		} mutex;
		unsigned int reserved[10];
	} params;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS;

typedef struct {
	int type, id;
} CUmemLocation;

typedef struct {
	int type;
	int handles;
	CUmemLocation location;
	void *win32;
	unsigned char flags[8];
} CUmemAllocationProp;

typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

enum { CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };

typedef struct {
	int id;
	char pad[4];
	union {
		char pad[64];
		int allowed;
	} value;
} CUlaunchAttribute;

typedef struct {
	unsigned int grid[3], block[3], shared;
	cua_handle stream;
	CUlaunchAttribute *attributes;
	unsigned int count;
} CUlaunchConfig;

/* CUtensorMap is opaque to everybody but the driver. */
typedef struct {
	_Alignas(64) uint64_t opaque[16];
} CUtensorMap;

/* Every function in use: name here, symbol in the library, arguments. Handles are
 * pointers to the driver, which on the machines it exists for have 64 bits. */
#define CUA_FUNCTIONS(F) \
	F(Init, "cuInit", (unsigned int)) \
	F(DriverGetVersion, "cuDriverGetVersion", (int *)) \
	F(GetErrorName, "cuGetErrorName", (int, const char **)) \
	F(DeviceGetCount, "cuDeviceGetCount", (int *)) \
	F(DeviceGet, "cuDeviceGet", (int *, int)) \
	F(DeviceGetUuid, "cuDeviceGetUuid", (CUuuid *, int)) \
	F(DeviceGetName, "cuDeviceGetName", (char *, int, int)) \
	F(DeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, int)) \
	F(DeviceTotalMem, "cuDeviceTotalMem_v2", (size_t *, int)) \
	F(PrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (cua_handle *, int)) \
	F(PrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int)) \
	F(CtxPush, "cuCtxPushCurrent_v2", (cua_handle)) \
	F(CtxPop, "cuCtxPopCurrent_v2", (cua_handle *)) \
	F(CtxGetDevice, "cuCtxGetDevice", (int *)) \
	F(CtxSynchronize, "cuCtxSynchronize", (void)) \
	F(StreamCreate, "cuStreamCreate", (cua_handle *, unsigned int)) \
	F(StreamDestroy, "cuStreamDestroy_v2", (cua_handle)) \
	F(StreamSynchronize, "cuStreamSynchronize", (cua_handle)) \
	F(StreamQuery, "cuStreamQuery", (cua_handle)) \
	F(StreamGetCtx, "cuStreamGetCtx", (cua_handle, cua_handle *)) \
	F(StreamIsCapturing, "cuStreamIsCapturing", (cua_handle, int *)) \
	F(EventCreate, "cuEventCreate", (cua_handle *, unsigned int)) \
	F(EventDestroy, "cuEventDestroy_v2", (cua_handle)) \
	F(EventRecord, "cuEventRecord", (cua_handle, cua_handle)) \
	F(EventElapsedTime, "cuEventElapsedTime", (float *, cua_handle, cua_handle)) \
	F(ModuleLoadDataEx, "cuModuleLoadDataEx", (cua_handle *, const void *, unsigned int, int *, void **)) \
	F(ModuleUnload, "cuModuleUnload", (cua_handle)) \
	F(ModuleGetFunction, "cuModuleGetFunction", (cua_handle *, cua_handle, const char *)) \
	F(FuncSetAttribute, "cuFuncSetAttribute", (cua_handle, int, int)) \
	F(FuncGetAttribute, "cuFuncGetAttribute", (int *, int, cua_handle)) \
	F(Occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", (int *, cua_handle, int, size_t)) \
	F(LaunchKernel, "cuLaunchKernel", \
		(cua_handle, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, \
			unsigned int, cua_handle, void **, void **)) \
	F(MemGranularity, "cuMemGetAllocationGranularity", (size_t *, const CUmemAllocationProp *, int)) \
	F(MemCreate, "cuMemCreate", (cua_handle *, size_t, const CUmemAllocationProp *, unsigned long long)) \
	F(MemRelease, "cuMemRelease", (cua_handle)) \
	F(MemAddressReserve, "cuMemAddressReserve", (uint64_t *, size_t, size_t, uint64_t, unsigned long long)) \
	F(MemAddressFree, "cuMemAddressFree", (uint64_t, size_t)) \
	F(MemMap, "cuMemMap", (uint64_t, size_t, size_t, cua_handle, unsigned long long)) \
	F(MemUnmap, "cuMemUnmap", (uint64_t, size_t)) \
	F(MemSetAccess, "cuMemSetAccess", (uint64_t, size_t, const CUmemAccessDesc *, size_t)) \
	F(MemExport, "cuMemExportToShareableHandle", (void *, cua_handle, int, unsigned long long)) \
	F(MemAlloc, "cuMemAlloc_v2", (uint64_t *, size_t)) \
	F(MemFree, "cuMemFree_v2", (uint64_t)) \
	F(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (uint64_t, const void *, size_t, cua_handle)) \
	F(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *, uint64_t, size_t, cua_handle)) \
	F(MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (uint64_t, uint64_t, size_t, cua_handle)) \
	F(MemsetD32Async, "cuMemsetD32Async", (uint64_t, unsigned int, size_t, cua_handle)) \
	F(ImportMemory, "cuImportExternalMemory", (cua_handle *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *)) \
	F(MappedBuffer, "cuExternalMemoryGetMappedBuffer", (uint64_t *, cua_handle, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *)) \
	F(DestroyMemory, "cuDestroyExternalMemory", (cua_handle)) \
	F(ImportSemaphore, "cuImportExternalSemaphore", (cua_handle *, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *)) \
	F(DestroySemaphore, "cuDestroyExternalSemaphore", (cua_handle)) \
	F(SignalSemaphores, "cuSignalExternalSemaphoresAsync", \
		(const cua_handle *, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *, unsigned int, cua_handle)) \
	F(WaitSemaphores, "cuWaitExternalSemaphoresAsync", \
		(const cua_handle *, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *, unsigned int, cua_handle))

/* Since CUDA 12. Kernels that need tensor maps are not chosen without them. cua_launches_early() says
 * whether LaunchKernelEx is there. */
#define CUA_OPTIONAL(F) \
	F(LaunchKernelEx, "cuLaunchKernelEx", (const CUlaunchConfig *, cua_handle, void **, void **)) \
	F(TensorMapEncode, "cuTensorMapEncodeTiled", \
		(CUtensorMap *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, \
			int, int, int, int))

#endif
