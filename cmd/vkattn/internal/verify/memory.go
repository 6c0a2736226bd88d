package verify

import (
	"context"
	"fmt"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/cases"
	"vkattn/internal/hostmem"
	"vkattn/vk"
)

// memory holds the tensors of one problem on a device or on the host.
type memory interface {
	// write copies the given pieces of images to it.
	write(images [][]byte, pieces []int) error
	run(ctx context.Context, op *attention.Op) error
	// read returns the named pieces; the others are nil.
	read(ctx context.Context, pieces []int) ([][]byte, error)
	close() error
}

// newMemory allocates memory for a problem on a device, or on the host for nil.
func newMemory(dev *vk.Device, p *cases.Problem, exportable bool) (memory, error) {
	if dev == nil {
		return &hostMemory{problem: p, images: make([][]byte, len(p.Image))}, nil
	}
	var device uint64
	for _, b := range p.Image {
		device = hostmem.Sum(device, uint64(len(b)))
	}
	if err := bench.Room(dev, 0, device); err != nil {
		return nil, err
	}
	m := &deviceMemory{problem: p}
	var err error
	if m.stream, err = dev.NewStream("verify"); err != nil {
		return nil, err
	}
	for i, b := range p.Image {
		buf, err := dev.NewBuffer(uint64(len(b)), vk.BufferOptions{Exportable: exportable, Name: fmt.Sprintf("verify %d", i)})
		if err != nil {
			_ = m.close()
			return nil, err
		}
		m.buffers = append(m.buffers, buf)
	}
	return m, nil
}

type hostMemory struct {
	problem *cases.Problem
	images  [][]byte
}

func (m *hostMemory) write(images [][]byte, pieces []int) error {
	for _, i := range pieces {
		m.images[i] = append(m.images[i][:0], images[i]...)
	}
	return nil
}

func (m *hostMemory) run(ctx context.Context, op *attention.Op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return op.Forward(nil, m.problem.HostArgs(m.images))
}

func (m *hostMemory) read(_ context.Context, pieces []int) ([][]byte, error) {
	out := make([][]byte, len(m.images))
	for _, i := range pieces {
		out[i] = append([]byte(nil), m.images[i]...)
	}
	return out, nil
}

func (m *hostMemory) close() error { return nil }

type deviceMemory struct {
	problem *cases.Problem
	stream  *vk.Stream
	buffers []*vk.Buffer
}

func (m *deviceMemory) write(images [][]byte, pieces []int) error {
	for _, i := range pieces {
		if err := m.stream.Upload(m.buffers[i], 0, images[i]); err != nil {
			return err
		}
	}
	return m.stream.Barrier()
}

func (m *deviceMemory) run(ctx context.Context, op *attention.Op) error {
	if err := op.Forward(m.stream, m.problem.DeviceArgs(m.buffers)); err != nil {
		return err
	}
	if err := m.stream.Barrier(); err != nil {
		return err
	}
	return m.stream.Wait(ctx)
}

func (m *deviceMemory) read(ctx context.Context, pieces []int) ([][]byte, error) {
	out := make([][]byte, len(m.buffers))
	for _, i := range pieces {
		out[i] = make([]byte, len(m.problem.Image[i]))
		if err := m.stream.Download(ctx, out[i], m.buffers[i], 0); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (m *deviceMemory) close() error {
	err := m.stream.Close()
	for _, b := range m.buffers {
		if e := b.Close(); err == nil {
			err = e
		}
	}
	return err
}
