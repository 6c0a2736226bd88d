/* The part of the CUDA driver's ABI in use, in C, for the fake driver and for a test of the structures in Go. Names in
 * capitals are the driver's. */
#ifndef CUDAPATH_DRIVER_H
#define CUDAPATH_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t cua_handle;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_NOT_READY = 600,
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

#endif
