package cudapath

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"vkattn/attention"
	"vkattn/vk"
)

// Tier cubin: the kernels that Vulkan launches in its command buffers
// (VK_NVX_binary_import). No CUDA context is involved, and no Context chooses them. This
// file finds and loads them, cubin_launch.go records them.

// cubinFamily is the family of these kernels in the launch tables.
const cubinFamily = "cubin"

// cubin finds the kernel of cubinFamily for a storage type, head dims and a mask, or
// says why there is none.
func (t *table) cubin(dtype string, d, dv int, causal bool) (k *Kernel, why string) {
	some := false
	for i := range t.cubins {
		k := &t.cubins[i]
		if k.DType != dtype || k.Causal != causal {
			continue
		}
		some = true
		if d <= k.D && dv <= k.DV {
			return k, ""
		}
	}
	if !some {
		return nil, "there is none for " + dtype
	}
	return nil, fmt.Sprintf("there is none for head dims %d/%d", d, dv)
}

// cubinImage reads the cubin of a kernel of cubinFamily.
func (t *table) cubinImage(k *Kernel) ([]byte, error) {
	image, err := t.image(k.Module, &DeviceInfo{Major: cubinMajor, Minor: cubinMinor})
	if err != nil {
		return nil, err
	}
	return image[:len(image)-1], nil // without the NUL for CUDA
}

// The compute capability of the cubins.
const cubinMajor, cubinMinor = 9, 0

// cubinBackend implements attention.Cubins.
type cubinBackend struct{}

func init() { attention.RegisterCubins(cubinBackend{}) }

// Check implements attention.Cubins.
func (cubinBackend) Check(dev *vk.Device, info *vk.DeviceInfo, t attention.DType) error {
	const op = "tier cubin"
	if !info.Caps.BinaryImport {
		return unsupported(op, "the device lacks VK_NVX_binary_import")
	}
	table, err := embedded()
	if err != nil {
		return err
	}
	k, why := table.cubin(t.String(), 1, 1, false)
	if k == nil {
		return unsupported(op, "%s", why)
	}
	if dev != nil {
		c, err := cubinsOf(dev)
		if err != nil {
			return err
		}
		return c.kernel(k).Load()
	}
	// The extension does not report the architecture. CUDA does, where it is installed.
	if d, err := Match(info); err == nil && (d.Major != cubinMajor || d.Minor != cubinMinor) {
		return unsupported(op, "its kernels are for compute capability %d.%d, the device has %d.%d", cubinMajor, cubinMinor, d.Major, d.Minor)
	}
	return nil
}

// Choose implements attention.Cubins. It loads the module of the kernel: whether the device
// runs code of this architecture shows only then.
func (cubinBackend) Choose(dev *vk.Device, p attention.CUDAProblem) (choice attention.CubinChoice, err error) {
	const op = "choose a cubin"
	if !dev.Caps().BinaryImport {
		return choice, unsupported(op, "the device lacks VK_NVX_binary_import")
	}
	c, err := cubinsOf(dev)
	if err != nil {
		return choice, err
	}
	k, why := c.table.cubin(p.DType.String(), p.HeadDim, p.HeadDimV, p.Causal)
	switch {
	case k == nil:
		return choice, unsupported(op, "%s", why)
	case p.HeadDim != p.HeadDimV:
		return choice, unsupported(op, "head dims %d/%d differ", p.HeadDim, p.HeadDimV)
	case p.Align < alignment:
		return choice, unsupported(op, "head dims, offsets and strides have to be multiples of %d elements, these are of %d", alignment, p.Align)
	case uint64(k.Shared) > uint64(dev.Caps().Limits.MaxSharedBytes):
		return choice, unsupported(op, "%d bytes of shared memory a CTA, the device has %d", k.Shared, dev.Caps().Limits.MaxSharedBytes)
	}
	n := k.tiles(&p.Shape, p.B).count()
	if n > math.MaxInt32 {
		return choice, unsupported(op, "%d tiles, it counts them in 31 bits", n)
	}
	one := c.kernel(k)
	if err := one.Load(); err != nil {
		return choice, err
	}
	return attention.CubinChoice{Kernel: one, Name: k.Entry, Rows: uint32(k.Rows), Cols: uint32(k.Cols), SharedBytes: uint64(k.Shared), Workgroups: n}, nil
}

// cubins has the kernels of cubinFamily on a Vulkan device. It belongs to the device, which
// destroys modules and functions at its end.
type cubins struct {
	dev     *vk.Device
	table   *table
	mu      sync.Mutex
	modules map[string]*vk.Cubin
	kernels map[*Kernel]*cubinKernel
}

// cubinsKey is the key of the cubins attached to a device.
var cubinsKey any = new(struct{ _ int })

// attachedCubins is the vk.Attached of cubins.
type attachedCubins struct{ c *cubins }

func (attachedCubins) Detach() {}

func cubinsOf(dev *vk.Device) (*cubins, error) {
	if a, ok := dev.Attached(cubinsKey).(attachedCubins); ok {
		return a.c, nil
	}
	v, err := dev.Attach(cubinsKey, func() (vk.Attached, error) {
		t, err := embedded()
		return attachedCubins{&cubins{dev: dev, table: t, modules: map[string]*vk.Cubin{}, kernels: map[*Kernel]*cubinKernel{}}}, err
	})
	if err != nil {
		return nil, err
	}
	return v.(attachedCubins).c, nil
}

// kernel returns the kernel of a table entry. Load makes it ready to be recorded.
func (c *cubins) kernel(k *Kernel) *cubinKernel {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kernels[k] == nil {
		c.kernels[k] = &cubinKernel{Kernel: k, c: c}
	}
	return c.kernels[k]
}

// cubinKernel implements attention.CubinKernel.
type cubinKernel struct {
	*Kernel
	c *cubins
	f atomic.Pointer[vk.CubinFunction] // nil: not loaded
}

// Load implements attention.CubinKernel. After a failure the next call tries again.
func (k *cubinKernel) Load() error {
	if k.f.Load() != nil {
		return nil
	}
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	if k.f.Load() != nil {
		return nil
	}
	m := k.c.modules[k.Module]
	if m == nil {
		image, err := k.c.table.cubinImage(k.Kernel)
		if err != nil {
			return err
		}
		if m, err = k.c.dev.NewCubin(k.Module, image); err != nil {
			return unsupported("tier cubin", "the device does not load code for compute capability %d.%d: %v", cubinMajor, cubinMinor, err)
		}
		k.c.modules[k.Module] = m
	}
	f, err := m.Function(k.Entry)
	if err != nil {
		return err
	}
	k.f.Store(f)
	return nil
}
