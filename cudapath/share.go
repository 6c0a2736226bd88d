package cudapath

import (
	"vkattn/internal/problem"
	"vkattn/vk"
)

// bufferKey is the key of a reached attached to a buffer.
var bufferKey any = new(struct{ _ int })

// reached is the import of a Vulkan buffer into CUDA. It lives as long as the buffer.
type reached struct {
	address uint64
	memory  *Memory // CUDA's own memory; nil: an import
	c       *Context
	handle  uint64 // of the import
}

// Address is the CUdeviceptr of the first byte of a Vulkan buffer that was made with
// Exportable or by Memory.Buffer. The first call imports the buffer's memory; the address
// is valid until the buffer is destroyed. Hold the buffer until CUDA work that uses the
// address has finished (see keep of Turn).
func (c *Context) Address(b *vk.Buffer) (uint64, error) {
	const op = "Address"
	if c == nil || c.lib == nil {
		return 0, unmade(op)
	}
	if b == nil || c.dev == nil || b.Device() != c.dev {
		return 0, invalid(op, "no buffer of the context's device")
	}
	if r, ok := b.Attached(bufferKey).(*reached); ok {
		return r.address, nil
	}
	if !b.Exportable() {
		return 0, unsupported(op, "the buffer was not made with Exportable")
	}
	v, err := b.Attach(bufferKey, func() (vk.Attached, error) { return c.importBuffer(op, b) })
	if err != nil {
		return 0, err
	}
	return v.(*reached).address, nil
}

// addressOf is the CUdeviceptr of memory of a call.
func (c *Context) addressOf(v *problem.CUDAVector) (uint64, error) {
	if v.Memory != nil {
		return problem.BackingOf(v.Memory).Address() + v.Offset, nil
	}
	at, err := c.Address(v.Buffer)
	return at + v.Offset, err
}

// reaches reports whether Address would return an address, without importing anything.
func reaches(b *vk.Buffer) bool { return b.Exportable() || b.Attached(bufferKey) != nil }

func (c *Context) importBuffer(op string, b *vk.Buffer) (*reached, error) {
	fd, err := b.ExportFD()
	if err != nil {
		return nil, err
	}
	if err := c.enter(op); err != nil {
		closeFD(fd)
		return nil, err
	}
	defer c.leave()
	a := b.Allocation()
	r := &reached{c: c}
	var address uint64
	name, code := c.lib.api.importMemory(c.handle, fd, a.Bytes, a.Dedicated, &r.handle, &address)
	if err := c.check(name, code); err != nil {
		if r.handle == 0 {
			closeFD(fd) // the import failed and did not take it
		} else {
			r.destroy()
		}
		return nil, err
	}
	r.address = address + a.Offset
	c.own(r)
	return r, nil
}

// Detach ends the import when the buffer is destroyed.
func (r *reached) Detach() {
	if r.memory != nil {
		r.memory.release()
		return
	}
	r.c.drop(r)
}

func (r *reached) destroy() {
	r.c.lib.api.dropMemory(r.c.handle, r.handle, r.address)
}
