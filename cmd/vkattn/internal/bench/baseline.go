package bench

import (
	"context"
	"fmt"
	"math"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cudapath"
	"vkattn/internal/hostmem"
	"vkattn/internal/operands"
	"vkattn/internal/par"
	"vkattn/internal/plain"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
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
	for b, s := range d.call.Sequences {
		if s.Rows == 0 || s.Keys == 0 {
			continue
		}
		one := operands.Clone(a)
		one.B, one.Sq, one.Sk, one.Varlen = 1, s.Rows, s.Keys, nil
		skip := func(batch, row int, list ...*attention.Tensor) {
			for _, t := range list {
				t.Offset += int64(batch)*t.Strides.Batch + int64(row)*t.Strides.Seq
			}
		}
		batch, row := d.call.QueryRow(b, 0)
		skip(batch, row, &one.Q, &one.O)
		if one.Pages != nil {
			one.Pages.Table.Offset += int64(b * one.Pages.Stride)
		} else {
			batch, row := d.call.KVRow(b, 0)
			skip(batch, row, &one.K, &one.V)
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
	m := &data{problem: p}
	m.args.Args = attention.Args{Shape: p.Shape, DropoutSeed: d.args.DropoutSeed, ALiBi: d.args.ALiBi, Sinks: d.args.Sinks, Tables: d.args.Tables}
	m.problem.Options = Options{Sinks: p.Options.Sinks, ALiBi: p.Options.ALiBi, Tables: p.Tables}
	c := &m.problem.Config
	if c.Causal != attention.CausalNone && p.Options.ALiBi {
		c.Align = c.Causal
	}
	c.Causal, c.Window, c.FixedSplit = attention.CausalNone, attention.Window{}, 0
	if p.Options.ALiBi && p.Options.Lengths != "" && c.Align == attention.BottomRight {
		return nil, fmt.Errorf("%w: bottom-right alignment of ALiBi in padded sequences", attention.ErrUnsupported)
	}
	m.args.Q = d.padded(d.args.Q, false, c.HeadDim, c.HeadDim*c.DType.Size())
	d.contiguousKV(&m.args.Args)
	m.args.O.Host = make([]byte, p.Shape.Rows()*int64(c.ValueDim()*c.DType.Size()))
	if p.hasLSE() {
		m.args.LSE.Host = make([]byte, p.Shape.Rows()*4)
	}
	mask := make([]byte, size)
	var keys []int
	for b := range batches {
		for h := range heads {
			for row := range d.call.Sequences[b].Rows {
				line := mask[((b*heads+h)*maskRows+row)*p.Shape.Sk:]
				keys = d.call.Visible(keys[:0], b, h, row)
				for _, key := range keys {
					line[key] = 1
				}
			}
		}
	}
	m.args.Mask = &attention.Mask{Batches: batches, Heads: heads, Rows: maskRows}
	m.args.Mask.Host = mask
	m.args.Mask.Strides = attention.BHSD(heads, maskRows, p.Shape.Sk)
	m.open()
	return m, nil
}

// contiguous is the same problem with contiguous K and V instead of paged.
func (d *data) contiguous() *data {
	c := &data{problem: d.problem, args: operands.CloneBackward(d.args)}
	d.contiguousKV(&c.args.Args)
	c.args.Pages = nil
	c.problem.PageSize, c.problem.HND = 0, false
	c.open()
	return c
}

// contiguousKV gathers K, V and their scales as [batch, heads, keys, dim].
func (d *data) contiguousKV(a *attention.Args) {
	p, c := d.problem, d.problem.Config
	a.K = d.padded(d.args.K, true, c.HeadDim, c.KeyType.RowBytes(c.DType, c.HeadDim))
	if p.SharedKV {
		a.V = a.K
	} else {
		a.V = d.padded(d.args.V, true, c.ValueDim(), c.ValueType.RowBytes(c.DType, c.ValueDim()))
	}
	switch {
	case c.KVBlock != 0: // all sequences share the scales
		a.KScale, a.VScale = d.args.KScale, d.args.VScale
	case c.KeyType.Scaled():
		// Gather the scales as rows of one element.
		for _, s := range []struct{ to, from *attention.Vector }{{&a.KScale, &d.args.KScale}, {&a.VScale, &d.args.VScale}} {
			_, keys := tensors.KVExtent(&d.args.Args)
			s.to.Host = d.padded(attention.Tensor{Host: s.from.Host, Strides: attention.BHSD(p.Shape.KVHeads(), keys, 1)}, true, 1, 4).Host
		}
	}
}

// padded gathers a tensor of rows, or of keys, as [batch, heads, rows, dim], with zeros past the end of a
// sequence. rowBytes is the size of a row of dim elements. A tensor that is neither paged nor packed is returned as it is.
func (d *data) padded(t attention.Tensor, kv bool, dim, rowBytes int) attention.Tensor {
	if d.args.Pages == nil && (d.args.Varlen == nil || !d.problem.Packed) {
		return t
	}
	heads, rows, place := d.args.Hq, d.args.Sq, d.call.QueryRow
	if kv {
		heads, rows, place = d.args.KVHeads(), d.args.Sk, d.call.KVRow
	}
	out := make([]byte, int64(d.args.B)*int64(heads)*int64(rows)*int64(rowBytes))
	par.Each(int64(d.args.B), func() func(int64) {
		return func(b int64) {
			s := d.call.Sequences[b]
			count := s.Rows
			if kv {
				count = s.Keys
			}
			for row := range count {
				batch, at := place(int(b), row)
				for h := range heads {
					from := (int64(batch)*t.Strides.Batch + int64(h)*t.Strides.Head + int64(at)*t.Strides.Seq) / int64(dim) * int64(rowBytes)
					copy(out[((b*int64(heads)+int64(h))*int64(rows)+int64(row))*int64(rowBytes):][:rowBytes], t.Host[from:])
				}
			}
		}
	})
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
