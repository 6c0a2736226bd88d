// Addresses of the commands of Vulkan.

package vk

import (
	"reflect"
	"strings"
	"unsafe"

	"vkattn/internal/ccall"
)

// instanceCommands are those of an instance. A field is called as its command is, without the prefix vk. Tags:
// suffixes are those to try, for commands that an extension has first defined; optional ones may be missing.
type instanceCommands struct {
	DestroyInstance                                                  uintptr
	EnumeratePhysicalDevices                                         uintptr
	GetPhysicalDeviceProperties                                      uintptr
	GetPhysicalDeviceProperties2                                     uintptr
	GetPhysicalDeviceFeatures2                                       uintptr
	GetPhysicalDeviceMemoryProperties2                               uintptr
	GetPhysicalDeviceQueueFamilyProperties                           uintptr
	EnumerateDeviceExtensionProperties                               uintptr
	GetPhysicalDeviceExternalBufferProperties                        uintptr
	GetPhysicalDeviceExternalSemaphoreProperties                     uintptr
	CreateDevice                                                     uintptr
	GetDeviceProcAddr                                                uintptr
	GetPhysicalDeviceCooperativeMatrixPropertiesKHR                  uintptr `optional:"yes"`
	GetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV uintptr `optional:"yes"`
	GetPhysicalDeviceCalibrateableTimeDomains                        uintptr `optional:"yes" suffixes:"KHR,EXT"`
	CreateDebugUtilsMessengerEXT                                     uintptr `optional:"yes"`
	DestroyDebugUtilsMessengerEXT                                    uintptr `optional:"yes"`
}

// deviceCommands are those of a device. Tags: as above; needs is the field of Caps that needs the command, every device
// needs the others.
type deviceCommands struct {
	DestroyDevice  uintptr
	GetDeviceQueue uintptr
	DeviceWaitIdle uintptr
	QueueSubmit    uintptr

	AllocateMemory              uintptr
	FreeMemory                  uintptr
	MapMemory                   uintptr
	CreateBuffer                uintptr
	DestroyBuffer               uintptr
	GetBufferMemoryRequirements uintptr
	BindBufferMemory            uintptr

	CreateSemaphore          uintptr
	DestroySemaphore         uintptr
	GetSemaphoreCounterValue uintptr `suffixes:",KHR"`
	WaitSemaphores           uintptr `suffixes:",KHR"`
	SignalSemaphore          uintptr `suffixes:",KHR"`

	CreateShaderModule     uintptr
	DestroyShaderModule    uintptr
	CreatePipelineCache    uintptr
	DestroyPipelineCache   uintptr
	GetPipelineCacheData   uintptr
	CreatePipelineLayout   uintptr
	DestroyPipelineLayout  uintptr
	CreateComputePipelines uintptr
	DestroyPipeline        uintptr

	CreateDescriptorSetLayout  uintptr
	DestroyDescriptorSetLayout uintptr
	CreateDescriptorPool       uintptr
	DestroyDescriptorPool      uintptr
	ResetDescriptorPool        uintptr
	AllocateDescriptorSets     uintptr
	UpdateDescriptorSets       uintptr

	CreateCommandPool      uintptr
	DestroyCommandPool     uintptr
	ResetCommandPool       uintptr
	AllocateCommandBuffers uintptr
	BeginCommandBuffer     uintptr
	EndCommandBuffer       uintptr
	CreateQueryPool        uintptr
	DestroyQueryPool       uintptr
	GetQueryPoolResults    uintptr

	CmdBindPipeline       uintptr
	CmdBindDescriptorSets uintptr
	CmdPushConstants      uintptr
	CmdDispatch           uintptr
	CmdPipelineBarrier    uintptr
	CmdCopyBuffer         uintptr
	CmdFillBuffer         uintptr
	CmdResetQueryPool     uintptr
	CmdWriteTimestamp     uintptr

	GetBufferDeviceAddress             uintptr `needs:"BufferDeviceAddress" suffixes:",KHR"`
	GetMemoryFdKHR                     uintptr `needs:"ExternalMemoryFd"`
	GetSemaphoreFdKHR                  uintptr `needs:"ExternalSemaphoreFd"`
	ImportSemaphoreFdKHR               uintptr `needs:"ExternalSemaphoreFd"`
	GetPipelineExecutablePropertiesKHR uintptr `needs:"PipelineExecutable"`
	GetPipelineExecutableStatisticsKHR uintptr `needs:"PipelineExecutable"`
	GetCalibratedTimestamps            uintptr `needs:"CalibratedTimestamps" suffixes:"KHR,EXT"`

	CreateCuModuleNVX    uintptr `needs:"BinaryImport"`
	DestroyCuModuleNVX   uintptr `needs:"BinaryImport"`
	CreateCuFunctionNVX  uintptr `needs:"BinaryImport"`
	DestroyCuFunctionNVX uintptr `needs:"BinaryImport"`
	CmdCuLaunchKernelNVX uintptr `needs:"BinaryImport"`

	SetDebugUtilsObjectNameEXT uintptr `needs:"DebugUtils"`
	CmdBeginDebugUtilsLabelEXT uintptr `needs:"DebugUtils"`
	CmdEndDebugUtilsLabelEXT   uintptr `needs:"DebugUtils"`
}

// loadCommands fills a table by get, which returns 0 for a command that is not there, and lists what is missing.
func loadCommands(table any, features uint64, get func(name *byte) uintptr) (missing []missingFunction) {
	v := reflect.ValueOf(table).Elem()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		needs := field.Tag.Get("needs")
		if needs != "" && features>>featureOf(needs)&1 == 0 {
			continue
		}
		var address uintptr
		suffixes := strings.Split(field.Tag.Get("suffixes"), ",")
		for _, suffix := range suffixes {
			if address == 0 {
				address = get(cstring("vk" + field.Name + suffix))
			}
		}
		v.Field(i).SetUint(uint64(address))
		if address == 0 && field.Tag.Get("optional") == "" {
			missing = append(missing, missingFunction{"vk" + field.Name + suffixes[0], needs})
		}
	}
	return missing
}

// instanceCommand is the address of a command of an instance, with 0 of one that needs none; 0: there is none.
func instanceCommand(get unsafe.Pointer, instance VkInstance, name *byte) uintptr {
	return ccall.Call(uintptr(get), uintptr(instance), uintptr(unsafe.Pointer(name)))
}
