package cudapath

import (
	"context"
	"time"

	"vkattn/vk"
)

func notYet(op string) error { return &Error{Op: op, Detail: "not implemented", Err: vk.ErrUnsupported} }

// Error is a failed operation of the CUDA driver, or one refused before it was called.
type Error struct {
	Op     string // such as "cuMemCreate"
	Code   int    // CUresult; 0 when the driver had no part in it
	Name   string // of the code, such as "CUDA_ERROR_OUT_OF_MEMORY"
	Detail string
	Err    error // the sentinel of package vk that it stands for, or nil
}

func (e *Error) Error() string { return "cudapath: " + e.Op + ": " + e.Detail }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// DeviceInfo describes a CUDA device.
type DeviceInfo struct {
	Ordinal      int // in the driver's list
	Name         string
	UUID         [16]byte // the same device in Vulkan has the same UUID
	Major, Minor int      // compute capability
	SMs          int
	MaxShared    int // bytes of shared memory a block may ask for
	MaxThreads   int // of a block
	Memory       uint64
	Driver       int // CUDA version of the driver, 12040 for 12.4
}

// Kernel is an entry of the embedded tables.
type Kernel struct {
	Entry  string `json:"entry"`
	Family string `json:"family"`
	DType  string `json:"dtype"`
	D      int    `json:"d"`
	DV     int    `json:"dv"`
	Causal bool   `json:"causal"`
	Any    bool   `json:"any"`
	Module string `json:"module"`
}

// Kernels lists the embedded kernels.
func Kernels() ([]Kernel, error) { return nil, notYet("Kernels") }

// Available says why CUDA cannot be used on this machine, nil where it can.
func Available() error { return notYet("Available") }

// Devices lists the CUDA devices.
func Devices() ([]DeviceInfo, error) { return nil, notYet("Devices") }

// Context is CUDA on a Vulkan device.
type Context struct{}

// Open gives the context of a device.
func Open(dev *vk.Device) (*Context, error) { return nil, notYet("Open") }

// Info describes the device.
func (c *Context) Info() *DeviceInfo { return nil }

// Handle is the CUcontext.
func (c *Context) Handle() uint64 { return 0 }

// Device is the Vulkan device.
func (c *Context) Device() *vk.Device { return nil }

// Alloc allocates exportable device memory.
func (c *Context) Alloc(bytes uint64) (*Memory, error) { return nil, notYet("Alloc") }

// Address is the device pointer of a Vulkan buffer.
func (c *Context) Address(b *vk.Buffer) (uint64, error) { return 0, notYet("Address") }

// ImportTimeline imports an exportable timeline.
func (c *Context) ImportTimeline(t *vk.Timeline) (*Semaphore, error) {
	return nil, notYet("ImportTimeline")
}

// NewStream makes a CUDA stream.
func (c *Context) NewStream() (*Stream, error) { return nil, notYet("NewStream") }

// NewEvent makes an event that takes the time.
func (c *Context) NewEvent() (*Event, error) { return nil, notYet("NewEvent") }

// Turn is CUDA's turn in a Vulkan stream.
func (c *Context) Turn(s *vk.Stream, keep ...vk.Resource) (*Stream, error) { return nil, notYet("Turn") }

// Memory is CUDA device memory.
type Memory struct{}

// Address is the CUdeviceptr.
func (m *Memory) Address() uint64 { return 0 }

// Size is the number of bytes asked for.
func (m *Memory) Size() uint64 { return 0 }

// ExportFD returns a file descriptor that the caller owns.
func (m *Memory) ExportFD() (int, error) { return -1, notYet("ExportFD") }

// Buffer is the memory as a Vulkan buffer.
func (m *Memory) Buffer(dev *vk.Device) (*vk.Buffer, error) { return nil, notYet("Buffer") }

// CopyFromHost copies src to byte offset off, and waits for it.
func (m *Memory) CopyFromHost(off uint64, src []byte) error { return notYet("CopyFromHost") }

// CopyToHost copies from byte offset off to dst, and waits for it.
func (m *Memory) CopyToHost(dst []byte, off uint64) error { return notYet("CopyToHost") }

// Close frees the memory.
func (m *Memory) Close() error { return nil }

// Semaphore is a timeline in CUDA.
type Semaphore struct{}

// Close gives the import back.
func (s *Semaphore) Close() error { return nil }

// Stream is a CUDA stream.
type Stream struct{}

// Handle is the CUstream.
func (s *Stream) Handle() uint64 { return 0 }

// WaitFor makes later work wait for the timeline to reach value.
func (s *Stream) WaitFor(t *Semaphore, value uint64) error { return notYet("WaitFor") }

// SignalTo sets the timeline to value after earlier work.
func (s *Stream) SignalTo(t *Semaphore, value uint64) error { return notYet("SignalTo") }

// Record puts an event into the stream.
func (s *Stream) Record(e *Event) error { return notYet("Record") }

// CopyFromHost copies host memory to a device address.
func (s *Stream) CopyFromHost(addr uint64, src []byte) error { return notYet("CopyFromHost") }

// CopyToHost copies from a device address, and waits for it.
func (s *Stream) CopyToHost(dst []byte, addr uint64) error { return notYet("CopyToHost") }

// Copy copies bytes between device addresses.
func (s *Stream) Copy(dst, src, bytes uint64) error { return notYet("Copy") }

// Fill sets bytes, a multiple of 4, to a repeated word.
func (s *Stream) Fill(addr uint64, word uint32, bytes uint64) error { return notYet("Fill") }

// Wait waits for everything in the stream.
func (s *Stream) Wait(ctx context.Context) error { return notYet("Wait") }

// Close destroys the stream.
func (s *Stream) Close() error { return nil }

// Event is a point in a CUDA stream.
type Event struct{}

// Since is the device time from an earlier event, both finished.
func (e *Event) Since(earlier *Event) (time.Duration, error) { return 0, notYet("Since") }

// Close destroys the event.
func (e *Event) Close() error { return nil }
