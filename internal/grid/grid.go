// Package grid divides the grid of a kernel over dispatches or launches.
package grid

// A device dispatches a bounded number of workgroups along each axis of a grid, 65,535 on many.
// A grid with more heads along y, or more batches along z, is dispatched in parts: in each,
// the addresses of the tensors are those of its first head and batch.

// Parts divides a grid. The zero value of the last two fields starts at its first part.
type Parts struct {
	Heads, Batches         int // of the grid
	MostHeads, MostBatches int // of a dispatch
	Group                  int // consecutive heads of the grid that share a KV head

	head, batch int // of the next part
}

// Part is the part of a grid that one dispatch computes.
type Part struct{ Head, Heads, Batch, Batches int }

// One reports whether one dispatch computes the grid.
func (p *Parts) One() bool { return p.Heads <= p.MostHeads && p.Batches <= p.MostBatches }

// Next returns the next part; ok is false after the last. A part has whole groups of heads, or
// some heads of one group.
func (p *Parts) Next() (part Part, ok bool) {
	if p.batch >= p.Batches {
		return part, false
	}
	part = Part{Head: p.head, Heads: p.Heads - p.head, Batch: p.batch, Batches: min(p.MostBatches, p.Batches-p.batch)}
	if p.Group <= p.MostHeads {
		part.Heads = min(part.Heads, p.MostHeads/p.Group*p.Group)
	} else {
		part.Heads = min(p.MostHeads, p.Group-p.head%p.Group)
	}
	if p.head += part.Heads; p.head == p.Heads {
		p.head = 0
		p.batch += part.Batches
	}
	return part, true
}

// Count is the number of parts.
func (p Parts) Count() (n int) {
	for {
		if _, ok := p.Next(); !ok {
			return n
		}
		n++
	}
}
