#include "host.h"

VkResult vka_create_timeline(vka_device *d, int exportable, uint64_t *semaphore)
{
	VkExportSemaphoreCreateInfo export = {
		.sType = VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO,
		.handleTypes = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
	};
	VkSemaphoreTypeCreateInfo type = {
		.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
		.pNext = exportable ? &export : NULL,
		.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
	};
	VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
	return d->CreateSemaphore(d->handle, &info, NULL, semaphore);
}

void vka_destroy_semaphore(vka_device *d, uint64_t semaphore)
{
	d->DestroySemaphore(d->handle, semaphore, NULL);
}

VkResult vka_timeline_value(vka_device *d, uint64_t semaphore, uint64_t *value)
{
	return d->GetSemaphoreCounterValue(d->handle, semaphore, value);
}

VkResult vka_timeline_wait(vka_device *d, uint64_t semaphore, uint64_t value, uint64_t timeout_ns)
{
	VkSemaphoreWaitInfo info = {
		.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
		.semaphoreCount = 1,
		.pSemaphores = &semaphore,
		.pValues = &value,
	};
	return d->WaitSemaphores(d->handle, &info, timeout_ns);
}

VkResult vka_timeline_signal(vka_device *d, uint64_t semaphore, uint64_t value)
{
	VkSemaphoreSignalInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = semaphore, .value = value};
	return d->SignalSemaphore(d->handle, &info);
}

VkResult vka_export_semaphore(vka_device *d, uint64_t semaphore, int *fd)
{
	VkSemaphoreGetFdInfoKHR info = {
		.sType = VK_STRUCTURE_TYPE_SEMAPHORE_GET_FD_INFO_KHR,
		.semaphore = semaphore,
		.handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
	};
	return d->GetSemaphoreFdKHR(d->handle, &info, fd);
}

VkResult vka_import_semaphore(vka_device *d, uint64_t semaphore, int fd)
{
	VkImportSemaphoreFdInfoKHR info = {
		.sType = VK_STRUCTURE_TYPE_IMPORT_SEMAPHORE_FD_INFO_KHR,
		.semaphore = semaphore,
		.handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
		.fd = fd,
	};
	return d->ImportSemaphoreFdKHR(d->handle, &info);
}

/* The caller serializes submissions to the queue. */
VkResult vka_submit(vka_device *d, uint32_t count, const VkCommandBuffer *commands, uint32_t waits, const uint64_t *wait, const uint64_t *wait_values,
	uint32_t signals, const uint64_t *signal, const uint64_t *signal_values)
{
	VkFlags stages[VKA_MAX_SUBMIT_SEMAPHORES];
	for (uint32_t i = 0; i < waits; i++)
		stages[i] = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
	VkTimelineSemaphoreSubmitInfo values = {
		.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
		.waitSemaphoreValueCount = waits,
		.pWaitSemaphoreValues = wait_values,
		.signalSemaphoreValueCount = signals,
		.pSignalSemaphoreValues = signal_values,
	};
	VkSubmitInfo info = {
		.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
		.pNext = &values,
		.waitSemaphoreCount = waits,
		.pWaitSemaphores = wait,
		.pWaitDstStageMask = stages,
		.commandBufferCount = count,
		.pCommandBuffers = commands,
		.signalSemaphoreCount = signals,
		.pSignalSemaphores = signal,
	};
	return d->QueueSubmit(d->queue, 1, &info, 0);
}
