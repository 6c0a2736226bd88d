package tests

import (
	"encoding/binary"
	"fmt"

	"vkattn/attention"
	"vkattn/vk"
)

// problem is a case in memory: its tensors somewhere in pieces of memory that
// are otherwise full of NaN.
type problem struct {
	testCase
	tt    tierType // tier is not looked at here
	place placement
	image [][]byte // each piece of memory, before the call
}

// nanPair is a NaN read as f16, as bf16 and, twice in a row, as f32.
const nanPair = 0x7fff

// newProblem makes the memory of a case in a storage type. Output rows are NaN
// beforehand, so that one that is not written shows.
func newProblem(c testCase, dtype attention.DType) (*problem, error) {
	p := &problem{testCase: c, tt: tierType{dtype: dtype}, place: place(c, int64(dtype.Size()))}
	for _, n := range p.place.bytes {
		b := make([]byte, n)
		for i := 0; i+1 < len(b); i += 2 {
			binary.LittleEndian.PutUint16(b[i:], nanPair)
		}
		p.image = append(p.image, b)
	}
	q, k, v := makeData(c)
	for i, x := range [][]float32{q, k, v} {
		if err := p.write(p.image, i, x); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// heads, seq and dim are the sizes of a tensor.
func (p *problem) sizes(i int) (heads, seq, dim int) {
	switch i {
	case tensorQ:
		return p.shape.Hq, p.shape.Sq, p.d
	case tensorK:
		return p.shape.KVHeads(), p.shape.Sk, p.d
	case tensorV:
		return p.shape.KVHeads(), p.shape.Sk, p.dv
	case tensorO:
		return p.shape.Hq, p.shape.Sq, p.dv
	}
	return p.shape.Hq, p.shape.Sq, 1
}

// view is a tensor of the problem in host memory.
func (p *problem) view(images [][]byte, i int) (attention.HostView, error) {
	heads, seq, dim := p.sizes(i)
	dtype := p.tt.dtype
	if i == tensorLSE {
		dtype = attention.F32
	}
	return attention.ViewHost(p.hostTensor(images, i), dtype, heads, seq, dim)
}

func (p *problem) hostTensor(images [][]byte, i int) attention.Tensor {
	at := p.place.slots[i]
	if at.memory < 0 {
		return attention.Tensor{}
	}
	return attention.Tensor{Host: images[at.memory], Offset: at.offset, Strides: at.strides}
}

// eachRow visits the rows of a tensor in packed order.
func (p *problem) eachRow(i int, visit func(b, h, row int)) {
	heads, seq, _ := p.sizes(i)
	for b := range p.shape.B {
		for h := range heads {
			for row := range seq {
				visit(b, h, row)
			}
		}
	}
}

// write puts packed numbers into a tensor.
func (p *problem) write(images [][]byte, i int, x []float32) error {
	v, err := p.view(images, i)
	if err != nil {
		return err
	}
	p.eachRow(i, func(b, h, row int) {
		v.WriteRow(x[:v.Dim()], b, h, row)
		x = x[v.Dim():]
	})
	return nil
}

// read is the packed numbers of a tensor.
func (p *problem) read(images [][]byte, i int) ([]float32, error) {
	v, err := p.view(images, i)
	if err != nil {
		return nil, err
	}
	heads, seq, dim := p.sizes(i)
	x := make([]float32, p.shape.B*heads*seq*dim)
	rest := x
	p.eachRow(i, func(b, h, row int) {
		v.ReadRow(rest[:dim], b, h, row)
		rest = rest[dim:]
	})
	return x, nil
}

// hostArgs are the arguments of a call in host memory.
func (p *problem) hostArgs(images [][]byte) attention.Args {
	a := attention.Args{Shape: p.shape}
	for i, t := range []*attention.Tensor{&a.Q, &a.K, &a.V, &a.O, &a.LSE} {
		*t = p.hostTensor(images, i)
	}
	return a
}

// deviceArgs are the arguments of a call on a device that holds the pieces of
// memory.
func (p *problem) deviceArgs(buffers []*vk.Buffer) attention.Args {
	a := attention.Args{Shape: p.shape}
	for i, t := range []*attention.Tensor{&a.Q, &a.K, &a.V, &a.O, &a.LSE} {
		if at := p.place.slots[i]; at.memory >= 0 {
			*t = attention.Tensor{Buffer: buffers[at.memory], Offset: at.offset, Strides: at.strides}
		}
	}
	return a
}

// spoil returns the memory with keys from the first one on, in K and in V,
// replaced by what would be noticed if it were looked at. It shares the pieces
// of memory that hold neither.
func (p *problem) spoil(first int) ([][]byte, error) {
	images := append([][]byte(nil), p.image...)
	copied := map[int]bool{}
	for _, i := range []int{tensorK, tensorV} {
		m := p.place.slots[i].memory
		if !copied[m] {
			images[m] = append([]byte(nil), images[m]...)
			copied[m] = true
		}
	}
	bad := spoilers[p.seedValue()%uint64(len(spoilers))]
	for n, i := range []int{tensorK, tensorV} {
		v, err := p.view(images, i)
		if err != nil {
			return nil, err
		}
		row := make([]float32, v.Dim())
		for j := range row {
			row[j] = bad[n]
		}
		p.eachRow(i, func(b, h, key int) {
			if key >= first {
				v.WriteRow(row, b, h, key)
			}
		})
	}
	return images, nil
}

// written marks the bytes that a call may write: the rows of O and LSE.
func (p *problem) written() [][]bool {
	mask := make([][]bool, len(p.image))
	for i, b := range p.image {
		mask[i] = make([]bool, len(b))
	}
	for _, i := range []int{tensorO, tensorLSE} {
		at := p.place.slots[i]
		if at.memory < 0 {
			continue
		}
		heads, seq, dim := p.sizes(i)
		size := p.tt.dtype.Size()
		if i == tensorLSE {
			size = 4
		}
		s := at.strides.Resolve(heads, seq, dim)
		p.eachRow(i, func(b, h, row int) {
			e := at.offset + int64(b)*s.Batch + int64(h)*s.Head + int64(row)*s.Seq
			for j := range int64(dim * size) {
				mask[at.memory][e*int64(size)+j] = true
			}
		})
	}
	return mask
}

// trespass reports the first byte that changed without being an output.
func (p *problem) trespass(before, after [][]byte) error {
	mask := p.written()
	for m := range before {
		for i := range before[m] {
			if before[m][i] == after[m][i] || mask[m][i] {
				continue
			}
			var near string
			for j, at := range p.place.slots {
				if at.memory == m {
					near += fmt.Sprintf(" %s from byte %d", tensorNames[j], at.offset*int64(p.tt.dtype.Size()))
				}
			}
			return fmt.Errorf("byte %d of %d of the memory of%s was overwritten: %#02x became %#02x",
				i, len(before[m]), near, before[m][i], after[m][i])
		}
	}
	return nil
}
