package cudapath

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"vkattn/attention"
	"vkattn/internal/backend"
	"vkattn/internal/errs"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// DeviceOptions say which CUDA device OpenDevice opens. The zero value is the driver's first.
type DeviceOptions struct {
	// Device is an ordinal in the list of Devices, which CUDA_VISIBLE_DEVICES restricts, or a UUID as nvidia-smi prints
	// it: "0", "GPU-7b5b4a1e-...".
	Device string
	// Context is a CUcontext of the caller's, which outlives the device; Device is then its device or "". 0 takes the
	// primary context of the device, which the CUDA runtime and PyTorch use.
	Context uint64
}

// OpenDevice opens a CUDA device for package attention. No Vulkan driver takes part. The device has tier cuda alone: an
// operation that its kernels do not compute is refused with an error that matches vk.ErrUnsupported and names what they
// lack. Tensors lie in CUDA memory, the device's own or the caller's (WrapMemory). Streams are CUDA streams, the device's
// own or the caller's (WrapStream), and calls begin at once.
//
// Once a call of the same Config and shape has run on a stream, another one neither allocates nor waits, so that a CUDA
// graph can capture the stream. A call on a captured stream that would have to do either is refused. Op.Prepare and
// Op.PrepareBackward do it before.
func OpenDevice(o DeviceOptions) (*attention.Device, error) {
	const op = "open a CUDA device"
	l, err := load()
	if err != nil {
		return nil, err
	}
	t, err := embedded()
	if err != nil {
		return nil, err
	}
	info, err := l.find(op, o.Device)
	if err != nil {
		return nil, err
	}
	c := &Context{lib: l, table: t, handle: o.Context, foreign: o.Context != 0,
		modules: map[string]*module{}, kernels: map[*Kernel]*kernel{}, owned: map[resource]struct{}{}}
	if c.foreign {
		var device int32
		if err := l.check("cuCtxGetDevice", l.api.in(o.Context, l.api.cuCtxGetDevice, uintptr(unsafe.Pointer(&device)))); err != nil {
			return nil, err
		}
		of := info
		for i := range l.devices {
			if l.devices[i].device == int(device) {
				of = &l.devices[i]
			}
		}
		if o.Device != "" && of != info {
			return nil, invalid(op, "the context is of device %d, %s, not of %q", of.Ordinal, of.Name, o.Device)
		}
		info = of
	} else if err := l.check("cuDevicePrimaryCtxRetain", l.api.retainContext(int32(info.device), &c.handle)); err != nil {
		return nil, err
	}
	c.info = *info
	d := &device{c: c}
	return backend.NewDevice(d).(*attention.Device), nil
}

// find returns the device of an ordinal or UUID.
func (l *library) find(op, name string) (*DeviceInfo, error) {
	if len(l.devices) == 0 {
		return nil, unsupported(op, "the CUDA driver lists no device")
	}
	if name == "" {
		return &l.devices[0], nil
	}
	if n, err := strconv.Atoi(name); err == nil {
		if n < 0 || n >= len(l.devices) {
			return nil, refuse(op, vk.ErrNoDevice, "no CUDA device %d: there are %d", n, len(l.devices))
		}
		return &l.devices[n], nil
	}
	id, err := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(name, "GPU-"), "-", ""))
	if err != nil || len(id) != 16 {
		return nil, invalid(op, "%q is neither the ordinal of a CUDA device nor a UUID", name)
	}
	for i := range l.devices {
		if l.devices[i].UUID == [16]byte(id) {
			return &l.devices[i], nil
		}
	}
	return nil, refuse(op, vk.ErrNoDevice, "none of %d CUDA devices has the UUID %s", len(l.devices), name)
}

// of returns the backend of a device that OpenDevice opened.
func of(op string, d *attention.Device) (*device, error) {
	if d == nil {
		return nil, invalid(op, "no device")
	}
	b, ok := backend.HomeOf(d).Backend().(*device)
	if !ok {
		return nil, invalid(op, "%v was not opened by OpenDevice", d)
	}
	return b, nil
}

// ContextOf returns the CUDA context of a device that OpenDevice opened, nil of any other. It is closed with the device.
func ContextOf(d *attention.Device) *Context {
	b, err := of("ContextOf", d)
	if err != nil {
		return nil
	}
	return b.c
}

// WrapMemory is memory of the caller's on a device that OpenDevice opened, from a CUdeviceptr on. It stays the caller's,
// who keeps it until the calls that use it are done; Close does nothing.
func WrapMemory(d *attention.Device, address, bytes uint64) (*attention.Memory, error) {
	const op = "WrapMemory"
	b, err := of(op, d)
	switch {
	case err != nil:
		return nil, err
	case address == 0 && bytes > 0:
		return nil, invalid(op, "no address")
	case address+bytes < address:
		return nil, invalid(op, "%s at %#x end past 2^64", hostmem.Bytes(bytes), address)
	}
	return b.memory(address, bytes, true).named, nil
}

// WrapStream is a CUstream of the caller's on a device that OpenDevice opened; 0 is CUDA's default stream. It stays the
// caller's and must be of the device's context. Close, before the caller destroys it, frees what calls have allocated
// for the stream.
func WrapStream(d *attention.Device, stream uint64) (*attention.Stream, error) {
	const op = "WrapStream"
	b, err := of(op, d)
	if err != nil {
		return nil, err
	}
	if err := b.c.enter(op); err != nil {
		return nil, err
	}
	defer b.c.leave()
	var context uint64
	if err := b.c.call("cuStreamGetCtx", b.c.lib.api.cuStreamGetCtx, uintptr(stream), uintptr(unsafe.Pointer(&context))); err != nil {
		return nil, err
	}
	if context != b.c.handle {
		return nil, invalid(op, "the stream is of another context than the device")
	}
	return problem.NewStream(&deviceStream{Stream: &Stream{c: b.c, handle: stream, wrapped: true}, d: b}), nil
}

// StreamOf returns the CUDA stream of a stream of a device that OpenDevice opened, nil of any other. It is closed with
// the stream.
func StreamOf(s *attention.Stream) *Stream {
	if d, ok := problem.StreamBackingOf(s).(*deviceStream); ok {
		return d.Stream
	}
	return nil
}

// device implements backend.Device.
type device struct {
	c      *Context
	spares spares
}

func (d *device) String() string           { return d.c.info.String() }
func (d *device) Vulkan() *vk.Device       { return nil }
func (d *device) Shared() backend.Stream   { return nil }
func (d *device) Kernels() backend.Kernels { return d }

func (d *device) NewMemory(n int64) (backend.Memory, error) {
	at, err := d.c.allocate("Tensor", uint64(n))
	if err != nil {
		return nil, err
	}
	m := d.memory(at, uint64(n), false)
	d.c.own(m)
	return m, nil
}

// allocate returns ordinary memory.
func (c *Context) allocate(op string, bytes uint64) (address uint64, err error) {
	if err := c.enter(op); err != nil {
		return 0, err
	}
	defer c.leave()
	if bytes > c.info.Memory {
		return 0, refuse(op, vk.ErrOutOfMemory, "%s, the device has %s", hostmem.Bytes(bytes), hostmem.Bytes(c.info.Memory))
	}
	if err := c.call("cuMemAlloc", c.lib.api.cuMemAlloc_v2, uintptr(unsafe.Pointer(&address)), uintptr(bytes)); err != nil {
		if e, ok := err.(*Error); ok {
			e.Detail = hostmem.Bytes(bytes)
		}
		return 0, err
	}
	return address, nil
}

func (d *device) NewStream(string) (backend.Stream, error) {
	s, err := d.c.NewStream()
	if err != nil {
		return nil, err
	}
	return &deviceStream{Stream: s, d: d}, nil
}

// Close waits for the work of the device's own streams and gives back all that it holds.
func (d *device) Close() error {
	ctx, cancel := d.c.dev.Bounded()
	defer cancel()
	err := d.c.drain(ctx)
	d.c.end()
	return err
}

// deviceMemory implements backend.Memory and problem.Backing.
type deviceMemory struct {
	d             *device
	address, size uint64
	wrapped       bool // the caller's
	named         *problem.Memory
	closed        atomic.Bool
}

func (d *device) memory(address, size uint64, wrapped bool) *deviceMemory {
	m := &deviceMemory{d: d, address: address, size: size, wrapped: wrapped}
	m.named = problem.NewMemory(m)
	return m
}

func (m *deviceMemory) Device() any            { return m.d }
func (m *deviceMemory) Address() uint64        { return m.address }
func (m *deviceMemory) Size() uint64           { return m.size }
func (m *deviceMemory) Tensor() problem.Tensor { return problem.Tensor{Memory: m.named} }

// open refuses memory that is closed: an address of it may be another memory's by now.
func (m *deviceMemory) open() error {
	if m.closed.Load() {
		return errs.Closed("the memory")
	}
	return nil
}

func (m *deviceMemory) Clear(s backend.Stream) error {
	return s.(*deviceStream).Fill(m.address, 0, m.size)
}

func (m *deviceMemory) Write(s backend.Stream, at int64, b []byte) error {
	if err := m.open(); err != nil {
		return err
	}
	return s.(*deviceStream).CopyFromHost(m.address+uint64(at), b)
}

func (m *deviceMemory) Read(ctx context.Context, s backend.Stream, at int64, b []byte) error {
	if err := m.open(); err != nil {
		return err
	}
	if err := s.Wait(ctx); err != nil {
		return err
	}
	return s.(*deviceStream).CopyToHost(b, m.address+uint64(at))
}

func (m *deviceMemory) Copy(s backend.Stream, to, from, n int64) error {
	return s.(*deviceStream).Copy(m.address+uint64(to), m.address+uint64(from), uint64(n))
}

// Close waits for the work of the context and frees the memory.
func (m *deviceMemory) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	_ = m.named.Close() // which comes back here
	if !m.wrapped {
		m.d.c.drop(m)
	}
	return nil
}

func (m *deviceMemory) destroy() { m.d.c.lib.api.freePlain(m.d.c.handle, m.address) }

// deviceStream implements backend.Stream.
type deviceStream struct {
	*Stream
	d         *device
	workspace workspace
}

func (s *deviceStream) Device() backend.Device { return s.d }
func (s *deviceStream) Vulkan() *vk.Stream     { return nil }
func (s *deviceStream) Submit() error          { return s.usable("Submit") }

func (s *deviceStream) usable(op string) error {
	if err := s.use(op); err != nil {
		return err
	}
	s.c.leave()
	return nil
}

func (s *deviceStream) Wait(ctx context.Context) error {
	if err := s.notCaptured("Wait", "it waits"); err != nil {
		return err
	}
	return s.Stream.Wait(ctx)
}

// Close waits for the work of a stream of the device's own; that of a stream of the caller's it waits for if it frees
// memory.
func (s *deviceStream) Close() (err error) {
	if !s.wrapped && !s.closed.Load() {
		ctx, cancel := s.c.dev.Bounded()
		defer cancel()
		if err = s.Wait(ctx); errors.Is(err, problem.ErrUnsupported) || errors.Is(err, vk.ErrClosed) {
			err = nil // it is being captured, or the device is closed
		}
	}
	s.workspace.close()
	return errors.Join(err, s.Stream.Close())
}

// capturing reports whether the stream is being captured into a graph.
func (s *deviceStream) capturing(op string) (bool, error) {
	if err := s.use(op); err != nil {
		return false, err
	}
	defer s.c.leave()
	on, r := s.c.lib.api.capturing(s.c.handle, s.handle)
	return on, s.c.check("cuStreamIsCapturing", r)
}

// notCaptured refuses what must not happen while the stream is being captured. The driver would end the capture.
func (s *deviceStream) notCaptured(op, why string) error {
	switch on, err := s.capturing(op); {
	case err != nil:
		return err
	case on:
		return fmt.Errorf("%w: %s: the stream is being captured into a CUDA graph, and %s", problem.ErrUnsupported, op, why)
	}
	return nil
}
