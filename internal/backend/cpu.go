package backend

import (
	"context"

	"vkattn/internal/problem"
	"vkattn/vk"
)

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
