package cases

import (
	"fmt"

	"vkattn/attention"
)

// LayoutKind is a way to put the tensors of a problem into memory.
type LayoutKind uint8

const (
	Tight     LayoutKind = iota // packed BHSD by zero Strides, each alone in memory of exactly its size
	Packed                      // packed BHSD inside of larger memory
	BSHD                        // packed BSHD
	Padded                      // rows, heads and batches apart by multiples of 8 elements
	Odd                         // odd offsets, odd distances
	Even                        // offsets and distances that are multiples of 2 and not of 4
	Woven                       // rows of O beside those of Q, of V beside those of K
	Broadcast                   // one batch of Q, one head of K and of V, repeated by strides of 0
	Window                      // rows of K and V overlap the next ones; one row of Q repeated
	layoutKinds
)

func (l LayoutKind) String() string {
	return [...]string{"tight", "packed", "bshd", "padded", "odd", "even", "woven", "broadcast", "window"}[l]
}

// Aliases reports whether rows of K and V share elements, so that a masked one
// cannot be spoiled alone.
func (l LayoutKind) Aliases() bool { return l == Window }

// Tensors in the order used throughout.
const (
	TensorQ = iota
	TensorK
	TensorV
	TensorO
	TensorLSE
	Tensors
)

var TensorNames = [Tensors]string{"Q", "K", "V", "O", "LSE"}

// Slot is where a tensor lies: in which piece of memory, and where in it.
type Slot struct {
	Memory  int
	Offset  int64 // elements
	Strides attention.Strides
}

// Placement is where the tensors of a problem lie, and how large each piece of
// memory is.
type MemoryLayout struct {
	Slots [Tensors]Slot
	Bytes []int64
}

// Guard is how many elements lie before and after tensors, a multiple of 8; none
// in the layout Tight.
const Guard = 72

// Place lays out a case. Distances not given by the layout's name are chosen to
// be unlike any of the sizes.
func LayOut(c Case, elem int64) MemoryLayout {
	s := c.Shape
	heads := [4]int{s.Hq, s.KVHeads(), s.KVHeads(), s.Hq}
	seqs := [4]int{s.Sq, s.Sk, s.Sk, s.Sq}
	dims := [4]int{c.D, c.D, c.Dv, c.Dv}
	var p MemoryLayout
	for i := range 4 {
		at := Slot{Memory: i, Offset: Guard}
		h, n, d := int64(heads[i]), int64(seqs[i]), int64(dims[i])
		switch c.Layout {
		case Tight:
			at.Offset = 0
		case Packed:
			at.Strides = attention.BHSD(heads[i], seqs[i], dims[i])
		case BSHD:
			at.Strides = attention.BSHD(heads[i], seqs[i], dims[i])
		case Padded:
			row := RoundUp(d, 8) + 8
			at.Strides = SpacedStrides(h, n, row, 16, 24)
		case Odd:
			at.Offset = Guard + 1 + 2*int64(i)
			at.Strides = SpacedStrides(h, n, d|1+2*int64(i), 1-n%2, 4)
			at.Strides.Batch |= 1
			at.Strides.Head |= 1
		case Even:
			at.Offset = Guard + 2
			row := RoundUp(d, 4) + 2
			at.Strides = SpacedStrides(h, n, row, 2*((n+1)%2), 0)
			at.Strides.Batch = h*at.Strides.Head + 2*((h*at.Strides.Head/2+1)%2)
		case Woven:
			// Q and O have the same heads and rows, and so have K and V.
			at.Memory = [4]int{0, 1, 1, 0}[i]
			at.Strides = attention.BHSD(heads[i], seqs[i], c.D+c.Dv)
			if i == TensorV || i == TensorO {
				at.Offset += int64(c.D)
			}
		case Broadcast, Window:
			at.Strides = attention.BHSD(heads[i], seqs[i], dims[i])
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
				at.Strides = attention.Strides{Seq: row, Head: n * row, Batch: h * n * row}
			}
		default:
			panic(fmt.Sprintf("layout %d", c.Layout))
		}
		p.Slots[i] = at
	}
	p.Slots[TensorLSE] = Slot{Memory: -1}
	if c.LSE {
		p.Slots[TensorLSE] = Slot{Memory: 4, Offset: Guard}
		if c.Layout == Tight {
			p.Slots[TensorLSE].Offset = 0
		}
	}
	p.size(c, elem, heads, seqs, dims)
	return p
}

// Apart are strides with heads and batches farther apart than their rows take.
func SpacedStrides(heads, seq, row, moreHead, moreBatch int64) attention.Strides {
	head := seq*row + moreHead
	return attention.Strides{Seq: row, Head: head, Batch: heads*head + moreBatch}
}

// size drops the pieces of memory that hold nothing and sizes the others, with
// a guard behind the last row.
func (p *MemoryLayout) size(c Case, elem int64, heads, seqs, dims [4]int) {
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
		var end int64
		if i == TensorLSE {
			end = (at.Offset + c.Shape.Rows()) * 4
		} else {
			s := at.Strides.Resolve(heads[i], seqs[i], dims[i])
			end = at.Offset + int64(c.Shape.B-1)*s.Batch + int64(heads[i]-1)*s.Head + int64(seqs[i]-1)*s.Seq + int64(dims[i])
			end *= elem
		}
		if c.Layout != Tight {
			end += Guard * elem
		}
		p.Bytes[n] = max(p.Bytes[n], end)
	}
}

func RoundUp(n, to int64) int64 { return (n + to - 1) / to * to }
