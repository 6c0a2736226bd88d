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
	other  backend.Device
	order  backend.Stream // of other
	blocks []*Block
}

// Block is a piece of Memory.
type Block struct {
	Host   []byte         // on the host
	Buffer *vk.Buffer     // on a Vulkan device
	memory backend.Memory // on another device
	size   uint64
	in     *Memory
}

// OpenMemory makes memory on a device, or on the host for nil.
func OpenMemory(dev *vk.Device, name string) (*Memory, error) {
	m := &Memory{Device: dev}
	if dev == nil {
		return m, nil
	}
	var err error
	m.Stream, err = dev.NewStream(name)
	return m, err
}

// OpenMemoryOn makes memory on a device that is not Vulkan's.
func OpenMemoryOn(d backend.Device, name string) (*Memory, error) {
	s, err := d.NewStream(name)
	if err != nil {
		return nil, err
	}
	return &Memory{other: d, order: s}, nil
}

// OnHost reports whether calls run on the host.
func (m *Memory) OnHost() bool { return m.Device == nil && m.other == nil }

// Order is the stream of calls, nil on the host.
func (m *Memory) Order() *problem.Stream {
	switch {
	case m.other != nil:
		return problem.NewStream(m.order)
	case m.Stream != nil:
		return problem.NewStream(backend.VulkanStream{Stream: m.Stream})
	}
	return nil
}

// New allocates a block.
func (m *Memory) New(size uint64, o vk.BufferOptions) (*Block, error) {
	b := &Block{size: size, in: m}
	switch {
	case m.other != nil:
		var err error
		if b.memory, err = m.other.NewMemory(int64(max(4, (size+3)&^3))); err != nil {
			return nil, err
		}
	case m.Device == nil:
		b.Host = make([]byte, size)
	default:
		var err error
		if b.Buffer, err = m.Device.NewBuffer(max(4, (size+3)&^3), o); err != nil {
			return nil, err
		}
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
func (m *Memory) Wait(ctx context.Context) error {
	switch {
	case m.other != nil:
		return Within(ctx, m.Limit, "", m.order.Wait)
	case m.Stream == nil:
		return ctx.Err()
	}
	return Within(ctx, m.Limit, "", m.Stream.Wait)
}

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
func (m *Memory) Close() (err error) {
	switch {
	case m.other != nil:
		err = m.order.Close()
	case m.Stream != nil:
		err = m.Stream.Close()
	}
	return errors.Join(err, m.Free())
}

// Free frees the blocks.
func (m *Memory) Free() (err error) {
	for _, b := range m.blocks {
		err = errors.Join(err, b.Buffer.Close())
		if b.memory != nil {
			err = errors.Join(err, b.memory.Close())
		}
	}
	m.blocks = nil
	return err
}

// Size is the size that the block was asked for.
func (b *Block) Size() uint64 { return b.size }

// Hold places an operand in the block.
func (b *Block) Hold(o Operand) {
	switch {
	case b.memory != nil:
		o.OnMemory(b.Memory())
	case b.Buffer == nil:
		o.OnHost(b.Host)
	default:
		o.OnDevice(b.Buffer)
	}
}

// Memory names the block on a device that is not Vulkan's.
func (b *Block) Memory() *problem.Memory {
	if b.memory == nil {
		return nil
	}
	return b.memory.Tensor().Memory
}

// Write copies data to the block.
func (b *Block) Write(at uint64, data []byte) error {
	if b.memory != nil {
		return b.memory.Write(b.in.order, int64(at), data)
	}
	if b.Buffer == nil {
		copy(b.Host[at:], data)
		return nil
	}
	return b.in.Stream.Upload(b.Buffer, at, data)
}

// Repeat copies the beginning of the block to a place behind it, as far as the block reaches.
func (b *Block) Repeat(at, size uint64) error {
	if b.memory != nil {
		return b.memory.Copy(b.in.order, int64(at), 0, int64(size))
	}
	if b.Buffer == nil {
		copy(b.Host[at:], b.Host[:size])
		return nil
	}
	size = min((size+3)&^3, b.Buffer.Size()-at)
	return b.in.Stream.Copy(vk.BufferRange{Buffer: b.Buffer, Offset: at, Size: size}, vk.BufferRange{Buffer: b.Buffer,
		Size: size})
}

// Spoil fills the first bytes of the block with 0xff, which are NaN as floats.
func (b *Block) Spoil(size uint64) error {
	if b.memory != nil {
		return b.memory.Write(b.in.order, 0, bytes.Repeat([]byte{0xff}, int(size)))
	}
	if b.Buffer == nil {
		for i := range b.Host[:size] {
			b.Host[i] = 0xff
		}
		return nil
	}
	return b.in.Stream.Fill(vk.BufferRange{Buffer: b.Buffer, Size: (size + 3) &^ 3}, 0xffffffff)
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

// Download copies the first bytes of a block on a device to out.
func (b *Block) Download(ctx context.Context, out []byte) error {
	if b.memory != nil {
		return Within(ctx, b.in.Limit, "", func(ctx context.Context) error { return b.memory.Read(ctx, b.in.order, 0, out) })
	}
	return Within(ctx, b.in.Limit, "", func(ctx context.Context) error { return b.in.Stream.Download(ctx, out, b.Buffer, 0) })
}
