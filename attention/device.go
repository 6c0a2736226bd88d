package attention

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"vkattn/internal/arith"
	"vkattn/internal/backend"
	"vkattn/internal/errs"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// Device is where operations compute and tensors live: a Vulkan device, or the CPU. Its
// methods are safe for concurrent use.
//
// Calls that are given no stream run on the device's default stream, in the order in which
// they are made: each sees what the calls before it wrote. They begin at once and do not
// wait; Floats and Bytes of a [Tensor], and Wait, do.
type Device struct {
	b     backend.Device // nil: Open did not make the Device
	owned bool           // Close closes it
	why   error          // why Open took the CPU

	mu     sync.Mutex     // of the default stream
	stream *Stream        // nil until it is needed
	order  backend.Stream // of stream
	closed atomic.Bool
}

// usable reports why the device cannot be used.
func (d *Device) usable() error {
	switch {
	case d.backend() == nil:
		return errs.Unmade("Open")
	case d.closed.Load():
		return errs.Closed("the device")
	}
	return nil
}

// lock locks the default stream, unless the device cannot be used.
func (d *Device) lock() error {
	if err := d.usable(); err != nil {
		return err
	}
	d.mu.Lock()
	err := d.usable()
	if err != nil {
		d.mu.Unlock()
	}
	return err
}

// Options are the options of Open. The zero value opens the best GPU, or the CPU.
type Options struct {
	// CPU takes the CPU even where there is a GPU.
	CPU bool
	// Vulkan says which Vulkan device to open, and how. Unless it names a device, Open leaves
	// drivers of the CPU out: the CPU tier is faster.
	Vulkan vk.Options
	// CUDA opens a CUDA device without Vulkan, as cudapath.OpenDevice does, by its ordinal or UUID. The program imports
	// package cudapath, which may be for this alone.
	CUDA string
}

// Open opens the best device that can be used, or the CPU if there is none: see
// [Device.WhyCPU]. In a program that imports package cudapath, a CUDA device is one that can be used where Vulkan has no
// GPU; calls that its kernels do not compute are refused, and Options.CPU computes them. If o names a device that is not
// there, the error matches [vk.ErrNoDevice].
func Open(o Options) (*Device, error) {
	switch {
	case o.CPU:
		return &Device{b: backend.CPU{}}, nil
	case o.CUDA != "" && backend.OpenCUDA == nil:
		return nil, fmt.Errorf("%w: CUDA device %s: the program does not import package cudapath", ErrUnsupported, o.CUDA)
	case o.CUDA != "":
		return openCUDA(o.CUDA)
	}
	named := o.Vulkan.Device != "" && o.Vulkan.Device != "auto"
	o.Vulkan.GPUOnly = o.Vulkan.GPUOnly || !named
	dev, err := vk.Open(o.Vulkan)
	switch {
	case err == nil:
		return &Device{b: backend.Vulkan{Dev: dev}, owned: true}, nil
	case !named && errors.Is(err, vk.ErrNoDevice):
		if backend.OpenCUDA != nil {
			if d, err := openCUDA(""); err == nil {
				return d, nil
			}
		}
		return &Device{b: backend.CPU{}, why: err}, nil
	}
	return nil, err
}

func openCUDA(name string) (*Device, error) {
	d, err := backend.OpenCUDA(name)
	if err != nil {
		return nil, err
	}
	return d.(*Device), nil
}

// On is the Device of a Vulkan device that the caller has opened or wrapped, and that stays
// the caller's; of the CPU if dev is nil.
func On(dev *vk.Device) *Device {
	if dev == nil {
		return &Device{b: backend.CPU{}}
	}
	return &Device{b: backend.Vulkan{Dev: dev}}
}

// Vulkan returns the Vulkan device, nil where it is not Vulkan's. It stays the Device's.
func (d *Device) Vulkan() *vk.Device {
	if b := d.backend(); b != nil {
		return b.Vulkan()
	}
	return nil
}

// backend returns what the Device is over, nil if Open did not make it.
func (d *Device) backend() backend.Device {
	if d == nil {
		return nil
	}
	return d.b
}

// WhyCPU says why Open took the CPU; "" where the caller asked for it, and on a Vulkan device.
func (d *Device) WhyCPU() string {
	if d == nil || d.why == nil {
		return ""
	}
	return d.why.Error()
}

// String names the device.
func (d *Device) String() string {
	if b := d.backend(); b != nil {
		return b.String()
	}
	return "no device"
}

// Close closes the default stream and the device, unless it is the caller's. Operations and tensors of the
// device are closed before it.
func (d *Device) Close() error {
	if d.lock() != nil {
		return nil
	}
	defer d.mu.Unlock()
	d.closed.Store(true)
	var err error
	if d.stream != nil {
		err = d.stream.Close()
		d.stream = nil
	}
	if d.owned {
		err = errors.Join(err, d.b.Close())
	}
	return err
}

// Do makes calls with f on the default stream, which no other call uses meanwhile, and submits them. They come after
// the calls before them.
func (d *Device) Do(f func(s *Stream) error) error {
	if f == nil {
		return errs.Invalid("Do: no function")
	}
	if err := d.lock(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	s, err := d.defaultStream()
	if err != nil {
		return err
	}
	if err := f(s); err != nil {
		return err
	}
	return s.Submit()
}

// defaultStream returns the default stream; the caller holds mu.
func (d *Device) defaultStream() (*Stream, error) {
	if d.stream == nil {
		b, err := d.b.NewStream("attention")
		if err != nil {
			return nil, err
		}
		d.stream, d.order = problem.NewStream(b), b
	}
	return d.stream, nil
}

// Wait waits until the calls on the default stream are done.
func (d *Device) Wait(ctx context.Context) error {
	if ctx == nil {
		return errs.Invalid("Wait: no context")
	}
	if err := d.lock(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if d.stream == nil {
		return ctx.Err()
	}
	return d.stream.Wait(ctx)
}

// Tensor makes a packed tensor of zeros, of up to four sizes, outermost first: [batch, heads,
// rows, columns] for Q, K, V and O, [batch, heads, rows] for LSE. It knows its type and its
// shape, and calls check both. Its Close, or that of the device, frees it.
func (d *Device) Tensor(dtype DType, shape ...int) (Tensor, error) {
	n, err := bytesOf("Tensor", dtype, shape)
	if err != nil {
		return Tensor{}, err
	}
	m, store, err := d.memory(n)
	if err != nil {
		return Tensor{}, err
	}
	return problem.NewMade(m, store, dtype, shape...), nil
}

// Wrap is Tensor in memory of the caller's, where m has its first element and its strides. Host
// memory ends where the tensor ends. The memory stays the caller's, who keeps it until the calls that
// use it are done; Close does nothing.
func (d *Device) Wrap(m Tensor, dtype DType, shape ...int) (Tensor, error) {
	n, err := bytesOf("Wrap", dtype, shape)
	if err != nil {
		return Tensor{}, err
	}
	if err := d.usable(); err != nil {
		return Tensor{}, err
	}
	sizes, on := [4]int{1, 1, 1, int(n) / dtype.Size()}, tensors.Place{Vulkan: d.b.Vulkan()}
	if len(shape) == 4 {
		sizes = [4]int(shape)
	}
	if d.b.Kernels() != nil {
		on.Other = d.b
	}
	var l tensors.Layout
	l.Set("Wrap", &m, dtype, sizes[0], sizes[1], sizes[2], sizes[3])
	for _, check := range []func() error{l.CheckGiven, func() error { return l.CheckDevice(on) }, l.CheckBounds} {
		if err := check(); err != nil {
			return Tensor{}, err
		}
	}
	if end := m.Offset*l.Size + int64(l.SpanBytes()); on.CPU() && end != int64(len(m.Host)) {
		return Tensor{}, &ShapeError{Field: "Wrap", Got: fmt.Sprintf("%d bytes", len(m.Host)), Want: fmt.Sprintf("%d, for %v of %v", end, shape, dtype)}
	}
	return problem.NewMade(m, borrowed{&store{d, backend.MemoryOf(m)}}, dtype, shape...), nil
}

// bytesOf returns the size of a packed tensor that a method makes.
func bytesOf(method string, dtype DType, shape []int) (int64, error) {
	n := int64(dtype.Size())
	if n == 0 {
		return 0, &ShapeError{Field: method, Got: dtype, Want: "a storage type"}
	}
	if len(shape) == 0 || len(shape) > 4 {
		return 0, &ShapeError{Field: method, Got: fmt.Sprintf("%d dimensions", len(shape)), Want: "1 to 4"}
	}
	for i, size := range shape {
		ok := size >= 0
		if ok {
			n, ok = arith.Mul(n, int64(size))
		}
		if !ok {
			return 0, &ShapeError{Field: fmt.Sprintf("%s dimension %d", method, i), Got: size, Want: "at least 0, and a product below 2^63 bytes"}
		}
	}
	return n, nil
}

// Floats makes a vector of float32 numbers, such as slopes, sinks or scales.
func (d *Device) Floats(x ...float32) (Vector, error) {
	b := make([]byte, 4*len(x))
	F32.Encode(b, x)
	return d.vector(b)
}

// Ints makes a vector of int32 numbers, such as lengths or page indices.
func (d *Device) Ints(x ...int32) (Vector, error) {
	b := make([]byte, 4*len(x))
	for i, n := range x {
		b[4*i], b[4*i+1], b[4*i+2], b[4*i+3] = byte(n), byte(n>>8), byte(n>>16), byte(n>>24)
	}
	return d.vector(b)
}

func (d *Device) vector(b []byte) (Vector, error) {
	m, store, err := d.memory(int64(len(b)))
	if err != nil {
		return Vector{}, err
	}
	if err := store.Write(0, b); err != nil {
		return Vector{}, errors.Join(err, store.Close())
	}
	return Vector{Buffer: m.Buffer, Host: m.Host, Memory: m.Memory}, nil
}

// memory returns n bytes of zeros.
func (d *Device) memory(n int64) (Tensor, problem.Store, error) {
	if err := d.lock(); err != nil {
		return Tensor{}, nil, err
	}
	d.mu.Unlock()
	if n > math.MaxInt64-3 {
		return Tensor{}, nil, &ShapeError{Field: "Tensor", Got: fmt.Sprintf("%d bytes", n), Want: "fewer"}
	}
	m, err := d.b.NewMemory(max(4, (n+3)&^3)) // Vulkan has no empty buffers
	if err != nil {
		return Tensor{}, nil, err
	}
	if err := d.call("Tensor", nil, m.Clear); err != nil {
		return Tensor{}, nil, errors.Join(err, m.Close())
	}
	return m.Tensor(), &store{d, m}, nil
}

// store is the memory of a tensor, whose numbers pass the default stream.
type store struct {
	d *Device
	backend.Memory
}

func (m *store) Write(at int64, b []byte) error {
	return m.d.call("SetBytes", nil, func(s backend.Stream) error { return m.Memory.Write(s, at, b) })
}

func (m *store) Read(ctx context.Context, at int64, b []byte) error {
	return m.d.call("Bytes", nil, func(s backend.Stream) error { return m.Memory.Read(ctx, s, at, b) })
}

// borrowed is memory of the caller.
type borrowed struct{ *store }

func (borrowed) Close() error { return nil }

// sizes fills the Shape of a call from its tensors if it is zero and a Device made them.
func sizes(s *Shape, q, k *Tensor) error {
	if *s != (Shape{}) {
		return nil
	}
	a, b := q.Sizes(), k.Sizes()
	if len(a) != 4 || len(b) != 4 {
		return nil // the check of the Shape says what is missing
	}
	if a[0] != b[0] {
		return &ShapeError{Field: "K", Got: fmt.Sprintf("a tensor of %v", b), Want: fmt.Sprintf("the batch of Q, %v", a)}
	}
	*s = Shape{B: a[0], Hq: a[1], Hkv: b[1], Sq: a[2], Sk: b[2]}
	return nil
}
