// Package backend says what a device of package attention is: memory, streams of calls, and the calls. Vulkan and CPU
// are two, whose calls package attention and its siblings plan and compute. A device of another kind, such as one of CUDA
// where there is no Vulkan, implements Device, Memory, Stream and Kernels, and NewDevice makes an attention.Device of it.
package backend

import (
	"context"

	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// Device is where tensors live and operations compute. Two values that are equal are one device.
type Device interface {
	String() string
	// Vulkan is the device whose tiers package attention plans and records; nil on a device that is not Vulkan's.
	Vulkan() *vk.Device
	// Kernels computes the calls of a device of another kind; nil on a Vulkan device and the CPU.
	Kernels() Kernels
	// NewMemory returns n bytes, a multiple of 4 above 0. They may hold anything. If there is too little memory, the
	// error matches vk.ErrOutOfMemory.
	NewMemory(n int64) (Memory, error)
	NewStream(name string) (Stream, error)
	// Shared is a stream that several goroutines may use at once; nil: a stream has one owner at a time.
	Shared() Stream
	Close() error
}

// Memory is memory of a device. What is done with it comes behind the earlier work of the stream.
type Memory interface {
	// Tensor names the memory. On a device with Kernels it is a problem.Memory, whose Backing is this Memory.
	Tensor() problem.Tensor
	Clear(s Stream) error
	// Write returns when b may be used again, Read when b is complete.
	Write(s Stream, at int64, b []byte) error
	Read(ctx context.Context, s Stream, at int64, b []byte) error
	// Copy copies n bytes to another place of the memory.
	Copy(s Stream, to, from, n int64) error
	// Close frees the memory once no work in flight uses it.
	Close() error
}

// Stream is an order of calls: each sees what the calls before it wrote. They may begin with Submit.
type Stream interface {
	problem.StreamBacking
	Device() Device
}

// CPU computes in host memory. Calls are done when they return, so any goroutine may use its streams.
type CPU struct{}

func (CPU) String() string                   { return "cpu" }
func (CPU) Vulkan() *vk.Device               { return nil }
func (CPU) Shared() Stream                   { return cpuStream{} }
func (CPU) NewStream(string) (Stream, error) { return cpuStream{}, nil }
func (CPU) Kernels() Kernels                 { return nil }
func (CPU) Close() error                     { return nil }

func (CPU) NewMemory(n int64) (Memory, error) {
	if err := vk.CheckHostMemory("Tensor", uint64(n)); err != nil {
		return nil, err
	}
	return hostMemory(make([]byte, n)), nil
}

// hostMemory is memory of the CPU; it is made of zeros.
type hostMemory []byte

func (m hostMemory) Tensor() problem.Tensor { return problem.Tensor{Host: m} }
func (m hostMemory) Clear(Stream) error     { return nil }
func (m hostMemory) Close() error           { return nil }

func (m hostMemory) Write(_ Stream, at int64, b []byte) error {
	copy(m[at:], b)
	return nil
}

func (m hostMemory) Read(_ context.Context, _ Stream, at int64, b []byte) error {
	copy(b, m[at:])
	return nil
}

func (m hostMemory) Copy(_ Stream, to, from, n int64) error {
	copy(m[to:to+n], m[from:])
	return nil
}

type cpuStream struct{}

func (cpuStream) Device() Device                 { return CPU{} }
func (cpuStream) Vulkan() *vk.Stream             { return nil }
func (cpuStream) Submit() error                  { return nil }
func (cpuStream) Wait(ctx context.Context) error { return ctx.Err() }
func (cpuStream) Close() error                   { return nil }

// Vulkan is a Vulkan device.
type Vulkan struct{ Dev *vk.Device }

func (v Vulkan) String() string     { return v.Dev.Info().Name }
func (v Vulkan) Vulkan() *vk.Device { return v.Dev }
func (v Vulkan) Shared() Stream     { return nil }
func (v Vulkan) Kernels() Kernels   { return nil }
func (v Vulkan) Close() error       { return v.Dev.Close() }

func (v Vulkan) NewMemory(n int64) (Memory, error) {
	b, err := v.Dev.NewBuffer(uint64(n), vk.BufferOptions{})
	if err != nil {
		return nil, err
	}
	return buffer{b}, nil
}

func (v Vulkan) NewStream(name string) (Stream, error) {
	s, err := v.Dev.NewStream(name)
	if err != nil {
		return nil, err
	}
	return VulkanStream{s}, nil
}

// buffer is memory of a Vulkan device.
type buffer struct{ *vk.Buffer }

func (b buffer) Tensor() problem.Tensor { return problem.Tensor{Buffer: b.Buffer} }

func (b buffer) Clear(s Stream) error {
	return s.Vulkan().Fill(vk.BufferRange{Buffer: b.Buffer, Size: b.Size()}, 0)
}

func (b buffer) Write(s Stream, at int64, from []byte) error {
	return s.Vulkan().Upload(b.Buffer, uint64(at), from)
}

func (b buffer) Read(ctx context.Context, s Stream, at int64, to []byte) error {
	return s.Vulkan().Download(ctx, to, b.Buffer, uint64(at))
}

func (b buffer) Copy(s Stream, to, from, n int64) error {
	return s.Vulkan().Copy(vk.BufferRange{Buffer: b.Buffer, Offset: uint64(to), Size: uint64(n)},
		vk.BufferRange{Buffer: b.Buffer, Offset: uint64(from), Size: uint64(n)})
}

// VulkanStream is a stream of a Vulkan device.
type VulkanStream struct{ *vk.Stream }

func (s VulkanStream) Device() Device     { return Vulkan{s.Stream.Device()} }
func (s VulkanStream) Vulkan() *vk.Stream { return s.Stream }

func (s VulkanStream) Submit() error {
	_, err := s.Stream.Submit()
	return err
}

// Kernels are the operations of a device that is neither Vulkan's nor the CPU. The errors of its methods, and of theirs,
// match problem.ErrUnsupported and name the reason where the device does not compute something. Operations are safe for
// concurrent use, and Close frees what they hold once no work in flight uses it.
type Kernels interface {
	// Attention has a valid Config.
	Attention(cfg problem.Config) (Attention, error)
	Append(cfg AppendConfig) (Append, error)
	Merge(cfg MergeConfig) (Merge, error)
}

// Attention computes calls whose arguments were checked: Forward and Backward begin them on a stream and may return
// before they are done. Prepare compiles and allocates what such a call takes, so that the call does neither. Plan and
// Prepare may be given a Shape without tensors: then these are packed, and gradients those of Q, K and V.
type Attention interface {
	Plan(a problem.Args) (problem.Plan, error)
	PlanBackward(a problem.BackwardArgs) (problem.BackwardPlan, error)
	Prepare(a problem.Args) error
	PrepareBackward(a problem.BackwardArgs) error
	Forward(s Stream, a problem.Args) error
	Backward(s Stream, a problem.BackwardArgs) error
	Close() error
}

// MergeConfig says what a Merge takes.
type MergeConfig struct {
	DType, StateType problem.DType // of O in the result and in the states
	HeadDim          int
	Sum              bool // the states are added, and have no LSE
}

// State is a tensor of some states at equal distances. The layout is the first state's.
type State struct {
	tensors.Layout
	States int64 // 0: left out
	Step   int64 // elements between consecutive states
}

// MergeCall is a call that was checked: states of First come before those of Second.
type MergeCall struct{ First, FirstLSE, Second, SecondLSE, O, LSE State }

// Merge computes what merge.Merge or merge.Sum documents.
type Merge interface {
	Prepare() error
	Merge(s Stream, c MergeCall) error
	Close() error
}

// AppendConfig says what an Append takes.
type AppendConfig struct {
	DType                  problem.DType
	HeadDim, HeadDimV      int
	KeyType, ValueType     problem.KVType
	RotaryDim, RotaryFirst int
	RotaryHalfSplit        bool
	CosSinOfDType          bool // Cos and Sin are of DType, not float32
}

// AppendCall is a call that was checked. A tensor that is left out has no Field.
type AppendCall struct {
	K, V, Q, Used, Lengths, Table, Cos, Sin tensors.Layout
	KCache, VCache, QOut, KScale, VScale    tensors.Layout

	Sequences   int
	Rows        int   // new rows per sequence; of all sequences if Packed
	Packed      bool  // Lengths is CuNew
	Counted     bool  // Lengths is UsedNew
	Limit       int64 // positions from Limit on are not written to the cache
	LimitQ      int64 // nor from LimitQ on to QOut
	OwnRowsQ    bool  // Lengths does not count rows of Q
	QAtUsed     bool  // all rows of Q are at position Used
	Paged       bool
	PageRows    int // keys per page; without pages, keys per sequence
	Pages       int
	TableStride int
}

// Append computes what kvcache.Append documents.
type Append interface {
	Prepare() error
	Append(s Stream, c AppendCall) error
	Close() error
}
