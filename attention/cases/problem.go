package cases

import (
	"encoding/binary"
	"fmt"
	"math"

	"vkattn/attention"
	"vkattn/attention/internal/par"
	"vkattn/vk"
)

// Problem is a case in memory: its tensors somewhere in pieces of memory that
// are otherwise full of NaN.
type Problem struct {
	Case
	DType  attention.DType
	layout MemoryLayout
	Image  [][]byte // each piece of memory, before the call
}

// NaNPair is a NaN read as f16, as bf16 and, twice in a row, as f32.
const NaNPair = 0x7fff

// NewProblem makes the memory of a case in a storage type. Output rows are NaN
// beforehand, so that one that is not written shows.
func NewProblem(c Case, dtype attention.DType) (*Problem, error) {
	p := &Problem{Case: c, DType: dtype, layout: LayOut(c, int64(dtype.Size()))}
	p.Image = p.Blank()
	q, k, v := makeData(c)
	for i, x := range [][]float32{q, k, v} {
		if err := p.Write(p.Image, i, x); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Widened is the same problem with the same numbers in float32, packed, each
// tensor alone in its memory.
func (p *Problem) Widened() (*Problem, error) {
	c := p.Case
	c.Layout = Tight
	w := &Problem{Case: c, DType: attention.F32, layout: LayOut(c, 4)}
	w.Image = w.Blank()
	for i := range TensorO {
		x, err := p.Read(p.Image, i)
		if err == nil {
			err = w.Write(w.Image, i, x)
		}
		if err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Blank is memory for the problem, full of NaN.
func (p *Problem) Blank() [][]byte {
	var images [][]byte
	for _, n := range p.layout.Bytes {
		b := make([]byte, n)
		if n >= 2 {
			binary.LittleEndian.PutUint16(b, NaNPair)
			for done := 2; done < len(b); done *= 2 {
				copy(b[done:len(b)&^1], b[:done])
			}
		}
		images = append(images, b)
	}
	return images
}

// Outputs are the numbers of the pieces of memory that O and LSE lie in.
func (p *Problem) Outputs() []int {
	list := []int{p.layout.Slots[TensorO].Memory}
	if m := p.layout.Slots[TensorLSE].Memory; m >= 0 && m != list[0] {
		list = append(list, m)
	}
	return list
}

// Sizes are the heads, rows and elements of a row of a tensor.
func (p *Problem) Sizes(i int) (heads, seq, dim int) {
	switch i {
	case TensorQ:
		return p.Shape.Hq, p.Shape.Sq, p.D
	case TensorK:
		return p.Shape.KVHeads(), p.Shape.Sk, p.D
	case TensorV:
		return p.Shape.KVHeads(), p.Shape.Sk, p.Dv
	case TensorO:
		return p.Shape.Hq, p.Shape.Sq, p.Dv
	}
	return p.Shape.Hq, p.Shape.Sq, 1
}

// View is a tensor of the problem in host memory.
func (p *Problem) View(images [][]byte, i int) (attention.HostView, error) {
	heads, seq, dim := p.Sizes(i)
	dtype := p.DType
	if i == TensorLSE {
		dtype = attention.F32
	}
	return attention.ViewHost(p.HostTensor(images, i), dtype, heads, seq, dim)
}

// HostTensor is where a tensor lies in the images; zero for an LSE that nobody
// asked for.
func (p *Problem) HostTensor(images [][]byte, i int) attention.Tensor {
	at := p.layout.Slots[i]
	if at.Memory < 0 {
		return attention.Tensor{}
	}
	return attention.Tensor{Host: images[at.Memory], Offset: at.Offset, Strides: at.Strides}
}

// EachRow visits the rows of a tensor in packed order.
func (p *Problem) EachRow(i int, visit func(b, h, row int)) {
	heads, seq, _ := p.Sizes(i)
	for b := range p.Shape.B {
		for h := range heads {
			for row := range seq {
				visit(b, h, row)
			}
		}
	}
}

// Write puts packed numbers into a tensor.
func (p *Problem) Write(images [][]byte, i int, x []float32) error {
	v, err := p.View(images, i)
	if err != nil {
		return err
	}
	heads, seq, dim := p.Sizes(i)
	if p.Layout == Broadcast || p.Layout == Window {
		// Rows share memory: the last one stays, so they go in order.
		p.EachRow(i, func(b, h, row int) {
			v.WriteRow(x[:dim], b, h, row)
			x = x[dim:]
		})
		return nil
	}
	par.Each(int64(p.Shape.B*heads), func() func(int64) {
		return func(n int64) {
			b, h := int(n)/heads, int(n)%heads
			for row := range seq {
				v.WriteRow(x[(int(n)*seq+row)*dim:][:dim], b, h, row)
			}
		}
	})
	return nil
}

// Read is the packed numbers of a tensor.
func (p *Problem) Read(images [][]byte, i int) ([]float32, error) {
	v, err := p.View(images, i)
	if err != nil {
		return nil, err
	}
	heads, seq, dim := p.Sizes(i)
	x := make([]float32, p.Shape.B*heads*seq*dim)
	par.Each(int64(p.Shape.B*heads), func() func(int64) {
		return func(n int64) {
			v.ReadRows(x[int(n)*seq*dim:], int(n)/heads, int(n)%heads, 0, seq)
		}
	})
	return x, nil
}

// HostArgs are the arguments of a call in host memory.
func (p *Problem) HostArgs(images [][]byte) attention.Args {
	a := attention.Args{Shape: p.Shape}
	for i, t := range []*attention.Tensor{&a.Q, &a.K, &a.V, &a.O, &a.LSE} {
		*t = p.HostTensor(images, i)
	}
	return a
}

// DeviceArgs are the arguments of a call on a device that holds the pieces of
// memory.
func (p *Problem) DeviceArgs(buffers []*vk.Buffer) attention.Args {
	a := attention.Args{Shape: p.Shape}
	for i, t := range []*attention.Tensor{&a.Q, &a.K, &a.V, &a.O, &a.LSE} {
		if at := p.layout.Slots[i]; at.Memory >= 0 {
			*t = attention.Tensor{Buffer: buffers[at.Memory], Offset: at.Offset, Strides: at.Strides}
		}
	}
	return a
}

// Spoilers are pairs for K and V: a weight of 0 must not meet any of them.
var Spoilers = func() [][2]float32 {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	return [][2]float32{{nan, nan}, {inf, inf}, {-inf, nan}, {nan, -inf}, {1e4, inf}}
}()

// Spoil returns the memory with keys from the first one on, in K and in V,
// replaced by what would be noticed if it were looked at. It shares the pieces
// of memory that hold neither.
func (p *Problem) Spoil(first int) ([][]byte, error) {
	images := append([][]byte(nil), p.Image...)
	copied := map[int]bool{}
	for _, i := range []int{TensorK, TensorV} {
		m := p.layout.Slots[i].Memory
		if !copied[m] {
			images[m] = append([]byte(nil), images[m]...)
			copied[m] = true
		}
	}
	bad := Spoilers[p.SeedValue()%uint64(len(Spoilers))]
	for n, i := range []int{TensorK, TensorV} {
		v, err := p.View(images, i)
		if err != nil {
			return nil, err
		}
		row := make([]float32, v.Dim())
		for j := range row {
			row[j] = bad[n]
		}
		p.EachRow(i, func(b, h, key int) {
			if key >= first {
				v.WriteRow(row, b, h, key)
			}
		})
	}
	return images, nil
}

// written marks the bytes that a call may write: the rows of O and LSE.
func (p *Problem) written() [][]bool {
	mask := make([][]bool, len(p.Image))
	for i, b := range p.Image {
		mask[i] = make([]bool, len(b))
	}
	for _, i := range []int{TensorO, TensorLSE} {
		at := p.layout.Slots[i]
		if at.Memory < 0 {
			continue
		}
		heads, seq, dim := p.Sizes(i)
		size := p.DType.Size()
		if i == TensorLSE {
			size = 4
		}
		s := at.Strides.Resolve(heads, seq, dim)
		p.EachRow(i, func(b, h, row int) {
			e := at.Offset + int64(b)*s.Batch + int64(h)*s.Head + int64(row)*s.Seq
			for j := range int64(dim * size) {
				mask[at.Memory][e*int64(size)+j] = true
			}
		})
	}
	return mask
}

// Trespass reports the first byte that changed without being an output.
func (p *Problem) Trespass(before, after [][]byte) error {
	mask := p.written()
	for m := range before {
		for i := range before[m] {
			if before[m][i] == after[m][i] || mask[m][i] {
				continue
			}
			var near string
			for j, at := range p.layout.Slots {
				if at.Memory == m {
					near += fmt.Sprintf(" %s from byte %d", TensorNames[j], at.Offset*int64(p.DType.Size()))
				}
			}
			return fmt.Errorf("byte %d of %d of the memory of%s was overwritten: %#02x became %#02x",
				i, len(before[m]), near, before[m][i], after[m][i])
		}
	}
	return nil
}
