package verify

import (
	"context"
	"slices"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/cases"
	"vkattn/internal/hostmem"
	"vkattn/internal/operands"
	"vkattn/vk"
)

// memory holds the pieces of memory of one problem on a device or on the host.
type memory struct{ *operands.Memory }

// newMemory allocates the pieces of memory of images on a device, or on the host for nil.
func (v *Verifier) newMemory(on *attention.Device, images [][]byte) (memory, error) {
	dev := on.Vulkan()
	m, err := bench.OpenMemory(on, "verify")
	if err != nil {
		return memory{}, err
	}
	m.Limit = v.Timeout
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
	if m.OnHost() { // it has the result
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

// hold places an operand of a problem in its piece of memory.
func (m memory) hold(o operands.Operand, piece int) { m.Blocks()[piece].Hold(o) }

// footprint is the memory of a case in bytes, computed from its sizes alone. Sizes
// that overflow saturate and fit nowhere.
type footprint struct {
	inputs  uint64 // elements of Q, K and V
	largest uint64 // elements of the largest tensor
	outputs uint64 // bytes of O and LSE in their memory
	image   uint64 // bytes of all pieces of memory
	wide    uint64 // bytes of all tensors in float32
}

func footprintOf(c cases.Case, dtype attention.DType) (f footprint) {
	s, size := c.Shape, uint64(dtype.Size())
	rows, keys := hostmem.Product(s.B, s.Hq, s.Sq), hostmem.Product(s.B, s.KVHeads(), s.Sk)
	q, k := hostmem.Product(rows, uint64(c.D)), hostmem.Product(keys, uint64(c.D))
	v, o := hostmem.Product(keys, uint64(c.Dv)), hostmem.Product(rows, uint64(c.Dv))
	lse := uint64(0)
	if c.LSE {
		lse = hostmem.Product(rows, 4)
	}
	f.inputs, f.largest = hostmem.Sum(q, k, v), max(q, k, v, o)
	f.outputs = hostmem.Sum(hostmem.Product(o, size), lse)
	f.image = hostmem.Sum(hostmem.Product(f.inputs, size), f.outputs)
	if c.Modifiers != nil {
		for _, t := range c.Modifiers.Tables {
			f.image = hostmem.Sum(f.image, uint64(len(t.Host)))
		}
	}
	f.wide = hostmem.Sum(hostmem.Product(hostmem.Sum(f.inputs, o), 4), lse)
	// Layouts of the conformance table add gaps and guards; those cases are small.
	if c.Layout != cases.Tight && f.image < 1<<40 {
		f.image = 0
		for _, n := range cases.LayOut(c, dtype).Bytes {
			f.image += uint64(n)
		}
		f.outputs = f.image
	}
	return f
}

// hostNeeded is the largest amount of host memory that a problem takes at any time: while
// its numbers are generated, while the implementations run, or while the reference runs.
func (v *Verifier) hostNeeded(c cases.Case, dtype attention.DType, rows int) uint64 {
	f := footprintOf(c, dtype)
	n := min(hostmem.Product(c.Shape.B, c.Shape.Hq, c.Shape.Sq), uint64(rows))
	const element, row = 8 + 4 + 8 + 4, 3*8 + 8 + 64 // see package bench
	truth := hostmem.Sum(hostmem.Product(n, uint64(c.Dv), element), hostmem.Product(n, row),
		bench.ReferenceScratch(attention.Config{HeadDim: c.D, HeadDimV: c.Dv}, c.Shape, n))
	held := hostmem.Product(f.outputs, uint64(len(v.List)+1)) // of a run that is repeated there are two
	if v.Conformance {
		held = hostmem.Sum(held, hostmem.Product(f.image, 4)) // before, after, spoiled, and what may be written
	}
	making := hostmem.Sum(hostmem.Product(f.inputs, 4), hostmem.Product(f.largest, 4))
	running := hostmem.Sum(truth, held)
	for _, i := range v.List {
		if i.Tier == attention.TierCPU {
			running = hostmem.Sum(running, f.image)
			break
		}
	}
	if v.Reference != nil {
		running = max(running, hostmem.Sum(truth, held, f.wide, hostmem.Product(f.largest, 8)))
	}
	return hostmem.Sum(f.image, max(making, running))
}
