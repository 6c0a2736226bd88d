package bench

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/hostcall"
	"vkattn/internal/inputs"
	"vkattn/internal/operands"
	"vkattn/internal/par"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// data is one input set of a problem in host memory, from which every runner copies. Its
// numbers are random, and so are the order of pages and the sparse tokens.
type data struct {
	problem Problem
	args    attention.BackwardArgs // of a forward pass those of attention.Args alone
	call    *hostcall.Call         // says where its rows and keys lie
}

func newData(p Problem, seed uint64) *data {
	d := &data{problem: p}
	d.args.Shape, d.args.DropoutSeed = p.Shape, seed
	r := rand.New(rand.NewPCG(seed, 2))
	d.sequences(r)
	d.tensors(seed)
	d.lists(r)
	d.open()
	if p.sparse() {
		d.tokens(r)
	}
	d.gradients(seed)
	return d
}

// open reads the arguments, which have all memory but that of sparse tokens.
func (d *data) open() {
	d.call = new(hostcall.Call)
	if err := d.call.Open((*problem.Config)(&d.problem.Config), &d.args.Args); err != nil {
		panic(err) // a tensor is smaller than its sizes say
	}
}

// Ints are integers in host memory, an empty Vector for nil.
func Ints[T int | int32](v []T) (list attention.Vector) {
	if v != nil {
		list.Host = make([]byte, 0, 4*len(v))
	}
	for _, x := range v {
		list.Host = binary.LittleEndian.AppendUint32(list.Host, uint32(x))
	}
	return list
}

// sequences fills in lengths and block table.
func (d *data) sequences(r *rand.Rand) {
	p, a := d.problem, &d.args
	f := p.Options
	rows, keys := p.lengths()
	if f.Lengths != "" {
		lay := func(lengths []int, packed bool) (cu, used attention.Vector, total int) {
			if !packed {
				return cu, Ints(lengths), 0
			}
			ends := []int{0}
			for _, n := range lengths {
				total += n
				ends = append(ends, total)
			}
			return Ints(ends), used, total
		}
		v := &attention.Varlen{}
		v.CuQ, v.UsedQ, v.TotalQ = lay(rows, f.Packed)
		v.CuK, v.UsedK, v.TotalK = lay(keys, f.Packed && f.PageSize == 0)
		a.Varlen = v
	}
	if f.PageSize == 0 {
		return
	}
	stride, count := (p.Shape.Sk+f.PageSize-1)/f.PageSize, int(p.counts().pages)
	order, table := r.Perm(count), make([]int, len(keys)*stride)
	for b, n := range keys {
		order = order[copy(table[b*stride:], order[:(n+f.PageSize-1)/f.PageSize]):]
	}
	a.Pages = &attention.Pages{Table: Ints(table), Stride: stride, PageSize: f.PageSize, Count: count}
}

// tensors fills Q, K and V with normal numbers and allocates O, and LSE if the calls have
// it. Packed tensors and pages
// are [row, head, dim], as serving programs have them.
func (d *data) tensors(seed uint64) {
	p, a, c := d.problem, &d.args, d.problem.Config
	packedAs := func(packed bool) func(heads, seq, dim int) attention.Strides {
		if packed {
			return attention.BSHD
		}
		return attention.BHSD
	}
	v := a.Varlen
	batches, rows := tensors.QueryExtent(&a.Args)
	order := packedAs(v != nil && v.CuQ.Given())
	n := int64(batches) * int64(rows) * int64(p.Shape.Hq)
	a.Q = attention.Tensor{Host: inputs.New(n*int64(c.HeadDim), c.DType, inputs.Normal, seed), Strides: order(p.Shape.Hq, rows, c.HeadDim)}
	a.O = attention.Tensor{Host: make([]byte, n*int64(c.ValueDim())*int64(c.DType.Size())), Strides: order(p.Shape.Hq, rows, c.ValueDim())}
	if p.hasLSE() {
		a.LSE.Host = make([]byte, n*4)
	}

	batches, rows = tensors.KVExtent(&a.Args)
	order = packedAs(a.Pages != nil && !p.Options.HND || v != nil && v.CuK.Given())
	for i, t := range []struct {
		to    *attention.Tensor
		scale *attention.Vector
		kv    attention.KVType
		dim   int
	}{{&a.K, &a.KScale, c.KeyType, c.HeadDim}, {&a.V, &a.VScale, c.ValueType, c.ValueDim()}} {
		if i == 1 && p.SharedKV {
			a.V, a.VScale = a.K, a.KScale
			break
		}
		strides := order(p.Shape.KVHeads(), rows, t.dim)
		n := int64(batches) * int64(p.Shape.KVHeads()) * int64(rows)
		t.to.Strides = strides
		if t.kv == attention.KVSame {
			t.to.Host = inputs.New(n*int64(t.dim), c.DType, inputs.Normal, seed+1+uint64(i))
			continue
		}
		q := quantize(t.kv, c.KVBlock, [3]int{batches, p.Shape.KVHeads(), rows}, t.dim, strides, seed+1+uint64(i))
		t.to.Host, t.scale.Host = q.rows, q.scales
	}
}

// lists fills in ALiBi slopes, tables, sinks and the block mask.
func (d *data) lists(r *rand.Rand) {
	p, a := d.problem, &d.args
	if p.Options.ALiBi {
		slopes := make([]float32, p.Shape.Hq)
		for h := range slopes {
			slopes[h] = float32(math.Exp2(-8 * float64(h+1) / float64(p.Shape.Hq)))
		}
		a.ALiBi.Host = make([]byte, 4*len(slopes))
		half.EncodeF32(a.ALiBi.Host, slopes)
	}
	a.Tables = p.Tables.Memory(d.args.DropoutSeed)
	if p.Options.Sinks {
		a.Sinks.Host = inputs.New(int64(p.Shape.Hq), attention.F32, inputs.Normal, r.Uint64())
	}
	if p.Blocks > 0 {
		a.Blocks = p.blockMap().vector(p)
	}
}

// tokens lists sparse tokens of each sequence and KV head; with SparseTopK of each row of Q and KV head, of the keys that the
// row may attend to. Those lists have one length: fewer tokens, and rows behind a sequence, are filled up with -1.
func (d *data) tokens(r *rand.Rand) {
	p, list, heads := d.problem, &attention.SparseTokens{}, d.problem.Shape.KVHeads()
	d.args.SparseTokens = list
	var tokens []int32
	if topK := p.Options.SparseTopK; topK > 0 {
		list.TopK, list.PerRow = topK, true
		batches, rows := tensors.QueryExtent(&d.args.Args)
		tokens = slices.Repeat([]int32{-1}, max(1, batches*rows*heads*topK)) // a buffer cannot be empty
		for b, s := range d.call.Sequences {
			for row := range s.Rows {
				lo, hi := d.call.Span(b, row)
				for h := range heads {
					at, _ := d.call.SparseList(b, h, row)
					for i, t := range choose(max(hi-lo, 0), p.sparseKeys(max(hi-lo, 0)), r) {
						tokens[at+i] = int32(lo) + t
					}
				}
			}
		}
	} else {
		offsets := []int{0}
		for _, s := range d.call.Sequences {
			for range heads {
				tokens = append(tokens, choose(s.Keys, p.sparseKeys(s.Keys), r)...)
				offsets = append(offsets, len(tokens))
			}
		}
		list.Offsets, list.Total = Ints(offsets), max(1, len(tokens))
		tokens = append(tokens, make([]int32, list.Total-len(tokens))...)
	}
	list.Tokens = Ints(tokens)
}

// choose picks k of the numbers below n, ascending, with equal probability for each
// subset (selection sampling, Knuth's algorithm S).
func choose(n, k int, r *rand.Rand) []int32 {
	out := make([]int32, 0, k)
	for i := range n {
		if r.IntN(n-i) < k-len(out) {
			out = append(out, int32(i))
		}
	}
	return out
}

// bytes is the size of all arguments.
func (d *data) bytes() (n uint64) {
	a := d.args
	for i, o := range operands.ListBackward(problem.Config(d.problem.Config), &a) {
		if o.Of == i {
			n += uint64(len(o.Host()))
		}
	}
	return n
}

// gather reads the rows of O that the call of other data has, as [sequence, head, row, dim].
func (d *data) gather(o []byte, of *data) ([]float32, error) {
	rows, err := tensors.ExistingRows(of.args.Args)
	if err != nil {
		return nil, err
	}
	return d.read(d.args.O, o, d.problem.Config.DType, d.problem.Config.ValueDim(), rows)
}

// read reads rows of a tensor of the call from other memory.
func (d *data) read(t attention.Tensor, from []byte, dtype attention.DType, dim int, rows []attention.Rows) ([]float32, error) {
	t.Host = from
	return d.call.ReadRows(t, dtype, dim, rows)
}

// quantized is a tensor of random numbers in a quantized type, with the scale of each
// row if the type has separate scales.
type quantized struct{ rows, scales []byte }

// sharedMagnitude is the magnitude that shared scales map to the largest number. One in 10^7 normal numbers is beyond it.
const sharedMagnitude = 5.25

// quantize returns a tensor [batch, heads, rows, dim] of normal numbers. Strides are in
// elements.
func quantize(kv attention.KVType, block int, size [3]int, dim int, s attention.Strides, seed uint64) quantized {
	rowBytes, format := int64(kv.RowBytes(attention.F32, dim)), problem.FormatOf(kv)
	n := size[0] * size[1] * size[2]
	q := quantized{rows: make([]byte, int64(n)*rowBytes)}
	switch shared := map[int]int{attention.KVBlockHead: size[1], attention.KVBlockTensor: 1}[block]; {
	case shared != 0:
		scale := format.ScaleOf([]float32{sharedMagnitude})
		for range shared {
			q.scales = binary.LittleEndian.AppendUint32(q.scales, math.Float32bits(scale))
		}
	case kv.Scaled():
		q.scales = make([]byte, 4*n)
	}
	put := func(i int, row []float32) {
		b, h, r := i/(size[1]*size[2]), i/size[2]%size[1], i%size[2]
		at := (int64(b)*s.Batch + int64(h)*s.Head + int64(r)*s.Seq) / int64(dim) * rowBytes
		dst := q.rows[at : at+rowBytes]
		if block != 0 {
			format.EncodeWith(dst, row, format.ScaleOf([]float32{sharedMagnitude}))
			return
		}
		scale := format.Encode(dst, row)
		if kv.Scaled() {
			binary.LittleEndian.PutUint32(q.scales[4*i:], math.Float32bits(scale))
		}
	}
	const piece = 256
	par.Each(int64(n+piece-1)/piece, func() func(int64) {
		wide := make([]float32, piece*dim)
		return func(i int64) {
			first := int(i) * piece
			count := min(piece, n-first)
			half.DecodeF32(wide[:count*dim], inputs.New(int64(count*dim), attention.F32, inputs.Normal, seed+uint64(first)<<8))
			for i := range count {
				put(first+i, wide[i*dim:][:dim])
			}
		}
	})
	return q
}
