package cases

import (
	"fmt"

	"vkattn/internal/enum"
	"vkattn/internal/problem"
)

// LayoutKind is a way to put the tensors of a problem into memory.
type LayoutKind uint8

const (
	Tight       LayoutKind = iota // packed BHSD by zero Strides, each alone in memory of exactly its size
	Packed                        // packed BHSD inside of larger memory
	BSHD                          // packed BSHD
	Padded                        // gaps of multiples of 8 elements between rows, heads and batches
	Odd                           // odd offsets and odd strides
	Even                          // offsets and strides that are multiples of 2 and not of 4
	Woven                         // rows of O alternate with rows of Q, rows of V with rows of K
	Broadcast                     // one batch of Q, one head of K and of V, repeated by strides of 0
	Window                        // rows of K and V overlap the next ones; one row of Q repeated
	layoutKinds                   // of the table of shapes

	// Fused has the heads of Q, K, V and O of a token one after the other, as [B, S, 3, H, D]
	// has Q, K and V. K and V have the storage type and no pages.
	Fused = layoutKinds
)

var layoutNames = []string{"tight", "packed", "bshd", "padded", "odd", "even", "woven", "broadcast", "window", "fused"}

func (l LayoutKind) String() string { return layoutNames[l] }

// Set sets the layout by its name.
func (l *LayoutKind) Set(s string) error {
	return enum.Set(l, s, func(s string) (LayoutKind, error) { return enum.Parse[LayoutKind]("layout", layoutNames, s) })
}

// Aliases reports whether rows of K and V share elements, so that a masked one cannot be
// spoiled without changing another.
func (l LayoutKind) Aliases() bool { return l == Window }

// Indices of the tensors.
const (
	TensorQ = iota
	TensorK
	TensorV
	TensorO
	TensorLSE
	Tensors
)

var TensorNames = [Tensors]string{"Q", "K", "V", "O", "LSE"}

// Slot is the piece of memory that a tensor lies in, and its offset and strides there.
type Slot struct {
	Memory  int
	Offset  int64 // elements
	Strides problem.Strides
}

// MemoryLayout is where the tensors of a problem lie and how large each piece of memory
// is.
type MemoryLayout struct {
	Slots [Tensors]Slot
	Bytes []int64
}

// Guard is how many elements lie before and after tensors, a multiple of 8. The layout
// Tight has none, and blocked K and V have whole blocks.
const Guard = 72

// LayOut lays out the tensors of a case in a storage type. Distances that the layout's
// name leaves open are unlike any of the sizes.
func LayOut(c Case, dtype problem.DType) MemoryLayout {
	e := c.extents()
	batches, heads := [4]int{e.queryBatches, e.kvBatches, e.kvBatches, e.queryBatches}, [4]int{c.Hq, c.KVHeads(), c.KVHeads(), c.Hq}
	seqs, dims := [4]int{e.queryRows, e.kvRows, e.kvRows, e.queryRows}, [4]int{c.D, c.D, c.Dv, c.Dv}
	unit := int64(8)
	if c.KeyType.Blocked() {
		unit = 32
	}
	var p MemoryLayout
	for i := range 4 {
		at := Slot{Memory: i, Offset: c.guard()}
		h, n, d := int64(heads[i]), int64(seqs[i]), int64(dims[i])
		switch c.Layout {
		case Tight:
		case Packed:
			at.Strides = problem.BHSD(heads[i], seqs[i], dims[i])
		case BSHD:
			at.Strides = problem.BSHD(heads[i], seqs[i], dims[i])
		case Padded:
			at.Strides = SpacedStrides(h, n, RoundUp(d, unit)+unit, 2*unit, 3*unit)
		case Odd:
			if c.KeyType.Blocked() {
				at.Strides = SpacedStrides(h, n, d+unit, unit, unit)
				break
			}
			at.Offset += 1 + 2*int64(i)
			at.Strides = SpacedStrides(h, n, d|1+2*int64(i), 1-n%2, 4)
			at.Strides.Batch |= 1
			at.Strides.Head |= 1
		case Even:
			at.Offset += 2
			row := RoundUp(d, 4) + 2
			at.Strides = SpacedStrides(h, n, row, 2*((n+1)%2), 0)
			at.Strides.Batch = h*at.Strides.Head + 2*((h*at.Strides.Head/2+1)%2)
		case Woven:
			// Q and O have the same heads and rows, and so have K and V.
			at.Memory = [4]int{0, 1, 1, 0}[i]
			at.Strides = problem.BHSD(heads[i], seqs[i], c.D+c.Dv)
			if i == TensorV || i == TensorO {
				at.Offset += int64(c.D)
			}
		case Fused:
			row := int64(0)
			for j := range 4 {
				if j == i {
					at.Offset += row
				}
				row += int64(heads[j] * dims[j])
			}
			at.Memory = 0
			at.Strides = problem.Strides{Batch: int64(max(seqs[TensorQ], seqs[TensorK])) * row, Head: d, Seq: row}
		case Broadcast, Window:
			at.Strides = problem.BHSD(heads[i], seqs[i], dims[i])
			if c.Layout == Broadcast && i == TensorQ {
				at.Strides.Batch = 0
			}
			if c.Layout == Broadcast && (i == TensorK || i == TensorV) {
				at.Strides.Head, at.Strides.Batch = 0, n*d
			}
			if c.Layout == Window && i == TensorQ {
				at.Strides.Seq = 0
			}
			if c.Layout == Window && (i == TensorK || i == TensorV) {
				row := max(1, d/2)
				at.Strides = problem.Strides{Seq: row, Head: n * row, Batch: h * n * row}
			}
		default:
			panic(fmt.Sprintf("layout %d", c.Layout))
		}
		p.Slots[i] = at
	}
	if c.VInK {
		p.Slots[TensorV] = p.Slots[TensorK]
		p.Slots[TensorV].Strides = p.Slots[TensorK].Strides.Resolve(c.KVHeads(), e.kvRows, c.D)
	}
	p.Slots[TensorLSE] = Slot{Memory: -1}
	if c.LSE {
		p.Slots[TensorLSE] = Slot{Memory: 4, Offset: c.guard()}
	}
	p.size(c, dtype, batches, heads, seqs, dims)
	for i, packed := range [4]bool{c.PackedQ, c.PackedK, c.PackedK, c.PackedQ} {
		if s := &p.Slots[i].Strides; packed && batches[i] == 1 && *s != (problem.Strides{}) {
			s.Batch = 1<<40 + 32 // the batch stride of packed tensors is ignored
		}
	}
	return p
}

// SpacedStrides are strides with gaps between heads and between batches.
func SpacedStrides(heads, seq, row, moreHead, moreBatch int64) problem.Strides {
	head := seq*row + moreHead
	return problem.Strides{Seq: row, Head: head, Batch: heads*head + moreBatch}
}

// size drops the pieces of memory that hold nothing and sizes the others, with
// a guard behind the last row.
func (p *MemoryLayout) size(c Case, dtype problem.DType, batches, heads, seqs, dims [4]int) {
	number := map[int]int{}
	for i := range p.Slots {
		at := &p.Slots[i]
		if at.Memory < 0 {
			continue
		}
		n, ok := number[at.Memory]
		if !ok {
			n = len(p.Bytes)
			number[at.Memory] = n
			p.Bytes = append(p.Bytes, 0)
		}
		at.Memory = n
		if i == TensorLSE {
			p.Bytes[n] = max(p.Bytes[n], (at.Offset+int64(batches[TensorQ])*int64(heads[TensorQ])*int64(seqs[TensorQ])+c.guard())*4)
			continue
		}
		s := at.Strides.Resolve(heads[i], seqs[i], dims[i])
		end := at.Offset + int64(batches[i]-1)*s.Batch + int64(heads[i]-1)*s.Head + int64(seqs[i]-1)*s.Seq + int64(dims[i]) + c.guard()
		p.Bytes[n] = max(p.Bytes[n], int64(c.rowBytes(i, dtype, int(end))))
	}
}

// rowBytes are the bytes of elements of a tensor other than LSE.
func (c *Case) rowBytes(i int, dtype problem.DType, elements int) int {
	switch i {
	case TensorK:
		return c.KeyType.RowBytes(dtype, elements)
	case TensorV:
		return c.valueType().RowBytes(dtype, elements)
	}
	return elements * dtype.Size()
}

// guard is how many elements lie before and after tensors and vectors.
func (c *Case) guard() int64 {
	switch {
	case c.Layout == Tight:
		return 0
	case c.KeyType.Blocked():
		return 96
	}
	return Guard
}

func RoundUp(n, to int64) int64 { return (n + to - 1) / to * to }
