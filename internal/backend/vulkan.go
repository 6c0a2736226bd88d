package backend

import (
	"context"

	"vkattn/internal/problem"
	"vkattn/vk"
)

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
