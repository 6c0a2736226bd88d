package problem

import "vkattn/vk"

// Cubins is the backend of tier cubin: CUDA kernels that a Vulkan device launches inside
// its own command buffers (VK_NVX_binary_import), without CUDA. Package vkattn/cudapath
// implements it and registers itself when a program imports it. The methods are safe for
// concurrent use.
type Cubins interface {
	// Check reports why a device cannot run tier cubin with a storage type. dev is nil if
	// the device is not open: its architecture may then be unknown, and nil means that
	// nothing is known against it. The error matches vk.ErrUnsupported.
	Check(dev *vk.Device, info *vk.DeviceInfo, t DType) error
	// Choose finds the kernel for a problem, whatever its Sk. If there is none, the error
	// matches vk.ErrUnsupported and says why.
	Choose(dev *vk.Device, p CUDAProblem) (CubinChoice, error)
}

// CubinChoice is the chosen kernel.
type CubinChoice struct {
	Kernel      CubinKernel
	Name        string // of the entry point
	Rows, Cols  uint32 // of a CTA's tile
	Workgroups  uint64 // CTAs
	SharedBytes uint64
	Resident    int // of a decode kernel: CTAs that a multiprocessor runs at once
	// Slow: cooperative matrices are faster on this architecture. TierAuto does not take it.
	Slow bool
}

// CubinKernel is a kernel on a device.
type CubinKernel interface {
	// Load makes the kernel ready to be recorded.
	Load() error
	// Record records a launch of the kernel, without a barrier before or after it. The
	// commands hold the buffers until it has run. It allocates nothing.
	Record(c *vk.Commands, call *CUDACall) error
}
