package vk

import (
	"context"
	"time"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

type Options struct {
	Device             string
	Validation         bool
	SyncValidation     bool
	OnMessage          func(Message)
	Debug              bool
	PipelineCache      string
	Stats              bool
	RobustBufferAccess bool
	Extensions         []string
}

type Severity uint32

type Message struct {
	Severity Severity
	ID       string
	Number   int32
	Text     string
}

type External struct {
	Instance            vulkan.Instance
	PhysicalDevice      vulkan.PhysicalDevice
	Device              vulkan.Device
	Queue               vulkan.Queue
	QueueFamily         uint32
	APIVersion          uint32
	Enabled             Caps
	GetInstanceProcAddr unsafe.Pointer
	LockQueue           func()
	UnlockQueue         func()
	PipelineCache       string
}

type Device struct{}

func todo(op string) error { return unsupported(op, "not written yet") }

func Devices() ([]DeviceInfo, error)                     { return nil, todo("Devices") }
func Open(o Options) (*Device, error)                    { return nil, todo("Open") }
func Wrap(e External) (*Device, error)                   { return nil, todo("Wrap") }
func (d *Device) Info() *DeviceInfo                      { return nil }
func (d *Device) Caps() *Caps                            { return nil }
func (d *Device) Close() error                           { return nil }
func (d *Device) Closed() bool                           { return true }
func (d *Device) WaitIdle() error                        { return todo("WaitIdle") }
func (d *Device) ValidationMessages() []Message          { return nil }
func (d *Device) Memory() MemoryStats                    { return MemoryStats{} }
func (d *Device) VulkanInstance() vulkan.Instance        { return nil }
func (d *Device) VulkanPhysical() vulkan.PhysicalDevice  { return nil }
func (d *Device) VulkanDevice() vulkan.Device            { return nil }
func (d *Device) VulkanQueue() (vulkan.Queue, uint32)    { return nil, 0 }
func (d *Device) NewStream(name string) (*Stream, error) { return nil, todo("NewStream") }

type MemoryStats struct {
	Buffers                   int
	UsedBytes, AllocatedBytes uint64
	Allocations               int
}

type MemoryKind uint8

const (
	DeviceLocal MemoryKind = iota
	Upload
	Readback
)

type BufferOptions struct {
	Memory     MemoryKind
	Exportable bool
	Name       string
}
type ExternalBuffer struct{ Handle, Offset, Size, Address uint64 }
type ImportOptions struct {
	AllocationBytes uint64
	MemoryType      int
	Offset          uint64
	Dedicated       bool
	Name            string
}
type Allocation struct {
	Bytes, Offset uint64
	MemoryType    uint32
	Dedicated     bool
}
type Resource interface {
	retain() error
	release()
}
type Buffer struct{}

func (d *Device) NewBuffer(size uint64, o BufferOptions) (*Buffer, error) {
	return nil, todo("NewBuffer")
}
func (d *Device) WrapBuffer(e ExternalBuffer) (*Buffer, error) { return nil, todo("WrapBuffer") }
func (d *Device) ImportBufferFD(fd int, size uint64, o ImportOptions) (*Buffer, error) {
	return nil, todo("ImportBufferFD")
}
func (b *Buffer) ExportFD() (int, error) { return -1, todo("ExportFD") }
func (b *Buffer) Allocation() Allocation { return Allocation{} }
func (b *Buffer) Size() uint64           { return 0 }
func (b *Buffer) Address() uint64        { return 0 }
func (b *Buffer) Handle() uint64         { return 0 }
func (b *Buffer) Offset() uint64         { return 0 }
func (b *Buffer) Bytes() []byte          { return nil }
func (b *Buffer) Device() *Device        { return nil }
func (b *Buffer) Close() error           { return nil }
func (b *Buffer) retain() error          { return nil }
func (b *Buffer) release()               {}

type SpecConstant struct{ ID, Value uint32 }
type PipelineDesc struct {
	Name           string
	Code           []byte
	Hash           [32]byte
	Constants      []SpecConstant
	SubgroupSize   uint32
	FullSubgroups  bool
	PushBytes      uint32
	StorageBuffers uint32
	LocalSize      [3]uint32
	SharedBytes    uint64
	NoRobustness   bool
}
type Pipeline struct{}
type Statistic struct {
	Executable, Name, Description string
	Value                         float64
}

func (d *Device) Pipeline(desc *PipelineDesc) (*Pipeline, error) { return nil, todo("Pipeline") }
func (p *Pipeline) Statistics() ([]Statistic, error)             { return nil, todo("Statistics") }
func (p *Pipeline) CompileTime() time.Duration                   { return 0 }
func (p *Pipeline) Close() error                                 { return nil }
func (p *Pipeline) retain() error                                { return nil }
func (p *Pipeline) release()                                     {}

type BufferRange struct {
	Buffer       *Buffer
	Offset, Size uint64
}
type Mark struct{ stream, seq uint64 }
type Commands struct{}

func (d *Device) WrapCommands(cb vulkan.CommandBuffer) (*Commands, error) {
	return nil, todo("WrapCommands")
}
func (c *Commands) Device() *Device { return nil }
func (c *Commands) Release() error  { return nil }
func (c *Commands) Dispatch(p *Pipeline, buffers []BufferRange, push []byte, groups [3]uint32) error {
	return todo("Dispatch")
}
func (c *Commands) Barrier() error                          { return todo("Barrier") }
func (c *Commands) Copy(dst, src BufferRange) error         { return todo("Copy") }
func (c *Commands) Fill(dst BufferRange, word uint32) error { return todo("Fill") }
func (c *Commands) Timestamp() (Mark, error)                { return Mark{}, todo("Timestamp") }
func (c *Commands) Label(name string) (end func())          { return func() {} }
func (c *Commands) Keep(refs ...Resource) error             { return nil }

type Stream struct{ *Commands }

func (s *Stream) Submit() (uint64, error)                           { return 0, todo("Submit") }
func (s *Stream) Wait(ctx context.Context) error                    { return todo("Wait") }
func (s *Stream) WaitValue(ctx context.Context, value uint64) error { return todo("WaitValue") }
func (s *Stream) Timeline() *Timeline                               { return nil }
func (s *Stream) WaitFor(t *Timeline, value uint64) error           { return todo("WaitFor") }
func (s *Stream) SignalTo(t *Timeline, value uint64) error          { return todo("SignalTo") }
func (s *Stream) Upload(dst *Buffer, off uint64, src []byte) error  { return todo("Upload") }
func (s *Stream) Download(ctx context.Context, dst []byte, src *Buffer, off uint64) error {
	return todo("Download")
}
func (s *Stream) Elapsed(a, b Mark) (time.Duration, error) { return 0, todo("Elapsed") }
func (s *Stream) Close() error                             { return nil }

type Timeline struct{}

func (d *Device) NewTimeline(exportable bool) (*Timeline, error) { return nil, todo("NewTimeline") }
func (d *Device) ImportTimelineFD(fd int) (*Timeline, error)     { return nil, todo("ImportTimelineFD") }
func (t *Timeline) ExportFD() (int, error)                       { return -1, todo("ExportFD") }
func (t *Timeline) Handle() uint64                               { return 0 }
func (t *Timeline) Value() (uint64, error)                       { return 0, todo("Value") }
func (t *Timeline) Signal(value uint64) error                    { return todo("Signal") }
func (t *Timeline) Wait(ctx context.Context, value uint64) error { return todo("Wait") }
func (t *Timeline) Close() error                                 { return nil }
func (t *Timeline) retain() error                                { return nil }
func (t *Timeline) release()                                     {}
