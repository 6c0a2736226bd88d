// Calls of Vulkan about buffers and memory.

package vk

import (
	"sync"
	"unsafe"

	"vkattn/internal/ccall"
)

// Flags of hostCreateBuffer and hostAllocate.
const (
	bufferExternal = 1

	memoryMap    = 1
	memoryExport = 2
)

const bufferUsage = vkBufferUsageStorageBufferBit | vkBufferUsageTransferSrcBit | vkBufferUsageTransferDstBit

func hostCreateBuffer(d *hostDevice, size uint64, flags uint32, buffer, need, alignment *uint64, types *uint32) Result {
	info := headed(vkBufferCreateInfo{size: size, usage: bufferUsage})
	if flags&bufferExternal != 0 {
		info.pNext = unsafe.Pointer(headed(vkExternalMemoryBufferCreateInfo{handleTypes: vkExternalMemoryHandleTypeOpaqueFdBit}))
	}
	if d.has(featureBufferDeviceAddress) {
		info.usage |= vkBufferUsageShaderDeviceAddressBit
	}
	r := call(d.CreateBuffer, d.arg(), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(buffer)))
	if r != ResultSuccess {
		return r
	}
	var m vkMemoryRequirements
	call(d.GetBufferMemoryRequirements, d.arg(), uintptr(*buffer), uintptr(unsafe.Pointer(&m)))
	*need, *alignment, *types = m.size, m.alignment, m.memoryTypeBits
	return r
}

// hostAllocate allocates memory: for one buffer if dedicated is not 0, from the file fd if that is not -1. *mapped is
// set with memoryMap. The memory takes a copy of fd: whatever fails, now or when the buffer is bound, the caller's
// stays open.
func hostAllocate(d *hostDevice, size uint64, kind, flags uint32, dedicated uint64, fd int, memory *uint64, mapped *unsafe.Pointer) Result {
	info := headed(vkMemoryAllocateInfo{allocationSize: size, memoryTypeIndex: kind})
	if d.has(featureBufferDeviceAddress) {
		info.chain(&headed(vkMemoryAllocateFlagsInfo{flags: vkMemoryAllocateDeviceAddressBit}).vkHead)
	}
	if dedicated != 0 {
		info.chain(&headed(vkMemoryDedicatedAllocateInfo{buffer: dedicated}).vkHead)
	}
	if flags&memoryExport != 0 {
		info.chain(&headed(vkExportMemoryAllocateInfo{handleTypes: vkExternalMemoryHandleTypeOpaqueFdBit}).vkHead)
	}
	var file fileCopy
	if fd >= 0 {
		var ok bool
		if file, ok = copyFile(fd); !ok {
			return ResultInvalidExternalHandle
		}
		info.chain(&headed(vkImportMemoryFdInfoKHR{
			handleType: vkExternalMemoryHandleTypeOpaqueFdBit,
			fd:         int32(file.fd),
		}).vkHead)
	}
	r := call(d.AllocateMemory, d.arg(), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(memory)))
	if r != ResultSuccess && fd >= 0 {
		file.closeSame() // lavapipe and SwiftShader have closed it
	}
	if r != ResultSuccess || flags&memoryMap == 0 {
		return r
	}
	r = call(d.MapMemory, d.arg(), uintptr(*memory), 0, ^uintptr(0), 0, uintptr(unsafe.Pointer(mapped)))
	if r != ResultSuccess {
		d.destroy(d.FreeMemory, *memory)
	}
	return r
}

func hostBindBuffer(d *hostDevice, buffer, memory, offset uint64, address *uint64) Result {
	*address = 0
	r := call(d.BindBufferMemory, d.arg(), uintptr(buffer), uintptr(memory), uintptr(offset))
	if r == ResultSuccess && d.has(featureBufferDeviceAddress) {
		info := headed(vkBufferDeviceAddressInfo{buffer: buffer})
		*address = uint64(ccall.Call(d.GetBufferDeviceAddress, d.arg(), uintptr(unsafe.Pointer(info))))
	}
	return r
}

func hostExportMemory(d *hostDevice, memory uint64, fd *int32) Result {
	info := headed(vkMemoryGetFdInfoKHR{memory: memory, handleType: vkExternalMemoryHandleTypeOpaqueFdBit})
	return call(d.GetMemoryFdKHR, d.arg(), uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(fd)))
}

func hostHeapBudget(in *hostInstance, d VkPhysicalDevice, budget, usage *[16]uint64) {
	b := headed(vkPhysicalDeviceMemoryBudgetPropertiesEXT{})
	core := headed(vkPhysicalDeviceMemoryProperties2{})
	core.chain(&b.vkHead)
	call(in.GetPhysicalDeviceMemoryProperties2, uintptr(d), uintptr(unsafe.Pointer(core)))
	*budget, *usage = b.heapBudget, b.heapUsage
}

// Calls of Vulkan about semaphores and submissions.

func hostCreateTimeline(d *hostDevice, exportable bool, semaphore *uint64) Result {
	kind := headed(vkSemaphoreTypeCreateInfo{semaphoreType: vkSemaphoreTypeTimeline})
	if exportable {
		kind.pNext = unsafe.Pointer(headed(vkExportSemaphoreCreateInfo{handleTypes: vkExternalSemaphoreHandleTypeOpaqueFdBit}))
	}
	info := headed(vkSemaphoreCreateInfo{})
	info.pNext = unsafe.Pointer(kind)
	return call(d.CreateSemaphore, d.arg(), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(semaphore)))
}

// timelineCall is a read or a wait of a timeline. Several goroutines make them at once, and they allocate nothing.
type timelineCall struct {
	read struct {
		ccall.Frame
		device    VkDevice
		semaphore uint64
		to        *uint64
	}
	await struct {
		ccall.Frame
		device  VkDevice
		info    *vkSemaphoreWaitInfo
		timeout uint64
	}
	info             vkSemaphoreWaitInfo
	semaphore, value uint64
}

var timelineCalls = sync.Pool{New: func() any {
	c := new(timelineCall)
	c.read.Args, c.read.to = ccall.Size(unsafe.Sizeof(c.read)), &c.value
	c.await.Args, c.await.info = ccall.Size(unsafe.Sizeof(c.await)), &c.info
	c.info = *headed(vkSemaphoreWaitInfo{semaphoreCount: 1, pSemaphores: &c.semaphore, pValues: &c.value})
	return c
}}

func hostTimelineValue(d *hostDevice, semaphore uint64) (value uint64, r Result) {
	c := timelineCalls.Get().(*timelineCall)
	defer timelineCalls.Put(c)
	c.read.Fn, c.read.device, c.read.semaphore, c.value = d.GetSemaphoreCounterValue, d.device, semaphore, 0
	ccall.Run(&c.read.Frame)
	return c.value, Result(int32(c.read.Result))
}

func hostTimelineWait(d *hostDevice, semaphore, value, timeoutNs uint64) Result {
	c := timelineCalls.Get().(*timelineCall)
	defer timelineCalls.Put(c)
	c.await.Fn, c.await.device, c.await.timeout = d.WaitSemaphores, d.device, timeoutNs
	c.semaphore, c.value = semaphore, value
	ccall.Run(&c.await.Frame)
	return Result(int32(c.await.Result))
}

func hostTimelineSignal(d *hostDevice, semaphore, value uint64) Result {
	info := headed(vkSemaphoreSignalInfo{semaphore: semaphore, value: value})
	return call(d.SignalSemaphore, d.arg(), uintptr(unsafe.Pointer(info)))
}

func hostExportSemaphore(d *hostDevice, semaphore uint64, fd *int32) Result {
	info := headed(vkSemaphoreGetFdInfoKHR{semaphore: semaphore, handleType: vkExternalSemaphoreHandleTypeOpaqueFdBit})
	return call(d.GetSemaphoreFdKHR, d.arg(), uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(fd)))
}

func hostImportSemaphore(d *hostDevice, semaphore uint64, fd int32) Result {
	info := headed(vkImportSemaphoreFdInfoKHR{
		semaphore:  semaphore,
		handleType: vkExternalSemaphoreHandleTypeOpaqueFdBit,
		fd:         fd,
	})
	return call(d.ImportSemaphoreFdKHR, d.arg(), uintptr(unsafe.Pointer(info)))
}

const maxSubmitSemaphores = 32

// submission is the semaphores of one vkQueueSubmit.
type submission struct {
	waits, signals                      int
	wait, waitValues, set, signalValues [maxSubmitSemaphores]uint64
}

// submitCall is a call of vkQueueSubmit, with room for all that it points to.
type submitCall struct {
	frame struct {
		ccall.Frame
		queue VkQueue
		count uint64
		info  *vkSubmitInfo
		fence uint64
	}
	info     vkSubmitInfo
	timeline vkTimelineSemaphoreSubmitInfo
	commands [2]VkCommandBuffer
	stages   [maxSubmitSemaphores]uint32
	submission
}

// hostSubmit submits at most two command buffers. The caller serializes submissions to the queue. It allocates nothing.
func hostSubmit(d *hostDevice, list []VkCommandBuffer, l *submission) Result {
	s := &d.submit
	s.submission = *l
	if s.frame.Args == 0 {
		s.frame.Args, s.frame.count, s.frame.info = ccall.Size(unsafe.Sizeof(s.frame)), 1, &s.info
		for i := range s.stages {
			s.stages[i] = vkPipelineStageAllCommandsBit
		}
		s.info = *headed(vkSubmitInfo{
			vkHead:            vkHead{pNext: unsafe.Pointer(&s.timeline)},
			pWaitSemaphores:   &s.wait[0],
			pWaitDstStageMask: &s.stages[0],
			pCommandBuffers:   &s.commands[0],
			pSignalSemaphores: &s.set[0],
		})
		s.timeline = *headed(vkTimelineSemaphoreSubmitInfo{
			pWaitSemaphoreValues:   &s.waitValues[0],
			pSignalSemaphoreValues: &s.signalValues[0],
		})
	}
	s.frame.Fn, s.frame.queue = d.QueueSubmit, d.queue
	s.info.commandBufferCount = uint32(copy(s.commands[:], list))
	s.info.waitSemaphoreCount, s.info.signalSemaphoreCount = uint32(l.waits), uint32(l.signals)
	s.timeline.waitSemaphoreValueCount, s.timeline.signalSemaphoreValueCount = uint32(l.waits), uint32(l.signals)
	ccall.Run(&s.frame.Frame)
	return Result(int32(s.frame.Result))
}
