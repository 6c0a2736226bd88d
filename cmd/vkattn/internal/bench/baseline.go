package bench

import (
	"fmt"
	"math"
	"sync"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/operands"
	"vkattn/vk"
	"vkattn/vk/hostmem"
)

// Baseline is another way to the result of a problem that its rows are compared with,
// on the same device and the same data, in the same rounds.
type Baseline string

// Baselines.
const (
	BaselineByMask     Baseline = "by-mask"    // tier scalar over padded, contiguous K and V, all that is not attended to masked by a matrix
	BaselineCUDARef    Baseline = "cuda-ref"   // the plain CUDA kernel in float32
	BaselineContiguous Baseline = "contiguous" // the same tier, K and V of the pages one after the other
	BaselineSeparate   Baseline = "separate"   // the same tier, one dispatch for each sequence and no barrier between them
	BaselineCopy       Baseline = "copy"       // a device copy that reads and writes as many bytes together as K and V have
)

// Baselines lists every Baseline with what it is, for people.
var Baselines = []struct {
	Baseline Baseline
	About    string
}{
	{BaselineByMask, "tier scalar over padded, contiguous K and V; causal mask, lengths and sparse tokens as a matrix of booleans, every cell computed"},
	{BaselineCUDARef, "this project's plain CUDA kernel in float32"},
	{BaselineContiguous, "the same tier (the first of several), what lies in pages contiguous instead"},
	{BaselineSeparate, "the same tier (the first of several), a dispatch of its own for each sequence, without barriers between them"},
	{BaselineCopy, "a copy on the device, vkCmdCopyBuffer, that reads and writes as many bytes together as a row reads of K and V"},
}

// ParseBaseline reads the name of a Baseline.
func ParseBaseline(s string) (Baseline, error) {
	var names string
	for _, f := range Baselines {
		if string(f.Baseline) == s {
			return f.Baseline, nil
		}
		names += ", " + string(f.Baseline)
	}
	return "", fmt.Errorf("unknown reference %q, want one of %s", s, names[2:])
}

// spec is what a row of this form runs where rows of a tier are compared with it.
func (b Baseline) spec(of attention.Tier, dev *vk.Device) Spec {
	s := Spec{Tier: of, Baseline: b}
	switch {
	case dev == nil:
		s.Tier = attention.TierCPU
	case b == BaselineByMask:
		s.Tier = attention.TierScalar
	case b == BaselineCUDARef:
		s.Tier, s.Kernel = attention.TierCUDA, "ref"
	}
	return s
}

// isReference reports whether the form has results of other code, for rows' to be
// compared with.
func (b Baseline) isReference() bool { return b == BaselineByMask || b == BaselineCUDARef }

// applies reports whether there is anything to compare a problem with in this
// form.
func (b Baseline) applies(p Problem, dev *vk.Device) bool {
	switch b {
	case BaselineByMask:
		return p.Config.KV == attention.KVSame
	case BaselineCUDARef:
		if dev == nil || !p.Plain() {
			return false
		}
		for _, s := range attention.TierReport(dev) {
			if s.Tier == attention.TierCUDA && s.DType == p.Config.DType {
				return s.Available
			}
		}
		return false
	case BaselineContiguous:
		return p.PageSize > 0
	case BaselineSeparate:
		// Scales have the stride of the longest sequence, which a call of one cannot give.
		if p.Options.Lengths == "" || p.Options.SparseRatio > 0 || p.Blocks > 0 || p.Config.KV.Scaled() {
			return false
		}
		rows, keys := p.lengths()
		for i := range rows {
			if rows[i] > 0 && keys[i] == 0 { // nobody writes its zeros
				return false
			}
		}
	}
	return true
}

// separate are the calls of each sequence that has rows and keys.
func (d *data) separate(a attention.Args) (calls []attention.Args) {
	for b := range d.rows {
		if d.rows[b] == 0 || d.keys[b] == 0 {
			continue
		}
		one := operands.Clone(a)
		one.B, one.Sq, one.Sk, one.Varlen = 1, d.rows[b], d.keys[b], nil
		batch, row := d.queryRow(b, 0)
		for _, t := range []*attention.Tensor{&one.Q, &one.O} {
			t.Offset += int64(batch)*t.Strides.Batch + int64(row)*t.Strides.Seq
		}
		if one.Pages != nil {
			one.Pages.Table.Offset += int64(b * d.stride)
		} else {
			batch, row := d.keyRow(b, 0)
			for _, t := range []*attention.Tensor{&one.K, &one.V} {
				t.Offset += int64(batch)*t.Strides.Batch + int64(row)*t.Strides.Seq
			}
		}
		calls = append(calls, one)
	}
	return calls
}

// maxMask bounds the matrix of BaselineByMask.
const maxMask = 1 << 30

// maskBytes is the size of that matrix, and its batches, heads and rows.
func (p Problem) maskBytes() (size uint64, axes [3]int) {
	axes = [3]int{p.Shape.B, 1, p.Shape.Sq}
	if p.Options.SparseRatio > 0 || p.Blocks > 0 {
		axes[1] = p.Shape.Hq
	}
	if p.Options.Lengths == "" && p.Options.SparseRatio == 0 {
		axes[0] = 1
	}
	return hostmem.Product(axes[0], axes[1], axes[2], p.Shape.Sk), axes
}

// byMask is the same problem without features but a mask: K and V gathered and
// padded, every key of a sequence with a byte that says whether a row sees it.
func (d *data) byMask() (*data, error) {
	p := d.problem
	size, axes := p.maskBytes()
	batches, heads, maskRows := axes[0], axes[1], axes[2]
	m := &data{problem: p, rows: d.rows, keys: d.keys, firstRow: d.firstRow, firstKey: d.firstKey,
		args: attention.Args{Shape: p.Shape, ALiBi: d.args.ALiBi, Sinks: d.args.Sinks}}
	m.problem.Options = Options{Sinks: p.Options.Sinks, ALiBi: p.Options.ALiBi}
	c := &m.problem.Config
	if c.Causal != attention.CausalNone && p.Options.ALiBi {
		c.Align = c.Causal
	}
	c.Causal, c.Window, c.FixedSplit = attention.CausalNone, attention.Window{}, 0
	if p.Options.ALiBi && p.Options.Lengths != "" && c.Align == attention.BottomRight {
		return nil, fmt.Errorf("%w: positions of ALiBi from the end of sequences that are padded", attention.ErrUnsupported)
	}
	m.args.Q = d.padded(d.args.Q, p.Shape.Hq, p.Shape.Sq, c.HeadDim, int64(c.HeadDim*c.DType.Size()), d.rows, d.queryRow)
	d.contiguousKV(&m.args)
	m.args.O.Host = make([]byte, p.Shape.Rows()*int64(c.ValueDim()*c.DType.Size()))
	mask := make([]byte, size)
	for b := range batches {
		for h := range heads {
			for row := range d.rows[b] {
				line := mask[((b*heads+h)*maskRows+row)*p.Shape.Sk:][:d.keys[b]]
				lo, hi := p.sees(row, d.rows[b], d.keys[b])
				if d.tokens == nil {
					for i := lo; i < hi; i++ {
						if d.blocks == nil || d.blocks.at(h/p.Shape.Group(), row/p.BlockQ, i/p.BlockK) {
							line[i] = 1
						}
					}
					continue
				}
				list := b*p.Shape.KVHeads() + h/p.Shape.Group()
				for _, t := range d.tokens[d.offsets[list]:d.offsets[list+1]] {
					if int(t) >= lo && int(t) < hi {
						line[t] = 1
					}
				}
			}
		}
	}
	m.args.Mask = &attention.Mask{Batches: batches, Heads: heads, Rows: maskRows}
	m.args.Mask.Host = mask
	m.args.Mask.Strides = attention.BHSD(heads, maskRows, p.Shape.Sk)
	return m, nil
}

// contiguous is the same problem without pages.
func (d *data) contiguous() *data {
	c := *d
	c.args = operands.Clone(d.args)
	d.contiguousKV(&c.args)
	c.args.Pages, c.table = nil, nil
	c.problem.PageSize, c.problem.HND = 0, false
	return &c
}

// contiguousKV gathers K and V with their scales as packed [batch, heads, keys, dim].
func (d *data) contiguousKV(a *attention.Args) {
	p, c := d.problem, d.problem.Config
	heads, keys := p.Shape.KVHeads(), p.Shape.Sk
	a.K = d.padded(d.args.K, heads, keys, c.HeadDim, int64(c.KV.RowBytes(c.DType, c.HeadDim)), d.keys, d.keyRow)
	if p.SharedKV {
		a.V = a.K
	} else {
		a.V = d.padded(d.args.V, heads, keys, c.ValueDim(), int64(c.KV.RowBytes(c.DType, c.ValueDim())), d.keys, d.keyRow)
	}
	if c.KV.Scaled() {
		// A scale is a row of one element, in the order of the heads.
		for _, s := range []struct{ to, from *attention.Vector }{{&a.KScale, &d.args.KScale}, {&a.VScale, &d.args.VScale}} {
			rows := attention.Tensor{Host: s.from.Host}
			if d.args.Pages != nil {
				rows.Strides = attention.BHSD(heads, p.PageSize, 1)
			}
			s.to.Host = d.padded(rows, heads, keys, 1, 4, d.keys, d.keyRow).Host
		}
	}
}

// padded is a tensor as packed [batch, heads, rows, dim], zeros where a sequence
// has no row; the tensor itself where it is that. A row of dim elements takes so
// many bytes.
func (d *data) padded(t attention.Tensor, heads, rows, dim int, rowBytes int64, lengths []int, place func(b, row int) (int, int)) attention.Tensor {
	if d.args.Pages == nil && (d.args.Varlen == nil || !d.problem.Packed) {
		return t
	}
	out := make([]byte, int64(len(lengths))*int64(heads)*int64(rows)*rowBytes)
	var all sync.WaitGroup
	for b, count := range lengths {
		all.Go(func() {
			for row := range count {
				batch, at := place(b, row)
				for h := range heads {
					from := (int64(batch)*t.Strides.Batch + int64(h)*t.Strides.Head + int64(at)*t.Strides.Seq) / int64(dim) * rowBytes
					copy(out[((int64(b)*int64(heads)+int64(h))*int64(rows)+int64(row))*rowBytes:][:rowBytes], t.Host[from:])
				}
			}
		})
	}
	all.Wait()
	return attention.Tensor{Host: out, Strides: attention.BHSD(heads, rows, dim)}
}

// difference is how far two results are apart.
func difference(a, b []float32) (most float64) {
	for i := range a {
		x := math.Abs(float64(a[i]) - float64(b[i]))
		if x > most || math.IsNaN(x) {
			most = x
		}
		if math.IsNaN(most) {
			break
		}
	}
	return most
}
