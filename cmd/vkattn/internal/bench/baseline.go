package bench

import (
	"context"
	"fmt"
	"math"
	"sync"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cudapath"
	"vkattn/internal/hostmem"
	"vkattn/internal/operands"
	"vkattn/internal/plain"
	"vkattn/internal/problem"
)

// Baseline is another way to compute a problem, with which rows are compared: on the
// same device and data, in the same rounds.
type Baseline string

// The baselines; Baselines describes them.
const (
	BaselineByMask     Baseline = "by-mask"
	BaselineCUDARef    Baseline = "cuda-ref"
	BaselineContiguous Baseline = "contiguous"
	BaselineSeparate   Baseline = "separate"
	BaselineCopy       Baseline = "copy"
	BaselinePlain      Baseline = "plain"
)

// BaselineAbout is a baseline with its description.
type BaselineAbout struct {
	Baseline
	About string
}

func (b BaselineAbout) String() string { return string(b.Baseline) }

// Baselines lists the baselines.
var Baselines = []BaselineAbout{
	{BaselineByMask, "tier scalar on padded, contiguous K and V; a boolean matrix masks what causal mask, lengths and sparse tokens exclude; every cell is computed"},
	{BaselineCUDARef, "this project's CUDA validation kernel, in float32"},
	{BaselineContiguous, "the same tier (the first of several) on contiguous K and V instead of paged"},
	{BaselineSeparate, "the same tier (the first of several), one dispatch per sequence without barriers between them"},
	{BaselineCopy, "a kernel that copies half the bytes of K and V, so that it reads and writes as many bytes as a row reads"},
	{BaselinePlain, "plain attention on the same device: scores of all rows and keys in memory, in the storage type; products by cooperative matrices, in f32 by a scalar kernel"},
}

// ParseBaseline parses the name of a baseline.
func ParseBaseline(s string) (Baseline, error) {
	b, err := flagtext.Find("baseline", s, Baselines)
	return b.Baseline, err
}

// spec is the Spec of the baseline's row, given the tier of the rows compared with it.
func (b Baseline) spec(of attention.Tier, dev *attention.Device) Spec {
	s := Spec{Tier: of, Baseline: b}
	switch {
	case dev == nil:
		s.Tier = attention.TierCPU
	case b == BaselineByMask:
		s.Tier = attention.TierScalar
	case b == BaselineCUDARef:
		s.Tier, s.Kernel = attention.TierCUDA, "ref"
	case b == BaselinePlain:
		s.Tier = attention.TierAuto
	}
	return s
}

// isReference reports whether other code computes the baseline, so that it is worth
// comparing the results.
func (b Baseline) isReference() bool { return b == BaselineByMask || b == BaselineCUDARef }

// applies reports whether a problem has this baseline.
func (b Baseline) applies(p Problem, dev *attention.Device) bool {
	if p.Ceiling != "" {
		return false
	}
	cuda := cudapath.ContextOf(dev) // of a device that has tier cuda alone
	if b == BaselinePlain {
		return dev.Vulkan() != nil && p.Plain()
	}
	if p.Pass != PassForward || cuda != nil && (b == BaselineByMask || b == BaselineCopy) {
		return false
	}
	switch b {
	case BaselineByMask:
		return p.Config.KeyType == attention.KVSame
	case BaselineCUDARef:
		if dev == nil || !p.Plain() {
			return false
		}
		if cuda != nil {
			return cudapath.MissingOn(cuda.Info(), "ref", p.Config.DType) == ""
		}
		for _, s := range attention.TierReport(dev.Vulkan()) {
			if s.Tier == attention.TierCUDA && s.DType == p.Config.DType {
				return s.Available
			}
		}
		return false
	case BaselineContiguous:
		return p.PageSize > 0
	case BaselineSeparate:
		// Scales and LSE have the stride of the longest sequence; a call of one sequence cannot say so.
		if p.LSE || p.Options.Lengths == "" || p.sparse() || p.Blocks > 0 || p.Config.KeyType.Scaled() {
			return false
		}
		rows, keys := p.lengths()
		for i := range rows {
			if rows[i] > 0 && keys[i] == 0 { // separate has no call that would write its zeros
				return false
			}
		}
	}
	return true
}

// separate splits a call into one for each sequence that has rows and keys.
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

// maxMask bounds the mask of BaselineByMask, in bytes.
const maxMask = 1 << 30

// maskBytes is the size of that mask and its batches, heads and rows.
func (p Problem) maskBytes() (size uint64, axes [3]int) {
	axes = [3]int{p.Shape.B, 1, p.Shape.Sq}
	if p.sparse() || p.Blocks > 0 {
		axes[1] = p.Shape.Hq
	}
	if p.Options.Lengths == "" && !p.sparse() {
		axes[0] = 1
	}
	return hostmem.Product(axes[0], axes[1], axes[2], p.Shape.Sk), axes
}

// byMask is the same problem with a mask instead of lengths, pages, windows and sparse
// tokens: K and V are gathered and padded, and a byte per row and key says whether the
// row attends to the key.
func (d *data) byMask() (*data, error) {
	p := d.problem
	size, axes := p.maskBytes()
	batches, heads, maskRows := axes[0], axes[1], axes[2]
	m := &data{problem: p, rows: d.rows, keys: d.keys, firstRow: d.firstRow, firstKey: d.firstKey,
		args: attention.Args{Shape: p.Shape, DropoutSeed: d.args.DropoutSeed, ALiBi: d.args.ALiBi, Sinks: d.args.Sinks, Tables: d.args.Tables}}
	m.problem.Options = Options{Sinks: p.Options.Sinks, ALiBi: p.Options.ALiBi, Tables: p.Tables}
	c := &m.problem.Config
	if c.Causal != attention.CausalNone && p.Options.ALiBi {
		c.Align = c.Causal
	}
	c.Causal, c.Window, c.FixedSplit = attention.CausalNone, attention.Window{}, 0
	if p.Options.ALiBi && p.Options.Lengths != "" && c.Align == attention.BottomRight {
		return nil, fmt.Errorf("%w: bottom-right alignment of ALiBi in padded sequences", attention.ErrUnsupported)
	}
	m.args.Q = d.padded(d.args.Q, p.Shape.Hq, p.Shape.Sq, c.HeadDim, int64(c.HeadDim*c.DType.Size()), d.rows, d.queryRow)
	d.contiguousKV(&m.args)
	m.args.O.Host = make([]byte, p.Shape.Rows()*int64(c.ValueDim()*c.DType.Size()))
	if p.hasLSE() {
		m.args.LSE.Host = make([]byte, p.Shape.Rows()*4)
	}
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
				for _, t := range d.listOf(b, h/p.Shape.Group(), row) {
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

// contiguous is the same problem with contiguous K and V instead of paged.
func (d *data) contiguous() *data {
	c := *d
	c.args = operands.Clone(d.args)
	d.contiguousKV(&c.args)
	c.args.Pages, c.table = nil, nil
	c.problem.PageSize, c.problem.HND = 0, false
	return &c
}

// contiguousKV gathers K, V and their scales as [batch, heads, keys, dim].
func (d *data) contiguousKV(a *attention.Args) {
	p, c := d.problem, d.problem.Config
	heads, keys := p.Shape.KVHeads(), p.Shape.Sk
	a.K = d.padded(d.args.K, heads, keys, c.HeadDim, int64(c.KeyType.RowBytes(c.DType, c.HeadDim)), d.keys, d.keyRow)
	if p.SharedKV {
		a.V = a.K
	} else {
		a.V = d.padded(d.args.V, heads, keys, c.ValueDim(), int64(c.ValueType.RowBytes(c.DType, c.ValueDim())), d.keys, d.keyRow)
	}
	switch {
	case c.KVBlock != 0: // all sequences share the scales
		a.KScale, a.VScale = d.args.KScale, d.args.VScale
	case c.KeyType.Scaled():
		// Gather the scales as rows of one element.
		for _, s := range []struct{ to, from *attention.Vector }{{&a.KScale, &d.args.KScale}, {&a.VScale, &d.args.VScale}} {
			rows := attention.Tensor{Host: s.from.Host}
			if d.args.Pages != nil {
				rows.Strides = attention.BHSD(heads, p.PageSize, 1)
			}
			s.to.Host = d.padded(rows, heads, keys, 1, 4, d.keys, d.keyRow).Host
		}
	}
}

// padded gathers a tensor as [batch, heads, rows, dim], with zeros past the end of a
// sequence. rowBytes is the size of a row of dim elements, place the position of a row in
// the tensor. A tensor that is neither paged nor packed is returned as it is.
func (d *data) padded(t attention.Tensor, heads, rows, dim int, rowBytes int64, lengths []int,
	place func(b, row int) (int, int)) attention.Tensor {
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

// difference is the largest absolute difference of two results, NaN if one has NaN.
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

// plain prepares the row of BaselinePlain, of any pass. A row whose scores do not fit in
// memory is refused before anything is allocated. Its memory counts the tensors and the
// scores.
func (g *group) plain(ctx context.Context, dev *attention.Device, cfg attention.Config, _ Spec, row *Row) (*work, *setup, error) {
	row.Tier = ""
	shape, backward := g.problem.Shape, g.problem.Pass != PassForward
	if err := plain.Check(problem.Config(cfg), shape); err != nil {
		return nil, nil, err
	}
	f, scores := g.problem.footprint(), plain.Bytes(problem.Config(cfg), shape, backward)
	row.Memory = hostmem.Sum(f.tensors, f.lists, scores)
	if err := g.room(dev, "", scores); err != nil { // the setup may be there
		return nil, nil, err
	}
	p, err := g.setup(ctx, dev, "", scores)
	if err != nil {
		return nil, nil, err
	}
	op, err := plain.New(dev.Vulkan(), problem.Config(cfg), shape, backward)
	if err != nil {
		return nil, nil, err
	}
	g.closers = append(g.closers, op.Close)
	row.Tier, row.Tile = op.Tier().String(), op.Tile()
	return &work{op: unfused{op}, name: "plain " + g.problem.String(), planned: func(*Row, *setup) error { return nil }}, p, nil
}
