package accuracy

import (
	"math"

	"vkattn/internal/hostcall"
	"vkattn/internal/hostmem"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Expected is what rows of a call are judged by.
type Expected struct {
	Sample          []problem.Rows
	Ref, RefLSE     []float64 // the reference, of O and of LSE
	Low, LowLSE     []float32
	Noise, NoiseLSE []float64
	Errors          []oracle.RowError // of O

	dtype problem.DType
	width int
}

// Expect computes what the rows of Sample are judged by. A reference that is there is taken.
func (e *Expected) Expect(cfg problem.Config, a problem.Args) (err error) {
	e.dtype, e.width = cfg.DType, cfg.ValueDim()
	if e.Ref == nil {
		if e.Ref, e.RefLSE, err = oracle.ReferenceSample(cfg, a, e.Sample); err != nil {
			return err
		}
	}
	if e.Low, e.LowLSE, e.Errors, err = oracle.LowErrors(cfg, a, e.Sample); err == nil {
		e.Noise, e.NoiseLSE, err = oracle.Noise(cfg, a, e.Sample)
	}
	return err
}

// Judge applies the rules to O and LSE of the sample; lse is nil if the call has none. O of a row with nothing
// to attend to must be exactly 0; its LSE is -Inf by the rules.
func (e *Expected) Judge(o, lse []float32) *Verdict {
	v := &Verdict{Rows: tensors.CountRows(e.Sample)}
	ofO := tensorRows{name: "O", stored: e.dtype, width: e.width, x: o, ref: e.Ref, low: e.Low, noise: e.Noise, errors: e.Errors, at: positions(e.Sample)}
	for _, want := range e.RefLSE {
		ofO.zero = append(ofO.zero, math.IsInf(want, -1))
	}
	v.judge(Forward(e.dtype), &ofO)
	if lse != nil {
		v.judge(Forward(e.dtype), &tensorRows{name: "LSE", stored: problem.F32, width: 1, x: lse, ref: e.RefLSE, low: e.LowLSE, noise: e.NoiseLSE, at: ofO.at})
	}
	return v
}

// positions are the rows of a sample in its order.
func positions(sample []problem.Rows) (list []position) {
	for _, s := range sample {
		for _, row := range s.Rows {
			list = append(list, position{s.B, s.H, row})
		}
	}
	return list
}

// Options say how many rows of a call to verify.
type Options struct {
	Rows int    // about how many rows; 0: a second or two of work; negative: all
	Seed uint64 // of the sample
}

// Verify judges the O and, if given, the LSE that a call left in host memory against the
// reference. An error means that they could not be judged; a wrong result is a Verdict that
// does not pass.
func Verify(cfg problem.Config, a problem.Args, opt Options) (*Verdict, error) {
	if err := tensors.CheckArgs(cfg, a); err != nil {
		return nil, err
	}
	rows := opt.Rows
	switch {
	case rows == 0:
		rows = affordable(cfg, a.Shape)
	case rows < 0:
		rows = int(a.Shape.Rows())
	}
	if err := tensors.CheckHost("Verify", hostmem.Product(int(min(int64(rows), a.Shape.Rows())), cfg.ValueDim()+1, 4)); err != nil {
		return nil, err
	}
	c, err := openCall(&cfg, &a)
	if err != nil {
		return nil, err
	}
	sample, err := SampleArgs(a, rows, opt.Seed)
	if err != nil {
		return nil, err
	}
	e := Expected{Sample: sample}
	if err := e.Expect(cfg, a); err != nil {
		return nil, err
	}
	o, err := c.ReadRows(a.O, cfg.OType(), cfg.ValueDim(), sample)
	var lse []float32
	if err == nil && a.LSE.Given() {
		lse, err = c.ReadRows(a.LSE, problem.F32, 1, sample)
	}
	if err != nil {
		return nil, err
	}
	v := e.Judge(o, lse)
	v.OfRows = a.Shape.Rows()
	return v, nil
}

// affordable is the number of rows that take a second or two on a few CPUs.
func affordable(cfg problem.Config, s problem.Shape) int {
	const products = 4e9
	perRow := float64(s.Sk) * float64(cfg.HeadDim+cfg.ValueDim())
	return int(min(max(products/perRow, 64), 1<<20))
}

// call is a checked call in host memory.
type call struct{ hostcall.Call }

func openCall(cfg *problem.Config, a *problem.Args) (*call, error) {
	c := new(call)
	return c, c.Open(cfg, a)
}

// reader returns a function that reads a row of a sequence from a tensor of rows, or of keys.
func (c *call) reader(t problem.Tensor, dtype problem.DType, kv bool, dim int) (func(dst []float32, at position), error) {
	heads, where := c.Args.Hq, c.QueryRow
	_, extent := tensors.QueryExtent(c.Args)
	if kv {
		heads, where = c.Args.KVHeads(), c.KVRow
		_, extent = tensors.KVExtent(c.Args)
	}
	view, err := problem.ViewHost(t, dtype, heads, extent, dim)
	return func(dst []float32, at position) {
		batch, row := where(at.b, at.row)
		view.ReadRow(dst, batch, at.h, row)
	}, err
}

// attends returns the keys that a row attends to. A bias of -Inf masks a key.
func (c *call) attends(keys []int, b, h, row int) []int {
	keys = c.Visible(keys[:0], b, h, row)
	if c.Args.Bias == nil {
		return keys
	}
	bias := make([]float32, len(keys))
	c.ReadBias(bias, b, h, row, keys)
	n := 0
	for i, key := range keys {
		if !math.IsInf(float64(bias[i]), -1) {
			keys[n] = key
			n++
		}
	}
	return keys[:n]
}

// attended reports for each row of a query head whether it attends to any key, or for each
// key of a KV head whether any row of the group attends to it.
func (c *call) attended(kv bool, b, h int) []bool {
	s := &c.Sequences[b]
	var keys []int
	if !kv {
		found := make([]bool, s.Rows)
		for row := range found {
			keys = c.attends(keys, b, h, row)
			found[row] = len(keys) > 0
		}
		return found
	}
	found := make([]bool, s.Keys)
	for q := h * c.Args.Group(); q < (h+1)*c.Args.Group(); q++ {
		for row := range s.Rows {
			keys = c.attends(keys, b, q, row)
			for _, key := range keys {
				found[key] = true
			}
		}
	}
	return found
}
