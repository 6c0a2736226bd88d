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

// rows are the rows of a tensor of a call, or of a gradient, in a piece of memory.
type rows struct {
	name                     string
	dtype                    problem.DType
	kv                       problem.KVType // of K and V
	batches, heads, seq, dim int
	image                    int   // the piece; -1: the call has no such tensor
	offset                   int64 // elements
	strides                  problem.Strides
	of                       rowsOf
}

// rowsOf says whose rows a tensor has.
type rowsOf uint8

const (
	ofTensor  rowsOf = iota // of no sequence
	ofQueries               // a row of each row of a sequence
	ofKeys                  // a row of each key
)

// element is the first element of a row.
func (t *rows) element(batch, h, row int) int64 {
	s := t.strides.Resolve(t.heads, t.seq, t.dim)
	return t.offset + int64(batch)*s.Batch + int64(h)*s.Head + int64(row)*s.Seq
}

// end is the element behind the last row.
func (t *rows) end() int64 { return t.element(t.batches-1, t.heads-1, t.seq-1) + int64(t.dim) }

// bytes are the bytes of elements.
func (t *rows) bytes(elements int64) int64 { return int64(t.kv.RowBytes(t.dtype, int(elements))) }

// row is the memory of a row.
func (t *rows) row(image []byte, batch, h, row int) []byte {
	return image[t.bytes(t.element(batch, h, row)):][:t.bytes(int64(t.dim))]
}

// tensor is the tensor without its memory.
func (t *rows) tensor() problem.Tensor { return problem.Tensor{Offset: t.offset, Strides: t.strides} }

// each visits all rows in packed order.
func (t *rows) each(visit func(batch, h, row int)) {
	for b := range t.batches {
		for h := range t.heads {
			for row := range t.seq {
				visit(b, h, row)
			}
		}
	}
}

// MemoryLayout is where the tensors of a problem lie and how large each piece of memory
// is.
type MemoryLayout struct {
	tensors [Tensors]rows
	Bytes   []int64
}

// Guard is how many elements lie before and after tensors, a multiple of 8. The layout
// Tight has none, and blocked K and V have whole blocks.
const Guard = 72

// LayOut lays out the tensors of a case in a storage type. Distances that the layout's
// name leaves open are unlike any of the sizes.
func LayOut(c Case, dtype problem.DType) MemoryLayout {
	e := c.extents()
	q := rows{dtype: dtype, batches: e.queryBatches, heads: c.Hq, seq: e.queryRows, dim: c.D, of: ofQueries}
	k := rows{dtype: dtype, kv: c.KeyType, batches: e.kvBatches, heads: c.KVHeads(), seq: e.kvRows, dim: c.D, of: ofKeys}
	v, o, lse := k, q, q
	v.kv, v.dim, o.dim, lse.dim, lse.dtype = c.valueType(), c.Dv, c.Dv, 1, problem.F32
	p := MemoryLayout{tensors: [Tensors]rows{q, k, v, o, lse}}
	var fused int64 // elements of a row of all tensors
	for i := range p.tensors {
		at := &p.tensors[i]
		at.name, at.image, at.offset = TensorNames[i], i, c.guard()
		if i != TensorLSE {
			at.layOut(&c, i, fused)
			fused += int64(at.heads * at.dim)
		}
	}
	for i := range TensorLSE {
		if c.Layout == Fused {
			p.tensors[i].strides = problem.Strides{Batch: int64(max(q.seq, k.seq)) * fused, Head: int64(p.tensors[i].dim), Seq: fused}
		}
	}
	if c.VInK {
		in := p.tensors[TensorK]
		p.tensors[TensorV].image, p.tensors[TensorV].offset = in.image, in.offset
		p.tensors[TensorV].strides = in.strides.Resolve(in.heads, in.seq, in.dim)
	}
	if !c.LSE {
		p.tensors[TensorLSE].image = -1
	}
	p.size(&c)
	for i := range p.tensors {
		t := &p.tensors[i]
		packed := c.PackedQ && t.of == ofQueries || c.PackedK && t.of == ofKeys
		if packed && t.batches == 1 && t.strides != (problem.Strides{}) {
			unit := int64(max(32, t.kv.Unit()))
			t.strides.Batch = 1<<40/unit*unit + unit // the batch stride of packed tensors is ignored
		}
	}
	return p
}

// layOut places tensor i, behind the elements of a row in front of it in the layout Fused.
func (t *rows) layOut(c *Case, i int, before int64) {
	unit := int64(8)
	if c.KeyType.Blocked() {
		unit = int64(c.KeyType.Unit())
	}
	h, n, d := int64(t.heads), int64(t.seq), int64(t.dim)
	switch c.Layout {
	case Tight:
	case Packed:
		t.strides = problem.BHSD(t.heads, t.seq, t.dim)
	case BSHD:
		t.strides = problem.BSHD(t.heads, t.seq, t.dim)
	case Padded:
		t.strides = SpacedStrides(h, n, RoundUp(d, unit)+unit, 2*unit, 3*unit)
	case Odd:
		if c.KeyType.Blocked() {
			t.strides = SpacedStrides(h, n, d+unit, unit, unit)
			break
		}
		t.offset += 1 + 2*int64(i)
		t.strides = SpacedStrides(h, n, d|1+2*int64(i), 1-n%2, 4)
		t.strides.Batch |= 1
		t.strides.Head |= 1
	case Even:
		t.offset += 2
		t.strides = SpacedStrides(h, n, RoundUp(d, 4)+2, 2*((n+1)%2), 0)
		t.strides.Batch = h*t.strides.Head + 2*((h*t.strides.Head/2+1)%2)
	case Woven:
		// Q and O have the same heads and rows, and so have K and V.
		t.image = [4]int{0, 1, 1, 0}[i]
		t.strides = problem.BHSD(t.heads, t.seq, c.D+c.Dv)
		if i == TensorV || i == TensorO {
			t.offset += int64(c.D)
		}
	case Fused:
		t.image, t.offset = 0, t.offset+before
	case Broadcast:
		t.strides = problem.BHSD(t.heads, t.seq, t.dim)
		switch {
		case i == TensorQ:
			t.strides.Batch = 0
		case t.of == ofKeys:
			t.strides.Head, t.strides.Batch = 0, n*d
		}
	case Window:
		t.strides = problem.BHSD(t.heads, t.seq, t.dim)
		switch {
		case i == TensorQ:
			t.strides.Seq = 0
		case t.of == ofKeys:
			row := max(1, d/2)
			t.strides = problem.Strides{Seq: row, Head: n * row, Batch: h * n * row}
		}
	default:
		panic(fmt.Sprintf("layout %d", c.Layout))
	}
}

// SpacedStrides are strides with gaps between heads and between batches.
func SpacedStrides(heads, seq, row, moreHead, moreBatch int64) problem.Strides {
	head := seq*row + moreHead
	return problem.Strides{Seq: row, Head: head, Batch: heads*head + moreBatch}
}

// size drops the pieces of memory that hold nothing and sizes the others, with
// a guard behind the last row.
func (p *MemoryLayout) size(c *Case) {
	number := map[int]int{}
	for i := range p.tensors {
		t := &p.tensors[i]
		if t.image < 0 {
			continue
		}
		n, ok := number[t.image]
		if !ok {
			n = len(p.Bytes)
			number[t.image] = n
			p.Bytes = append(p.Bytes, 0)
		}
		t.image = n
		p.Bytes[n] = max(p.Bytes[n], t.bytes(t.end()+c.guard()))
	}
}

// guard is how many elements lie before and after tensors and vectors.
func (c *Case) guard() int64 {
	switch {
	case c.Layout == Tight:
		return 0
	case c.KeyType.Blocked():
		return 3 * int64(c.KeyType.Unit())
	}
	return Guard
}

func RoundUp(n, to int64) int64 { return (n + to - 1) / to * to }
