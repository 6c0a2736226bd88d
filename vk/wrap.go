package vk

import (
	"time"
	"unsafe"
)

// External describes a device that the caller owns. Package vk/goki converts handles of
// goki/vulkan; those of another binding are converted as numbers.
type External struct {
	Instance       VkInstance
	PhysicalDevice VkPhysicalDevice
	Device         VkDevice
	Queue          VkQueue // of a family with compute
	QueueFamily    uint32
	// APIVersion is the version given to vkCreateInstance; 0 means 1.1.
	APIVersion uint32
	// Enabled has the features that the device was created with: the booleans of Caps;
	// its other fields are ignored. TimelineSemaphore is required. A feature that the
	// device does not support is dropped. A feature that was not enabled violates
	// Vulkan's valid usage; Wrap refuses it where its functions are missing.
	Enabled Caps
	// GetInstanceProcAddr is the C function vkGetInstanceProcAddr; nil uses the loader's.
	GetInstanceProcAddr unsafe.Pointer
	// LockQueue and UnlockQueue are called around each use of Queue. A program that
	// uses the queue too must set both.
	LockQueue, UnlockQueue func()
	// PipelineCache and Timeout as in Options.
	PipelineCache string
	Timeout       time.Duration
}

// Wrap returns a Device on the caller's objects, which must live until it is closed. Close
// destroys what was made through the Device but not the caller's objects. The error
// matches ErrInvalid if a handle is missing, the queue family has no compute or Enabled has
// features that were not enabled, and ErrUnsupported if the device or its enabled features
// do not suffice. It names all that is missing, and says of each feature whether it is not
// supported or not enabled. [Requirements] has what to enable.
func Wrap(e External) (*Device, error) {
	if e.Instance == 0 || e.PhysicalDevice == 0 || e.Device == 0 || e.Queue == 0 {
		return nil, invalid("Wrap", "Instance, PhysicalDevice, Device and Queue are all needed")
	}
	if (e.LockQueue == nil) != (e.UnlockQueue == nil) {
		return nil, invalid("Wrap", "LockQueue and UnlockQueue come together")
	}
	if e.APIVersion == 0 {
		e.APIVersion = 1<<22 | 1<<12
	}
	get := e.GetInstanceProcAddr
	if get == nil {
		var err error
		if get, err = GetInstanceProcAddr(); err != nil {
			return nil, err
		}
	}
	in, missing, r := hostWrapInstance(get, e.Instance, e.APIVersion, e.Enabled.DebugUtils)
	switch {
	case len(missing) > 0:
		return nil, functionsError("Wrap", missing, true)
	case r != ResultSuccess:
		return nil, &Error{Op: "Wrap", Result: r}
	}
	d, err := wrap(in, e)
	if err != nil {
		closeInstance(in)
		return nil, err
	}
	return d, nil
}

func wrap(in *hostInstance, e External) (*Device, error) {
	index := -1
	if list, err := physicalDevices(in); err == nil {
		for i, h := range list {
			if h == e.PhysicalDevice {
				index = i
			}
		}
	}
	p := newProbe(in, e.PhysicalDevice, index)
	if p.info.failed != nil {
		return nil, p.info.failed
	}
	bits, computes := hostTimestampBits(in, e.PhysicalDevice, e.QueueFamily)
	p.info.Caps.Limits.TimestampValidBits = bits
	p.info.queueFamily = e.QueueFamily
	// Properties, unlike features, do not depend on what the caller has enabled.
	e.Enabled.ExternalMemoryDedicated = p.info.Caps.ExternalMemoryDedicated
	var enabled Caps
	enabled.setBits(e.Enabled.bits() & p.info.Caps.bits())
	c, missing, r := hostWrapDevice(in, &e, enabled.bits())
	var gaps []error // all of them
	switch why := unusable(&p.info); {
	case why != "":
		gaps = append(gaps, unsupported("Wrap", "not supported by %s: %s", p.info.Name, why))
	case !e.Enabled.TimelineSemaphore:
		gaps = append(gaps, unsupported("Wrap", "the device supports timelineSemaphore, which is not enabled: create the device with it, and set it in Enabled"))
	}
	if !computes {
		gaps = append(gaps, invalid("Wrap", "queue family %d has no compute", e.QueueFamily))
	}
	if len(missing) > 0 {
		gaps = append(gaps, functionsError("Wrap", missing, true))
	}
	switch {
	case len(gaps) > 0:
		hostDestroyDevice(c)
		return nil, joinErrors(gaps)
	case r != ResultSuccess:
		return nil, &Error{Op: "Wrap", Result: r}
	}
	d := newDevice(in, c, p, enabled)
	d.timeout = timeoutOf(e.Timeout)
	d.lockQueue, d.unlockQueue = e.LockQueue, e.UnlockQueue
	d.unguarded = e.LockQueue == nil
	d.debug, d.stats = enabled.DebugUtils, enabled.PipelineExecutable
	d.loadPipelineCache(e.PipelineCache)
	return d, nil
}

// QueueIsUnguarded reports whether the device was wrapped without LockQueue, so that the
// caller may use the queue at any time. Code that works on such a device must submit only
// when the caller asks for it.
func (d *Device) QueueIsUnguarded() bool { return d != nil && d.unguarded }
