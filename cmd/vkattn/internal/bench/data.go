package bench

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/inputs"
	"vkattn/internal/operands"
	"vkattn/internal/problem"
)

// data is one input set of a problem in host memory, from which every runner copies. Its
// numbers are random, and so are the order of pages and the sparse tokens.
type data struct {
	problem    Problem
	args       attention.Args
	grad       attention.BackwardArgs // dO and the gradients, without Args; zero for a forward pass
	rows, keys []int                  // of each sequence
	firstRow   []int                  // first row of each sequence in packed Q and O
	firstKey   []int                  // first key of each sequence in packed K and V
	table      []int32                // block table, stride entries for each sequence
	stride     int
	offsets    []int32 // of the lists of tokens
	tokens     []int32 // sparse tokens
	blocks     *blockMap
}

func newData(p Problem, seed uint64) *data {
	d := &data{problem: p, args: attention.Args{Shape: p.Shape, DropoutSeed: seed}}
	d.rows, d.keys = p.lengths()
	for _, l := range []struct {
		lengths []int
		first   *[]int
	}{{d.rows, &d.firstRow}, {d.keys, &d.firstKey}} {
		at := 0
		for _, n := range l.lengths {
			*l.first = append(*l.first, at)
			at += n
		}
		*l.first = append(*l.first, at)
	}
	r := rand.New(rand.NewPCG(seed, 2))
	d.sequences(r)
	d.tensors(seed)
	d.lists(r)
	d.gradients(seed)
	return d
}

func ints(v []int32) attention.Vector {
	out := make([]byte, 0, 4*len(v))
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, uint32(x))
	}
	return attention.Vector{Host: out}
}

func ints32(v []int) []int32 {
	out := make([]int32, len(v))
	for i, x := range v {
		out[i] = int32(x)
	}
	return out
}

// sequences fills in lengths and block table.
func (d *data) sequences(r *rand.Rand) {
	p, a := d.problem, &d.args
	f := p.Options
	if f.Lengths != "" {
		v := &attention.Varlen{}
		a.Varlen = v
		if f.Packed {
			v.CuQ, v.TotalQ = ints(ints32(d.firstRow)), d.firstRow[len(d.rows)]
		} else {
			v.UsedQ = ints(ints32(d.rows))
		}
		if f.Packed && f.PageSize == 0 {
			v.CuK, v.TotalK = ints(ints32(d.firstKey)), d.firstKey[len(d.keys)]
		} else {
			v.UsedK = ints(ints32(d.keys))
		}
	}
	if f.PageSize == 0 {
		return
	}
	d.stride = (p.Shape.Sk + f.PageSize - 1) / f.PageSize
	count := 0
	for _, n := range d.keys {
		count += (n + f.PageSize - 1) / f.PageSize
	}
	order := r.Perm(count)
	d.table = make([]int32, len(d.keys)*d.stride)
	for b, n := range d.keys {
		for i := range (n + f.PageSize - 1) / f.PageSize {
			d.table[b*d.stride+i] = int32(order[0])
			order = order[1:]
		}
	}
	a.Pages = &attention.Pages{Table: ints(d.table), Stride: d.stride, PageSize: f.PageSize, Count: count}
}

// keyRow is the batch and row of a key in K and V.
func (d *data) keyRow(b, key int) (batch, row int) {
	switch f := d.problem.Options; {
	case d.args.Pages != nil:
		return int(d.table[b*d.stride+key/f.PageSize]), key % f.PageSize
	case d.args.Varlen != nil && d.args.Varlen.CuK.Given():
		return 0, d.firstKey[b] + key
	}
	return b, key
}

// queryRow is the batch and row of a row of a sequence in Q and O.
func (d *data) queryRow(b, row int) (batch, at int) {
	if d.args.Varlen != nil && d.args.Varlen.CuQ.Given() {
		return 0, d.firstRow[b] + row
	}
	return b, row
}

// tensors fills Q, K and V with normal numbers and allocates O, and LSE if the calls have
// it. Packed tensors and pages
// are [row, head, dim], as serving programs have them.
func (d *data) tensors(seed uint64) {
	p, a, c := d.problem, &d.args, d.problem.Config
	batches, rows := p.Shape.B, p.Shape.Sq
	order := attention.BHSD
	if v := a.Varlen; v != nil && v.CuQ.Given() {
		batches, rows, order = 1, v.TotalQ, attention.BSHD
	}
	n := int64(batches) * int64(rows) * int64(p.Shape.Hq)
	a.Q = attention.Tensor{Host: inputs.New(n*int64(c.HeadDim), c.DType, inputs.Normal, seed), Strides: order(p.Shape.Hq, rows, c.HeadDim)}
	a.O = attention.Tensor{Host: make([]byte, n*int64(c.ValueDim())*int64(c.DType.Size())), Strides: order(p.Shape.Hq, rows, c.ValueDim())}
	if p.hasLSE() {
		a.LSE.Host = make([]byte, n*4)
	}

	batches, rows, order = p.Shape.B, p.Shape.Sk, attention.BHSD
	switch v := a.Varlen; {
	case a.Pages != nil:
		batches, rows = a.Pages.Count, a.Pages.PageSize
		if !p.Options.HND {
			order = attention.BSHD
		}
	case v != nil && v.CuK.Given():
		batches, rows, order = 1, v.TotalK, attention.BSHD
	}
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

// lists fills in ALiBi slopes, sinks, the block mask and sparse tokens.
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
		d.blocks = p.blockMap()
		a.Blocks = d.blocks.vector(p)
	}
	switch {
	case p.Options.SparseTopK > 0:
		d.tokensOfRows(r)
		return
	case p.Options.SparseRatio == 0:
		return
	}
	d.offsets = []int32{0}
	for _, n := range d.keys {
		for range p.Shape.KVHeads() {
			d.tokens = append(d.tokens, choose(n, p.sparseKeys(n), r)...)
			d.offsets = append(d.offsets, int32(len(d.tokens)))
		}
	}
	tokens := d.tokens
	if len(tokens) == 0 {
		tokens = []int32{0} // a buffer cannot be empty
	}
	a.SparseTokens = &attention.SparseTokens{Offsets: ints(d.offsets), Tokens: ints(tokens), Total: len(tokens)}
}

// tokensOfRows lists tokens for each row of Q and KV head: of the keys that the row may attend to, at most SparseTopK.
// Lists of fewer, and of rows behind a sequence, are filled up with -1.
func (d *data) tokensOfRows(r *rand.Rand) {
	p := d.problem
	topK, heads := p.Options.SparseTopK, p.Shape.KVHeads()
	batches, extent := d.queryExtent()
	d.tokens = make([]int32, batches*extent*heads*topK)
	for i := range d.tokens {
		d.tokens[i] = -1
	}
	for b, rows := range d.rows {
		for row := range rows {
			lo, hi := p.sees(row, rows, d.keys[b])
			batch, at := d.queryRow(b, row)
			for h := range heads {
				list := d.tokens[((batch*extent+at)*heads+h)*topK:][:topK]
				for i, t := range choose(max(hi-lo, 0), p.sparseKeys(max(hi-lo, 0)), r) {
					list[i] = int32(lo) + t
				}
			}
		}
	}
	tokens := d.tokens
	if len(tokens) == 0 {
		tokens = []int32{-1} // a buffer cannot be empty
	}
	d.args.SparseTokens = &attention.SparseTokens{Tokens: ints(tokens), TopK: topK, PerRow: true}
}

// listOf is the list of sparse tokens of a row and KV head.
func (d *data) listOf(b, kv, row int) []int32 {
	heads := d.problem.Shape.KVHeads()
	if topK := d.problem.Options.SparseTopK; topK > 0 {
		_, extent := d.queryExtent()
		batch, at := d.queryRow(b, row)
		return d.tokens[((batch*extent+at)*heads+kv)*topK:][:topK]
	}
	list := b*heads + kv
	return d.tokens[d.offsets[list]:d.offsets[list+1]]
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
	a := d.all()
	for i, o := range operands.ListBackward(problem.Config(d.problem.Config), &a) {
		if o.Of == i {
			n += uint64(len(o.Host()))
		}
	}
	return n
}

// sparseRatio is the share of tokens that are listed as sparse tokens, 1 without lists. Of lists of rows it is the share of
// the keys that the rows may attend to.
func (d *data) sparseRatio() float64 {
	if d.problem.Options.SparseTopK > 0 {
		return d.ratioOfRows()
	}
	all := d.firstKey[len(d.keys)] * d.problem.Shape.KVHeads()
	if d.tokens == nil || all == 0 {
		return 1
	}
	return float64(len(d.tokens)) / float64(all)
}

func (d *data) ratioOfRows() float64 {
	listed, all := 0, 0
	for b, rows := range d.rows {
		for row := range rows {
			lo, hi := d.problem.sees(row, rows, d.keys[b])
			all += max(hi-lo, 0)
			listed += d.problem.sparseKeys(max(hi-lo, 0))
		}
	}
	if all == 0 {
		return 1
	}
	return float64(listed) / float64(all)
}

// gather reads O as [sequence, head, row, dim] without padding.
func (d *data) gather(o []byte) ([]float32, error) {
	t := d.args.O
	t.Host = o
	c := d.problem.Config
	_, rows := d.queryExtent()
	view, err := attention.ViewHost(t, c.DType, d.problem.Shape.Hq, rows, c.ValueDim())
	if err != nil {
		return nil, err
	}
	dv := c.ValueDim()
	out := make([]float32, d.firstRow[len(d.rows)]*d.problem.Shape.Hq*dv)
	at := out
	for b, n := range d.rows {
		for h := range d.problem.Shape.Hq {
			for row := range n {
				batch, r := d.queryRow(b, row)
				view.ReadRow(at, batch, h, r)
				at = at[dv:]
			}
		}
	}
	return out, nil
}

// queryExtent is the number of batches and rows of Q and O.
func (d *data) queryExtent() (batches, rows int) {
	if v := d.args.Varlen; v != nil && v.CuQ.Given() {
		return 1, v.TotalQ
	}
	return d.problem.Shape.B, d.problem.Shape.Sq
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
	// Each CPU encodes a range of rows at a time.
	const piece = 256
	var all sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			wide := make([]float32, piece*dim)
			for first := range next {
				count := min(piece, n-first)
				half.DecodeF32(wide[:count*dim], inputs.New(int64(count*dim), attention.F32, inputs.Normal, seed+uint64(first)<<8))
				for i := range count {
					put(first+i, wide[i*dim:][:dim])
				}
			}
		})
	}
	for first := 0; first < n; first += piece {
		next <- first
	}
	close(next)
	all.Wait()
	return q
}
