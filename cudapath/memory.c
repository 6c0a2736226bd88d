#include "with.h"

static int import_memory(const cua_api *a, int fd, uint64_t bytes, int dedicated, cua_handle *memory, uint64_t *address,
	const char **op)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC handle = {
		.type = CU_EXTERNAL_MEMORY_OPAQUE_FD,
		.handle.fd = fd,
		.size = bytes,
		.flags = dedicated ? CU_EXTERNAL_MEMORY_DEDICATED : 0,
	};
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC all = {.size = bytes};
	*op = "cuImportExternalMemory";
	int r = a->ImportMemory(memory, &handle);
	if (r != CUDA_SUCCESS)
		return r;
	/* The descriptor is the driver's from here on: a failure below gives the memory
	 * back, and tells by a memory of 0 from one above. */
	*op = "cuExternalMemoryGetMappedBuffer";
	return a->MappedBuffer(address, *memory, &all);
}

int cua_import_memory(const cua_api *a, cua_handle context, int fd, uint64_t bytes, int dedicated, cua_handle *memory,
	uint64_t *address, const char **op)
{
	*memory = *address = 0;
	return with(context, import_memory(a, fd, bytes, dedicated, memory, address, op));
}

static int drop_memory(const cua_api *a, cua_handle memory, uint64_t address)
{
	int r = address ? a->MemFree(address) : CUDA_SUCCESS;
	int destroyed = a->DestroyMemory(memory);
	return r ? r : destroyed;
}

int cua_drop_memory(const cua_api *a, cua_handle context, cua_handle memory, uint64_t address)
{
	return with(context, drop_memory(a, memory, address));
}

int cua_import_timeline(const cua_api *a, cua_handle context, int fd, cua_handle *semaphore)
{
	CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC handle = {.type = CU_EXTERNAL_SEMAPHORE_TIMELINE_FD, .handle.fd = fd};
	return with(context, a->ImportSemaphore(semaphore, &handle));
}

int cua_drop_timeline(const cua_api *a, cua_handle context, cua_handle semaphore)
{
	return with(context, a->DestroySemaphore(semaphore));
}

int cua_signal(const cua_api *a, cua_handle context, cua_handle stream, cua_handle semaphore, uint64_t value)
{
	CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS p = {.params.value = value};
	return with(context, a->SignalSemaphores(&semaphore, &p, 1, stream));
}

int cua_wait(const cua_api *a, cua_handle context, cua_handle stream, cua_handle semaphore, uint64_t value)
{
	CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS p = {.params.value = value};
	return with(context, a->WaitSemaphores(&semaphore, &p, 1, stream));
}

static int unmap(const cua_api *a, uint64_t address, uint64_t bytes, int mapped)
{
	int r = mapped ? a->MemUnmap(address, bytes) : CUDA_SUCCESS;
	int freed = a->MemAddressFree(address, bytes);
	return r ? r : freed;
}

static int map(const cua_api *a, int device, cua_handle memory, uint64_t bytes, uint64_t *address, const char **op)
{
	CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_DEVICE, device}, .flags = CU_MEM_ACCESS_READWRITE};
	*op = "cuMemAddressReserve";
	int r = a->MemAddressReserve(address, bytes, 0, 0, 0);
	if (r != CUDA_SUCCESS)
		return r;
	*op = "cuMemMap";
	r = a->MemMap(*address, bytes, 0, memory, 0);
	if (r != CUDA_SUCCESS) {
		unmap(a, *address, bytes, 0);
		return r;
	}
	*op = "cuMemSetAccess";
	r = a->MemSetAccess(*address, bytes, &access, 1);
	if (r != CUDA_SUCCESS)
		unmap(a, *address, bytes, 1);
	return r;
}

static int alloc(const cua_api *a, int device, uint64_t bytes, uint64_t *rounded, cua_handle *memory, uint64_t *address,
	const char **op)
{
	CUmemAllocationProp kind = {
		.type = CU_MEM_ALLOCATION_PINNED,
		.handles = CU_MEM_HANDLE_POSIX_FD,
		.location = {CU_MEM_LOCATION_DEVICE, device},
	};
	size_t granularity = 0;
	*op = "cuMemGetAllocationGranularity";
	int r = a->MemGranularity(&granularity, &kind, CU_MEM_GRANULARITY_RECOMMENDED);
	if (r != CUDA_SUCCESS)
		return r;
	*rounded = (bytes + granularity - 1) / granularity * granularity;
	*op = "cuMemCreate";
	r = a->MemCreate(memory, *rounded, &kind, 0);
	if (r != CUDA_SUCCESS)
		return r;
	r = map(a, device, *memory, *rounded, address, op);
	if (r != CUDA_SUCCESS)
		a->MemRelease(*memory);
	return r;
}

int cua_alloc(const cua_api *a, cua_handle context, int device, uint64_t bytes, uint64_t *rounded, cua_handle *memory,
	uint64_t *address, const char **op)
{
	return with(context, alloc(a, device, bytes, rounded, memory, address, op));
}

static int release(const cua_api *a, cua_handle memory, uint64_t address, uint64_t rounded)
{
	int r = unmap(a, address, rounded, 1);
	int released = a->MemRelease(memory);
	return r ? r : released;
}

int cua_free(const cua_api *a, cua_handle context, cua_handle memory, uint64_t address, uint64_t rounded)
{
	return with(context, release(a, memory, address, rounded));
}

int cua_export(const cua_api *a, cua_handle context, cua_handle memory, int *fd)
{
	return with(context, a->MemExport(fd, memory, CU_MEM_HANDLE_POSIX_FD, 0));
}

int cua_mem_alloc(const cua_api *a, cua_handle context, uint64_t bytes, uint64_t *address)
{
	return with(context, a->MemAlloc(address, bytes));
}

int cua_mem_free(const cua_api *a, cua_handle context, uint64_t address)
{
	return with(context, a->CtxSynchronize() ?: a->MemFree(address));
}

int cua_copy_in(const cua_api *a, cua_handle context, cua_handle stream, uint64_t to, const void *from, uint64_t bytes)
{
	return with(context, a->MemcpyHtoDAsync(to, from, bytes, stream));
}

/* Waits: memory that is not pinned may only be there when the driver says so. */
int cua_copy_out(const cua_api *a, cua_handle context, cua_handle stream, void *to, uint64_t from, uint64_t bytes)
{
	return with(context, a->MemcpyDtoHAsync(to, from, bytes, stream) ?: a->StreamSynchronize(stream));
}

int cua_copy(const cua_api *a, cua_handle context, cua_handle stream, uint64_t to, uint64_t from, uint64_t bytes)
{
	return with(context, a->MemcpyDtoDAsync(to, from, bytes, stream));
}

int cua_fill(const cua_api *a, cua_handle context, cua_handle stream, uint64_t at, uint32_t word, uint64_t words)
{
	return with(context, a->MemsetD32Async(at, word, words, stream));
}
