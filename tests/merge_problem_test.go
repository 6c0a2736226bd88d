package tests

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"vkattn/attention"
	"vkattn/attention/merge"
	"vkattn/internal/cases"
	"vkattn/vk"
)

// mergeCase describes a merge: states over the same rows, in one group or two.
type mergeCase struct {
	dtype   attention.DType
	dim     int
	shape   attention.Shape // B, Hq, Sq
	counts  [2]int
	layout  cases.LayoutKind // cases.Tight, cases.BSHD, cases.Padded, cases.Odd or cases.Even
	inPlace int              // 1 + the state whose memory the result gets; 0: memory of its own
	noLSE   bool
	access  attention.Access
	spread  float64 // standard deviation of LSE
	seed    uint64
}

func (c mergeCase) String() string {
	s := fmt.Sprintf("%v.d%d.B%d.H%d.S%d.%d+%d.%v", c.dtype, c.dim, c.shape.B, c.shape.Hq, c.shape.Sq, c.counts[0], c.counts[1], c.layout)
	if c.inPlace > 0 {
		s += fmt.Sprintf(".in%d", c.inPlace-1)
	}
	if c.noLSE {
		s += ".nolse"
	}
	if c.access != attention.AccessAuto {
		s += "." + c.access.String()
	}
	return s
}

func (c mergeCase) config() merge.MergeConfig {
	return merge.MergeConfig{DType: c.dtype, HeadDim: c.dim, Access: c.access}
}

func (c mergeCase) states() int { return c.counts[0] + c.counts[1] }

func (c mergeCase) rows() int { return int(c.shape.Rows()) }

// Pieces of memory of a merge. A merge in place has none for the result.
const (
	mergeOut = 4 + iota
	mergeOutLSE
	mergePieces
)

// mergeSlot is the layout of a tensor of states: the offset of the first state and the step
// between states.
type mergeSlot struct {
	memory  int // which piece
	offset  int64
	strides attention.Strides
	step    int64
	count   int
}

// mergeProblem is a case in memory: O and LSE of both groups and of the result. All memory
// outside of the tensors is NaN.
type mergeProblem struct {
	mergeCase
	slots [mergePieces]mergeSlot
	image [mergePieces][]byte
	o     [][]float32 // of each state, packed, as stored
	lse   [][]float32
}

// newMergeProblem makes states of random numbers. Some rows attend to no key in some states
// or in all of them; their O is poison.
func newMergeProblem(c mergeCase) *mergeProblem {
	p := &mergeProblem{mergeCase: c}
	for i := range p.slots {
		p.slots[i] = c.slot(i)
	}
	if n := c.inPlace - 1; n >= 0 {
		group, at := 0, n
		if n >= c.counts[0] {
			group, at = 1, n-c.counts[0]
		}
		for _, i := range []int{0, 2} {
			out := p.slots[group+i]
			out.offset += int64(at) * p.distance(group+i)
			out.step, out.count = 0, 1
			p.slots[mergeOut+i/2] = out
		}
	}
	for i := range p.image {
		if p.slots[i].memory == i && p.slots[i].count > 0 {
			p.image[i] = make([]byte, p.bytes(i))
			for j := 0; j+1 < len(p.image[i]); j += 2 {
				binary.LittleEndian.PutUint16(p.image[i][j:], cases.NaNPair)
			}
		}
	}
	rng := rand.New(rand.NewPCG(c.seed, 1))
	for n := range c.states() {
		o, lse := make([]float32, c.rows()*c.dim), make([]float32, c.rows())
		for r := range lse {
			lse[r] = float32(rng.NormFloat64() * c.spread)
			if rng.IntN(5) == 0 || r%11 == 3 || r%11 == 7 && n != 0 {
				lse[r] = -inf
			}
			bad := cases.Spoilers[rng.IntN(len(cases.Spoilers))][1]
			for d := range c.dim {
				if o[r*c.dim+d] = float32(rng.NormFloat64()); lse[r] == -inf {
					o[r*c.dim+d] = bad
				}
			}
		}
		p.setState(n, o, lse)
	}
	return p
}

// setState writes a state's numbers to memory and keeps them as stored.
func (p *mergeProblem) setState(n int, o, lse []float32) {
	group, i := 0, n
	if n >= p.counts[0] {
		group, i = 1, n-p.counts[0]
	}
	p.write(group, i, o)
	p.write(2+group, i, lse)
	for len(p.o) <= n {
		p.o, p.lse = append(p.o, nil), append(p.lse, nil)
	}
	p.o[n], p.lse[n] = p.read(p.image, group, i), lse
}

func isMergeLSE(i int) bool { return i == 2 || i == 3 || i == mergeOutLSE }

func (c mergeCase) dimOf(i int) (dtype attention.DType, dim int) {
	if isMergeLSE(i) {
		return attention.F32, 1
	}
	return c.dtype, c.dim
}

// place lays out a tensor. No two tensors have the same strides.
func (c mergeCase) slot(i int) mergeSlot {
	count := 1
	if i < mergeOut {
		count = c.counts[i%2]
	} else if i == mergeOutLSE && c.noLSE {
		count = 0
	}
	at := mergeSlot{memory: i, count: count}
	if count == 0 {
		at.memory = -1
		return at
	}
	_, dim := c.dimOf(i)
	h, n, d := int64(c.shape.Hq), int64(c.shape.Sq), int64(dim)
	more := int64(i % 4)
	switch c.layout {
	case cases.Tight:
		return at
	case cases.BSHD:
		at.strides = attention.BSHD(c.shape.Hq, c.shape.Sq, dim)
	case cases.Padded:
		at.strides = cases.SpacedStrides(h, n, cases.RoundUp(d, 8)+8*(1+more), 16, 24)
	case cases.Odd:
		at.offset = 1 + 2*more
		at.strides = cases.SpacedStrides(h, n, d|1+2*more, 1-n%2, 4)
		at.strides.Batch |= 1
		at.strides.Head |= 1
	case cases.Even:
		at.offset = 2
		at.strides = cases.SpacedStrides(h, n, cases.RoundUp(d, 4)+2, 2*((n+1)%2), 2)
	}
	at.offset += cases.Guard
	if isMergeLSE(i) {
		at.strides = attention.BHSD(c.shape.Hq, c.shape.Sq, 1)
	}
	if count > 1 && c.layout != cases.BSHD {
		s := at.strides
		at.step = int64(c.shape.B-1)*s.Batch + (h-1)*s.Head + (n-1)*s.Seq + d
		switch {
		case c.layout == cases.Padded && !isMergeLSE(i):
			at.step = cases.RoundUp(at.step, 8)
		case c.layout == cases.Odd:
			at.step |= 1
		case c.layout == cases.Even:
			at.step += 2 - at.step%2
		}
	}
	return at
}

// distance returns the step between states, with its default filled in.
func (p *mergeProblem) distance(i int) int64 {
	if s := p.slots[i]; s.step != 0 || s.count < 2 {
		return s.step
	}
	_, dim := p.dimOf(i)
	return int64(p.rows() * dim)
}

func (p *mergeProblem) bytes(i int) int64 {
	dtype, dim := p.dimOf(i)
	at := p.slots[i]
	s := at.strides.Resolve(p.shape.Hq, p.shape.Sq, dim)
	end := at.offset + int64(at.count-1)*p.distance(i) +
		int64(p.shape.B-1)*s.Batch + int64(p.shape.Hq-1)*s.Head + int64(p.shape.Sq-1)*s.Seq + int64(dim)
	if p.layout != cases.Tight {
		end += cases.Guard
	}
	return end * int64(dtype.Size())
}

// eachRow visits the memory of the rows of a tensor's state in packed order.
func (p *mergeProblem) eachRow(images [mergePieces][]byte, i, state int, visit func(row []byte)) {
	dtype, dim := p.dimOf(i)
	at, size := p.slots[i], int64(dtype.Size())
	s := at.strides.Resolve(p.shape.Hq, p.shape.Sq, dim)
	for b := range int64(p.shape.B) {
		for h := range int64(p.shape.Hq) {
			for r := range int64(p.shape.Sq) {
				e := at.offset + int64(state)*p.distance(i) + b*s.Batch + h*s.Head + r*s.Seq
				visit(images[at.memory][e*size : (e+int64(dim))*size])
			}
		}
	}
}

func (p *mergeProblem) write(i, state int, x []float32) {
	dtype, dim := p.dimOf(i)
	p.eachRow(p.image, i, state, func(row []byte) {
		dtype.Encode(row, x[:dim])
		x = x[dim:]
	})
}

func (p *mergeProblem) read(images [mergePieces][]byte, i, state int) []float32 {
	dtype, dim := p.dimOf(i)
	x := make([]float32, p.rows()*dim)
	rest := x
	p.eachRow(images, i, state, func(row []byte) {
		dtype.Decode(rest[:dim], row)
		rest = rest[dim:]
	})
	return x
}

// args returns the arguments of the call, given the memory of each tensor.
func (p *mergeProblem) args(memory func(piece int) attention.Tensor) merge.MergeArgs {
	tensor := func(i int) attention.Tensor {
		at := p.slots[i]
		if at.count == 0 {
			return attention.Tensor{}
		}
		t := memory(at.memory)
		t.Offset, t.Strides = at.offset, at.strides
		return t
	}
	a := merge.MergeArgs{Shape: p.shape, O: tensor(mergeOut), LSE: tensor(mergeOutLSE)}
	for g, s := range []*merge.States{&a.First, &a.Second} {
		if n := p.counts[g]; n > 0 {
			*s = merge.States{O: tensor(g), LSE: tensor(2 + g), StepO: p.slots[g].step, StepLSE: p.slots[2+g].step}
			if n > 1 {
				s.Count = n
			}
		}
	}
	return a
}

// run makes the merge on a device, or on the CPU if dev is nil.
func (p *mergeProblem) run(dev *vk.Device) (after [mergePieces][]byte, err error) {
	m, err := merge.NewMerge(attention.On(dev), p.config())
	if err != nil {
		return after, err
	}
	defer closing(m, &err)
	list, err := onImages(dev, p.image[:], func(c *callMemory) error {
		return m.Forward(attention.OnStream(c.stream), p.args(c.tensor))
	})
	if err != nil {
		return after, err
	}
	return [mergePieces][]byte(list), nil
}

// merged is the result of a call, packed; lse is nil if there is none.
func (p *mergeProblem) merged(after [mergePieces][]byte) (o, lse []float32) {
	if !p.noLSE {
		lse = p.read(after, mergeOutLSE, 0)
	}
	return p.read(after, mergeOut, 0), lse
}
