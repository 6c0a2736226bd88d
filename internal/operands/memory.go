package operands

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"vkattn/internal/backend"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Memory is where calls run: a device with a stream, or the host, where what is recorded happens at once.
type Memory struct {
	Device *vk.Device // nil: not Vulkan's
	Stream *vk.Stream
	Limit  time.Duration // of one wait for the device; 0: none
	on     backend.Device
	order  backend.Stream
	blocks []*Block
}

// Block is a piece of Memory.
type Block struct {
	Host   []byte     // on the host
	Buffer *vk.Buffer // on a Vulkan device
	memory backend.Memory
	size   uint64
	in     *Memory
}

// OpenMemory makes memory on a device, or on the host for backend.CPU.
func OpenMemory(d backend.Device, name string) (*Memory, error) {
	s, err := d.NewStream(name)
	if err != nil {
		return nil, err
	}
	return &Memory{Device: d.Vulkan(), Stream: s.Vulkan(), on: d, order: s}, nil
}

// MemoryOf is memory on a Vulkan device with a stream of the caller, or on the host for nil.
func MemoryOf(dev *vk.Device, s *vk.Stream) *Memory {
	if dev == nil {
		return &Memory{on: backend.CPU{}, order: backend.CPU{}.Shared()}
	}
	return &Memory{Device: dev, Stream: s, on: backend.Vulkan{Dev: dev}, order: backend.VulkanStream{Stream: s}}
}

// OnHost reports whether calls run on the host.
func (m *Memory) OnHost() bool { return m.on == backend.CPU{} }

// Order is the stream of calls, nil on the host.
func (m *Memory) Order() *problem.Stream {
	if m.OnHost() {
		return nil
	}
	return problem.NewStream(m.order)
}

// New allocates a block, on a Vulkan device as o says.
func (m *Memory) New(size uint64, o vk.BufferOptions) (b *Block, err error) {
	b = &Block{size: size, in: m}
	switch rounded := max(4, (size+3)&^3); {
	case m.OnHost():
		memory := make([]byte, rounded)
		b.Host, b.memory = memory[:size], backend.MemoryOf(problem.Tensor{Host: memory})
	case m.Device != nil:
		if b.Buffer, err = m.Device.NewBuffer(rounded, o); err == nil {
			b.memory = backend.MemoryOf(problem.Tensor{Buffer: b.Buffer})
		}
	default:
		b.memory, err = m.on.NewMemory(int64(rounded))
	}
	if err != nil {
		return nil, err
	}
	m.blocks = append(m.blocks, b)
	return b, nil
}

// NewAll allocates a block for each of several contents. It refuses those that do not fit before it allocates.
func (m *Memory) NewAll(contents [][]byte, o vk.BufferOptions) error {
	var all uint64
	for _, c := range contents {
		all = hostmem.Sum(all, uint64(len(c)))
	}
	if m.Device != nil {
		if err := m.Device.CheckMemory("problem", all); err != nil {
			return err
		}
	}
	for _, c := range contents {
		if _, err := m.New(uint64(len(c)), o); err != nil {
			return err
		}
	}
	return nil
}

// Blocks are all blocks in the order of their allocation.
func (m *Memory) Blocks() []*Block { return m.blocks }

// Barrier orders later work after earlier work.
func (m *Memory) Barrier() error {
	if m.Stream == nil {
		return nil
	}
	return m.Stream.Barrier()
}

// Wait waits for all work.
func (m *Memory) Wait(ctx context.Context) error { return Within(ctx, m.Limit, "", m.order.Wait) }

// Within calls f, which waits for the device, and ends it after limit; 0: no limit. The error of a device that
// hangs matches vk.ErrTimeout; note ends its text.
func Within(ctx context.Context, limit time.Duration, note string, f func(context.Context) error) error {
	if limit == 0 {
		return f(ctx)
	}
	inner, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := f(inner)
	if err != nil && ctx.Err() == nil && inner.Err() != nil {
		return &vk.Error{Op: "wait", Err: vk.ErrTimeout,
			Detail: fmt.Sprintf("the device hangs: it has finished no run for %v%s", limit, note)}
	}
	return err
}

// Close frees the blocks and the stream.
func (m *Memory) Close() error { return errors.Join(m.order.Close(), m.Free()) }

// Free frees the blocks.
func (m *Memory) Free() (err error) {
	for _, b := range m.blocks {
		err = errors.Join(err, b.memory.Close())
	}
	m.blocks = nil
	return err
}

// Size is the size that the block was asked for.
func (b *Block) Size() uint64 { return b.size }

// Hold places an operand in the block.
func (b *Block) Hold(o Operand) { *o.host, *o.buffer, *o.memory = b.Host, b.Buffer, b.Memory() }

// Memory names the block on a device that is not Vulkan's.
func (b *Block) Memory() *problem.Memory { return b.memory.Tensor().Memory }

// Write copies data to the block.
func (b *Block) Write(at uint64, data []byte) error {
	return b.memory.Write(b.in.order, int64(at), data)
}

// Repeat copies the beginning of the block to a place behind it, as far as the block reaches.
func (b *Block) Repeat(at, size uint64) error {
	return b.memory.Copy(b.in.order, int64(at), 0, int64(min((size+3)&^3, max(4, (b.size+3)&^3)-at)))
}

// Spoil fills the first bytes of the block with 0xff, which are NaN as floats.
func (b *Block) Spoil(size uint64) error {
	if b.Buffer != nil {
		return b.in.Stream.Fill(vk.BufferRange{Buffer: b.Buffer, Size: (size + 3) &^ 3}, 0xffffffff)
	}
	return b.Write(0, bytes.Repeat([]byte{0xff}, int(size)))
}

// Read returns a copy of the block, after all work recorded before.
func (b *Block) Read(ctx context.Context) ([]byte, error) {
	if b.in.OnHost() {
		return bytes.Clone(b.Host), nil
	}
	return b.View(ctx, b.size)
}

// View is Read of the first bytes, on the host without a copy.
func (b *Block) View(ctx context.Context, size uint64) ([]byte, error) {
	if b.in.OnHost() {
		return b.Host[:size], nil
	}
	out := make([]byte, size)
	return out, b.Download(ctx, out)
}

// Download copies the first bytes of a block to out.
func (b *Block) Download(ctx context.Context, out []byte) error {
	return Within(ctx, b.in.Limit, "", func(ctx context.Context) error { return b.memory.Read(ctx, b.in.order, 0, out) })
}
