#include "host.h"

#ifdef _WIN32
/* No driver for Windows has VK_KHR_external_memory_fd: the caller passes no descriptor. */
typedef struct {
	int none;
} file_id;
static int copy_of(int fd, file_id *file) { return -1; }
static void close_same(int fd, const file_id *was) {}
#else
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct stat file_id;

/* A copy of fd, -1 if there is none. */
static int copy_of(int fd, file_id *file)
{
	return fstat(fd, file) == 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
}

/* Closes fd if it is still the file that it was. */
static void close_same(int fd, const file_id *was)
{
	struct stat now;
	if (fstat(fd, &now) == 0 && now.st_dev == was->st_dev && now.st_ino == was->st_ino)
		close(fd);
}
#endif

VkResult vka_create_buffer(vka_device *d, uint64_t size, uint32_t flags, uint64_t *buffer, uint64_t *need, uint64_t *alignment, uint32_t *types)
{
	VkExternalMemoryBufferCreateInfo external = {
		.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
		.handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
	};
	VkBufferCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
		.pNext = flags & VKA_BUFFER_EXTERNAL ? &external : NULL,
		.size = size,
		.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
	};
	if (d->features & VKA_BIT(VKA_BUFFER_DEVICE_ADDRESS))
		info.usage |= VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
	VkResult r = d->CreateBuffer(d->handle, &info, NULL, buffer);
	if (r != VK_SUCCESS)
		return r;
	VkMemoryRequirements m;
	d->GetBufferMemoryRequirements(d->handle, *buffer, &m);
	*need = m.size;
	*alignment = m.alignment;
	*types = m.memoryTypeBits;
	return r;
}

void vka_destroy_buffer(vka_device *d, uint64_t buffer)
{
	d->DestroyBuffer(d->handle, buffer, NULL);
}

/* The memory takes a copy of fd: whatever fails, now or when the buffer is bound, the caller's stays open. */
VkResult vka_allocate(vka_device *d, uint64_t size, uint32_t type, uint32_t flags, uint64_t dedicated, int fd, uint64_t *memory, void **mapped)
{
	int copy = -1;
	file_id file;
	if (fd >= 0 && (copy = copy_of(fd, &file)) < 0)
		return VK_ERROR_INVALID_EXTERNAL_HANDLE;
	VkMemoryAllocateFlagsInfo address = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
		.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT,
	};
	VkMemoryDedicatedAllocateInfo only = {.sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO, .buffer = dedicated};
	VkExportMemoryAllocateInfo export = {
		.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
		.handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
	};
	VkImportMemoryFdInfoKHR import = {
		.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR,
		.handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
		.fd = copy,
	};
	VkMemoryAllocateInfo info = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
		.allocationSize = size,
		.memoryTypeIndex = type,
	};
	if (d->features & VKA_BIT(VKA_BUFFER_DEVICE_ADDRESS)) {
		address.pNext = info.pNext;
		info.pNext = &address;
	}
	if (dedicated) {
		only.pNext = info.pNext;
		info.pNext = &only;
	}
	if (flags & VKA_MEMORY_EXPORT) {
		export.pNext = info.pNext;
		info.pNext = &export;
	}
	if (fd >= 0) {
		import.pNext = info.pNext;
		info.pNext = &import;
	}
	VkResult r = d->AllocateMemory(d->handle, &info, NULL, memory);
	if (r != VK_SUCCESS && copy >= 0)
		close_same(copy, &file); /* lavapipe and SwiftShader have closed it */
	if (r != VK_SUCCESS || !(flags & VKA_MEMORY_MAP))
		return r;
	r = d->MapMemory(d->handle, *memory, 0, ~(VkDeviceSize)0, 0, mapped);
	if (r != VK_SUCCESS)
		d->FreeMemory(d->handle, *memory, NULL);
	return r;
}

void vka_free(vka_device *d, uint64_t memory)
{
	d->FreeMemory(d->handle, memory, NULL); /* unmaps it too */
}

VkResult vka_bind_buffer(vka_device *d, uint64_t buffer, uint64_t memory, uint64_t offset, uint64_t *address)
{
	*address = 0;
	VkResult r = d->BindBufferMemory(d->handle, buffer, memory, offset);
	if (r == VK_SUCCESS && (d->features & VKA_BIT(VKA_BUFFER_DEVICE_ADDRESS))) {
		VkBufferDeviceAddressInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = buffer};
		*address = d->GetBufferDeviceAddress(d->handle, &info);
	}
	return r;
}

VkResult vka_export_memory(vka_device *d, uint64_t memory, int *fd)
{
	VkMemoryGetFdInfoKHR info = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
		.memory = memory,
		.handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
	};
	return d->GetMemoryFdKHR(d->handle, &info, fd);
}
