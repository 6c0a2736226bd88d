package cudapath

import (
	"fmt"

	"vkattn/attention"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// DeviceInfo describes a CUDA device.
type DeviceInfo struct {
	Ordinal      int // in the driver's list
	Name         string
	UUID         [16]byte // the same device in Vulkan has the same UUID
	Major, Minor int      // compute capability
	SMs          int      // streaming multiprocessors
	MaxShared    int      // largest shared memory of a block in bytes
	MaxThreads   int      // of a block
	Memory       uint64   // bytes
	Driver       int      // CUDA version of the driver: 12040 is 12.4
	Shares       bool     // its memory can be exported as file descriptors

	device int // CUdevice
}

// String returns text such as "NVIDIA H200 (compute capability 9.0, CUDA 13.0)".
func (d *DeviceInfo) String() string {
	if d == nil {
		return "no CUDA device"
	}
	return fmt.Sprintf("%s (compute capability %d.%d, CUDA %d.%d)", d.Name, d.Major, d.Minor, d.Driver/1000, d.Driver%1000/10)
}

// Available returns nil if this machine has CUDA, or else an error that matches
// vk.ErrUnsupported and says why not.
func Available() error {
	_, err := Devices()
	return err
}

// Devices lists the CUDA devices. Without the driver or a device the error matches
// vk.ErrUnsupported.
func Devices() ([]DeviceInfo, error) {
	l, err := load()
	if err != nil {
		return nil, err
	}
	if len(l.devices) == 0 {
		return nil, unsupported("Devices", "the CUDA driver lists no device")
	}
	return append([]DeviceInfo(nil), l.devices...), nil
}

// Match returns the CUDA device with the UUID of a Vulkan device. The error, which matches
// vk.ErrUnsupported, says why there is none or why the two cannot share memory and
// semaphores.
func Match(info *vk.DeviceInfo) (DeviceInfo, error) {
	d, _, err := match(info)
	return d, err
}

func match(info *vk.DeviceInfo) (DeviceInfo, *library, error) {
	const op = "Match"
	if info == nil {
		return DeviceInfo{}, nil, invalid(op, "no Vulkan device")
	}
	l, err := load()
	if err != nil {
		return DeviceInfo{}, nil, err
	}
	switch c := &info.Caps; {
	case !c.ExternalMemoryFd:
		return DeviceInfo{}, nil, unsupported(op, "the Vulkan device %s exports no memory", info.Name)
	case !sharesTimelines(c):
		return DeviceInfo{}, nil, unsupported(op, "the Vulkan device %s exports no timeline semaphores", info.Name)
	}
	for _, d := range l.devices {
		if d.UUID == info.UUID {
			return d, l, nil
		}
	}
	return DeviceInfo{}, nil, unsupported(op, "none of %d CUDA devices is the Vulkan device %s", len(l.devices), info.Name)
}

// sharesTimelines and exportTimeline are replaced in tests whose Vulkan driver runs on the
// CPU.
var (
	sharesTimelines = func(c *vk.Caps) bool { return c.ExternalSemaphoreFd }
	exportTimeline  = (*vk.Timeline).ExportFD
)

// Missing says why a Vulkan device cannot run a family of kernels (one of
// attention.CUDAKernels, "" for any) with a storage type, at head dim 64 and with aligned
// tensors. It returns "" if the device can. The device need not be open.
func Missing(info *vk.DeviceInfo, family string, t attention.DType) string {
	d, _, err := match(info)
	if err != nil {
		return err.Error()
	}
	return MissingOn(&d, family, t)
}

// MissingOn is Missing for a CUDA device, which need not be one of Vulkan.
func MissingOn(d *DeviceInfo, family string, t attention.DType) string {
	if d == nil {
		return "no CUDA device"
	}
	table, err := embedded()
	if err != nil {
		return err.Error()
	}
	p := problem.CUDAProblem{Shape: attention.Shape{B: 1, Hq: 1, Hkv: 1, Sq: 1024, Sk: 1024}, DType: t, HeadDim: 64, HeadDimV: 64,
		Align: 8, Kernel: family}
	if _, _, err := table.choose(d, &p); err != nil {
		return err.Error()
	}
	return ""
}
