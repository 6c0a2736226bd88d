package vk

import (
	"sync/atomic"
)

// ErrNoBinaryImport: the device has no VK_NVX_binary_import, or its owner did not enable
// it. Such an error matches ErrUnsupported too.
var ErrNoBinaryImport error = &Error{Op: "VK_NVX_binary_import", Err: ErrUnsupported, Detail: "the device does not launch cubins"}

// Cubin is a module of CUDA kernels that a device launches inside its command buffers
// (VK_NVX_binary_import). It is safe for concurrent use.
type Cubin struct {
	refs
	d       *Device
	name    string
	handle  uint64
	kernels map[string]*cubinKernel
	closed  atomic.Bool
	gone    bool // destroyed; under Device.mu
}

// NewCubin loads a cubin, which must be compiled for the architecture of the device: the
// extension does not report that architecture. name appears in errors. The cubin is not
// used after the call. The error matches ErrNoBinaryImport without Caps.BinaryImport and
// ErrInvalid if the bytes are no cubin. The caller closes the Cubin.
func (d *Device) NewCubin(name string, cubin []byte) (*Cubin, error) {
	const op = "NewCubin"
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.leave()
	if !d.info.Caps.BinaryImport {
		why := d.info.Caps.Without(Need{"VK_NVX_binary_import", func(c *Caps) bool { return c.BinaryImport }})
		return nil, refuse(op, ErrNoBinaryImport, "%s: %s: %s", name, d.info.Name, why)
	}
	kernels, err := parseCubin(cubin)
	if err != nil {
		return nil, invalid(op, "%s: %v", name, err)
	}
	m := &Cubin{d: d, name: name, kernels: kernels}
	if err := d.check("vkCreateCuModuleNVX", hostCreateCubin(d.c, cubin, &m.handle)); err != nil {
		err.(*Error).Detail = name
		return nil, err
	}
	m.n.Store(1)
	d.mu.Lock()
	d.cubins[m] = struct{}{}
	d.mu.Unlock()
	return m, nil
}

// Close releases the module. It is destroyed when its functions are.
func (m *Cubin) Close() error {
	if m == nil || m.closed.Swap(true) || !m.d.stay() {
		return nil
	}
	defer m.d.life.RUnlock()
	m.release()
	return nil
}

func (m *Cubin) retain() error {
	if m.closed.Load() || !m.acquire() {
		return closed("use of a cubin")
	}
	return nil
}

func (m *Cubin) release() {
	if m.drop() {
		m.d.mu.Lock()
		defer m.d.mu.Unlock()
		delete(m.d.cubins, m)
		m.destroy()
	}
}

func (m *Cubin) destroy() {
	if !m.gone {
		m.d.c.destroy(m.d.c.DestroyCuModuleNVX, m.handle)
	}
	m.gone = true
}

// CubinFunction is a kernel of a Cubin. It is safe for concurrent use.
type CubinFunction struct {
	refs
	cubin  *Cubin // held
	name   string
	handle uint64
	kernel *cubinKernel
	closed atomic.Bool
	gone   bool // destroyed; under Device.mu
}

// Function returns a kernel by name. It holds the module until it is destroyed. The error
// matches ErrInvalid if the cubin has no such kernel, and ErrUnsupported if the extension
// cannot launch it: one with cluster dimensions, or with more parameters than this package
// passes on. The caller closes the function.
func (m *Cubin) Function(name string) (*CubinFunction, error) {
	const op = "Function"
	if m == nil {
		return nil, unmade(op)
	}
	d := m.d
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.leave()
	k := m.kernels[name]
	switch {
	case k == nil:
		return nil, invalid(op, "%s has no kernel %q", m.name, name)
	case k.cluster:
		return nil, unsupported(op, "%s: kernel %s needs cluster dimensions", m.name, name)
	case len(k.params) > maxParams || k.paramBytes > maxParamBytes:
		return nil, unsupported(op, "%s: kernel %s has %d parameters of %d bytes", m.name, name, len(k.params), k.paramBytes)
	}
	if err := m.retain(); err != nil {
		return nil, err
	}
	f := &CubinFunction{cubin: m, name: name, kernel: k}
	if err := d.check("vkCreateCuFunctionNVX", hostCreateFunction(d.c, m.handle, name, &f.handle)); err != nil {
		m.release()
		err.(*Error).Detail = m.name + ": " + name
		return nil, err
	}
	f.n.Store(1)
	d.mu.Lock()
	d.functions[f] = struct{}{}
	d.mu.Unlock()
	return f, nil
}

// device is the device of the function, nil for a zero CubinFunction.
func (f *CubinFunction) device() *Device {
	if f == nil || f.cubin == nil {
		return nil
	}
	return f.cubin.d
}

// Name is the name of the kernel.
func (f *CubinFunction) Name() string {
	if f == nil {
		return ""
	}
	return f.name
}

// ParamBytes is the sum of the sizes of the kernel's parameters.
func (f *CubinFunction) ParamBytes() int {
	if f.device() == nil {
		return 0
	}
	return int(f.kernel.paramBytes)
}

// Registers is the number of registers of a thread.
func (f *CubinFunction) Registers() int {
	if f.device() == nil {
		return 0
	}
	return int(f.kernel.registers)
}

// LocalBytes is the local memory of a thread: arrays, and registers that are spilled.
func (f *CubinFunction) LocalBytes() int {
	if f.device() == nil {
		return 0
	}
	return int(f.kernel.local)
}

// StaticSharedBytes is the shared memory that the kernel declares, with the KiB that the
// system reserves.
func (f *CubinFunction) StaticSharedBytes() int {
	if f.device() == nil {
		return 0
	}
	return int(f.kernel.shared)
}

// Close releases the function. It is destroyed when no work in flight uses it.
func (f *CubinFunction) Close() error {
	if f.device() == nil || f.closed.Swap(true) || !f.device().stay() {
		return nil
	}
	defer f.cubin.d.life.RUnlock()
	f.release()
	return nil
}

func (f *CubinFunction) retain() error {
	if f.closed.Load() || !f.acquire() {
		return closed("use of a function of a cubin")
	}
	return nil
}

func (f *CubinFunction) release() {
	if f.drop() {
		d := f.cubin.d
		d.mu.Lock()
		delete(d.functions, f)
		f.destroy()
		d.mu.Unlock()
		f.cubin.release()
	}
}

func (f *CubinFunction) destroy() {
	if !f.gone {
		f.cubin.d.c.destroy(f.cubin.d.c.DestroyCuFunctionNVX, f.handle)
	}
	f.gone = true
}

// destroyCubins destroys all functions and modules. The device is idle.
func (d *Device) destroyCubins() {
	for f := range d.functions {
		f.destroy()
	}
	for m := range d.cubins {
		m.destroy()
	}
	d.functions, d.cubins = nil, nil
}
