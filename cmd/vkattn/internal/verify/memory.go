package verify

import (
	"context"
	"slices"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/operands"
	"vkattn/vk"
)

// memory holds the pieces of memory of one problem on a device or on the host.
type memory struct{ *operands.Memory }

// newMemory allocates the pieces of memory of images on a device, or on the host for nil.
func newMemory(dev *vk.Device, images [][]byte) (memory, error) {
	m, err := operands.OpenMemory(dev, "verify")
	if err != nil {
		return memory{}, err
	}
	if err := m.NewAll(images, vk.BufferOptions{Exportable: HasCUDA(dev), Name: "verify"}); err != nil {
		_ = m.Close()
		return memory{}, err
	}
	return memory{m}, nil
}

// each visits the given pieces, all of them for nil.
func (m memory) each(pieces []int, visit func(i int, b *operands.Block) error) error {
	for i, b := range m.Blocks() {
		if pieces != nil && !slices.Contains(pieces, i) {
			continue
		}
		if err := visit(i, b); err != nil {
			return err
		}
	}
	return nil
}

// write copies the given pieces of images to it.
func (m memory) write(images [][]byte, pieces []int) error {
	if err := m.each(pieces, func(i int, b *operands.Block) error { return b.Write(0, images[i]) }); err != nil {
		return err
	}
	return m.Barrier()
}

// run makes calls one after the other and waits for the last.
func (m memory) run(ctx context.Context, calls ...func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, call := range calls {
		if err := call(); err != nil {
			return err
		}
		if err := m.Barrier(); err != nil {
			return err
		}
	}
	if m.Stream == nil { // the host has the result
		return nil
	}
	return m.Wait(ctx)
}

// read returns the given pieces; the others are nil.
func (m memory) read(ctx context.Context, pieces []int) ([][]byte, error) {
	out := make([][]byte, len(m.Blocks()))
	return out, m.each(pieces, func(i int, b *operands.Block) (err error) {
		out[i], err = b.Read(ctx)
		return err
	})
}

// args are the arguments of a call in this memory.
func args[T attention.Args | attention.BackwardArgs](m memory, onHost func([][]byte) T,
	onDevice func([]*vk.Buffer) T) T {
	var host [][]byte
	var buffers []*vk.Buffer
	for _, b := range m.Blocks() {
		host, buffers = append(host, b.Host), append(buffers, b.Buffer)
	}
	if m.Device == nil {
		return onHost(host)
	}
	return onDevice(buffers)
}
