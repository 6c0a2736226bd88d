package tests

import (
	"fmt"

	"vkattn/attention"
)

// layoutKind is a way to put the tensors of a problem into memory.
type layoutKind uint8

const (
	tight     layoutKind = iota // packed BHSD by zero Strides, each alone in memory of exactly its size
	packed                      // packed BHSD inside of larger memory
	bshd                        // packed BSHD
	padded                      // rows, heads and batches apart by multiples of 8 elements
	odd                         // odd offsets, odd distances
	even                        // offsets and distances that are multiples of 2 and not of 4
	woven                       // rows of O beside those of Q, of V beside those of K
	broadcast                   // one batch of Q, one head of K and of V, repeated by strides of 0
	window                      // rows of K and V overlap the next ones; one row of Q repeated
	layoutKinds
)

func (l layoutKind) String() string {
	return [...]string{"tight", "packed", "bshd", "padded", "odd", "even", "woven", "broadcast", "window"}[l]
}

// aliases reports whether rows of K and V share elements, so that a masked one
// cannot be spoiled alone.
func (l layoutKind) aliases() bool { return l == window }

// Tensors in the order used throughout.
const (
	tensorQ = iota
	tensorK
	tensorV
	tensorO
	tensorLSE
	tensors
)

var tensorNames = [tensors]string{"Q", "K", "V", "O", "LSE"}

// slot is where a tensor lies: in which piece of memory, and where in it.
type slot struct {
	memory  int
	offset  int64 // elements
	strides attention.Strides
}

// placement is where the tensors of a problem lie, and how large each piece of
// memory is.
type placement struct {
	slots [tensors]slot
	bytes []int64
}

const guard = 72 // elements before and after tensors, a multiple of 8

// place lays out a case. Distances not given by the layout's name are chosen to
// be unlike any of the sizes.
func place(c testCase, elem int64) placement {
	s := c.shape
	heads := [4]int{s.Hq, s.KVHeads(), s.KVHeads(), s.Hq}
	seqs := [4]int{s.Sq, s.Sk, s.Sk, s.Sq}
	dims := [4]int{c.d, c.d, c.dv, c.dv}
	var p placement
	for i := range 4 {
		at := slot{memory: i, offset: guard}
		h, n, d := int64(heads[i]), int64(seqs[i]), int64(dims[i])
		switch c.layout {
		case tight:
			at.offset = 0
		case packed:
			at.strides = attention.BHSD(heads[i], seqs[i], dims[i])
		case bshd:
			at.strides = attention.BSHD(heads[i], seqs[i], dims[i])
		case padded:
			row := roundUp(d, 8) + 8
			at.strides = apart(h, n, row, 16, 24)
		case odd:
			at.offset = guard + 1 + 2*int64(i)
			at.strides = apart(h, n, d|1+2*int64(i), 1-n%2, 4)
			at.strides.Batch |= 1
			at.strides.Head |= 1
		case even:
			at.offset = guard + 2
			row := roundUp(d, 4) + 2
			at.strides = apart(h, n, row, 2*((n+1)%2), 0)
			at.strides.Batch = h*at.strides.Head + 2*((h*at.strides.Head/2+1)%2)
		case woven:
			// Q and O have the same heads and rows, and so have K and V.
			at.memory = [4]int{0, 1, 1, 0}[i]
			at.strides = attention.BHSD(heads[i], seqs[i], c.d+c.dv)
			if i == tensorV || i == tensorO {
				at.offset += int64(c.d)
			}
		case broadcast, window:
			at.strides = attention.BHSD(heads[i], seqs[i], dims[i])
			if c.layout == broadcast && i == tensorQ {
				at.strides.Batch = 0
			}
			if c.layout == broadcast && (i == tensorK || i == tensorV) {
				at.strides.Head, at.strides.Batch = 0, n*d
			}
			if c.layout == window && i == tensorQ {
				at.strides.Seq = 0
			}
			if c.layout == window && (i == tensorK || i == tensorV) {
				row := max(1, d/2)
				at.strides = attention.Strides{Seq: row, Head: n * row, Batch: h * n * row}
			}
		default:
			panic(fmt.Sprintf("layout %d", c.layout))
		}
		p.slots[i] = at
	}
	p.slots[tensorLSE] = slot{memory: -1}
	if c.lse {
		p.slots[tensorLSE] = slot{memory: 4, offset: guard}
		if c.layout == tight {
			p.slots[tensorLSE].offset = 0
		}
	}
	p.size(c, elem, heads, seqs, dims)
	return p
}

// apart are strides with heads and batches farther apart than their rows take.
func apart(heads, seq, row, moreHead, moreBatch int64) attention.Strides {
	head := seq*row + moreHead
	return attention.Strides{Seq: row, Head: head, Batch: heads*head + moreBatch}
}

// size drops the pieces of memory that hold nothing and sizes the others, with
// a guard behind the last row.
func (p *placement) size(c testCase, elem int64, heads, seqs, dims [4]int) {
	number := map[int]int{}
	for i := range p.slots {
		at := &p.slots[i]
		if at.memory < 0 {
			continue
		}
		n, ok := number[at.memory]
		if !ok {
			n = len(p.bytes)
			number[at.memory] = n
			p.bytes = append(p.bytes, 0)
		}
		at.memory = n
		var end int64
		if i == tensorLSE {
			end = (at.offset + c.shape.Rows()) * 4
		} else {
			s := at.strides.Resolve(heads[i], seqs[i], dims[i])
			end = at.offset + int64(c.shape.B-1)*s.Batch + int64(heads[i]-1)*s.Head + int64(seqs[i]-1)*s.Seq + int64(dims[i])
			end *= elem
		}
		if c.layout != tight {
			end += guard * elem
		}
		p.bytes[n] = max(p.bytes[n], end)
	}
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }
