//go:build !cgo

package vk

import "unsafe"

// This file stands in for host_cgo.go and probe_cgo.go in builds without cgo. Such a build opens no loader, so
// no device exists and only the first functions are ever called.

const hasVulkan = false

// noVulkan says why a build knows no Vulkan device.
const noVulkan = "this build has no Vulkan: it was built without cgo (CGO_ENABLED=0)"

func hostOpenLoader(string) (get unsafe.Pointer, why string) { return nil, noVulkan }
func hostTryLibrary(string) (why string)                     { return noVulkan }

type (
	hostInstance struct{}
	hostDevice   struct{}
	hostMessages struct{}
	hostProbe    struct{}
)

const none = ResultInitializationFailed

func hostLoaderVersion(unsafe.Pointer) uint32                   { return 0 }
func hostMessagesNew() *hostMessages                            { return new(hostMessages) }
func hostMessagesFree(*hostMessages)                            {}
func hostMessagesUnread(*hostMessages) *uint32                  { return new(uint32) }
func hostMessagesTake(*hostMessages) (Message, bool)            { return Message{}, false }
func hostDestroyInstance(*hostInstance)                         {}
func aboutInstance(*hostInstance) (a, b bool, _ unsafe.Pointer) { return }
func instanceHandle(*hostInstance) VkInstance                   { return 0 }
func hostPhysicalDevices(*hostInstance) ([]VkPhysicalDevice, Result) {
	return nil, none
}
func hostCreateInstance(unsafe.Pointer, uint32, uint32, *hostMessages) (*hostInstance, []missingFunction, Result) {
	return nil, nil, none
}
func hostWrapInstance(unsafe.Pointer, VkInstance, uint32, bool) (*hostInstance, []missingFunction, Result) {
	return nil, nil, none
}
func hostCreateDevice(*hostInstance, *probe, uint64, []string) (*hostDevice, []missingFunction, Result) {
	return nil, nil, none
}
func hostWrapDevice(*hostInstance, *External, uint64) (*hostDevice, []missingFunction, Result) {
	return nil, nil, none
}
func hostTimestampBits(*hostInstance, VkPhysicalDevice, uint32) (bits uint32, computes bool) { return }
func hostFeature(int) (f Feature)                                                            { return }
func hostNewChain(uint64) unsafe.Pointer                                                     { return nil }
func hostFreeChain(unsafe.Pointer)                                                           {}
func hostHeapBudget(*hostInstance, VkPhysicalDevice, *[16]uint64, *[16]uint64)               {}
func newProbe(*hostInstance, VkPhysicalDevice, int) *probe                                   { return new(probe) }
func (p *probe) free()                                                                       {}

func hostDestroyDevice(*hostDevice)                   {}
func handlesOf(*hostDevice) (h deviceHandles)         { return }
func hostWaitIdle(*hostDevice) Result                 { return none }
func hostSetName(*hostDevice, uint32, uint64, string) {}

func hostCalibrate(_ *hostDevice, _, _, _, _, _ *uint64) Result { return none }

func hostCreateBuffer(_ *hostDevice, _ uint64, _ uint32, _, _, _ *uint64, _ *uint32) Result {
	return none
}
func hostDestroyBuffer(*hostDevice, uint64) {}
func hostAllocate(_ *hostDevice, _ uint64, _, _ uint32, _ uint64, _ int, _ *uint64, _ *unsafe.Pointer) Result {
	return none
}
func hostFree(*hostDevice, uint64)                                   {}
func hostBindBuffer(_ *hostDevice, _, _, _ uint64, _ *uint64) Result { return none }
func hostExportMemory(*hostDevice, uint64, *int32) Result            { return none }

func hostCreateTimeline(*hostDevice, bool, *uint64) Result                      { return none }
func hostDestroySemaphore(*hostDevice, uint64)                                  {}
func hostTimelineValue(*hostDevice, uint64, *uint64) Result                     { return none }
func hostTimelineWait(_ *hostDevice, _, _, _ uint64) Result                     { return none }
func hostTimelineSignal(_ *hostDevice, _, _ uint64) Result                      { return none }
func hostExportSemaphore(*hostDevice, uint64, *int32) Result                    { return none }
func hostImportSemaphore(*hostDevice, uint64, int32) Result                     { return none }
func hostSubmit(_ *hostDevice, _ []VkCommandBuffer, _, _, _, _ []uint64) Result { return none }

func hostCreateLayouts(_ *hostDevice, _, _ uint32, _, _ *uint64) Result { return none }
func hostDestroyLayouts(_ *hostDevice, _, _ uint64)                     {}
func hostCreatePipeline(_ *hostDevice, _, _ uint64, _ []byte, _, _ []uint32, _, _ uint32, _ *uint64) Result {
	return none
}
func hostDestroyPipeline(*hostDevice, uint64)                  {}
func hostCreateCache(*hostDevice, []byte, *uint64) Result      { return none }
func hostDestroyCache(*hostDevice, uint64)                     {}
func hostCacheData(*hostDevice, uint64) []byte                 { return nil }
func hostStatistics(*hostDevice, uint64) ([]Statistic, Result) { return nil, none }

func hostCreateDescriptorPool(_ *hostDevice, _, _ uint32, _ *uint64) Result { return none }
func hostDestroyDescriptorPool(*hostDevice, uint64)                         {}
func hostResetDescriptorPool(*hostDevice, uint64) Result                    { return none }
func hostDescriptorSet(_ *hostDevice, _, _ uint64, _ uint32, _, _, _, _ *uint64) Result {
	return none
}

func hostCreateCommands(*hostDevice, uint32, *uint64, *VkCommandBuffer) Result                 { return none }
func hostDestroyCommands(*hostDevice, uint64)                                                  {}
func hostBegin(*hostDevice, uint64, VkCommandBuffer, bool) Result                              { return none }
func hostEnd(*hostDevice, VkCommandBuffer) Result                                              { return none }
func hostCmdDispatch(_ *hostDevice, _ VkCommandBuffer, _, _, _ uint64, _ []byte, _ *[3]uint32) {}
func hostCmdBarrier(*hostDevice, VkCommandBuffer, bool)                                        {}
func hostCmdHostBarrier(*hostDevice, VkCommandBuffer, bool)                                    {}
func hostCmdCopy(_ *hostDevice, _ VkCommandBuffer, _, _, _, _, _ uint64)                       {}
func hostCmdFill(_ *hostDevice, _ VkCommandBuffer, _, _, _ uint64, _ uint32)                   {}
func hostCreateQueries(*hostDevice, uint32, *uint64) Result                                    { return none }
func hostDestroyQueries(*hostDevice, uint64)                                                   {}
func hostCmdResetQueries(*hostDevice, VkCommandBuffer, uint64, uint32)                         {}
func hostCmdTimestamp(*hostDevice, VkCommandBuffer, uint64, uint32)                            {}
func hostQueryResults(*hostDevice, uint64, uint32, *uint64) Result                             { return none }
func hostCmdLabel(*hostDevice, VkCommandBuffer, string)                                        {}
func hostCmdLabelEnd(*hostDevice, VkCommandBuffer)                                             {}

func hostCreateCubin(*hostDevice, []byte, *uint64) Result                                { return none }
func hostDestroyCubin(*hostDevice, uint64)                                               {}
func hostCreateFunction(*hostDevice, uint64, string, *uint64) Result                     { return none }
func hostDestroyFunction(*hostDevice, uint64)                                            {}
func hostCmdLaunch(*hostDevice, VkCommandBuffer, uint64, *CubinLaunch, []byte, []uint32) {}
