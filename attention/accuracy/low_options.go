package accuracy

import (
	"math"

	"vkattn/attention"
	"vkattn/attention/internal/par"
)

// lowRow computes one row of a call with features, as Low's definition has it.
type lowRow struct {
	*call
	q, key  []float32
	visible []int32
	scores  []float32
	noise   float64 // error to expect of the largest score, where that is asked for
}

func (c *call) lowRow() *lowRow {
	d := c.cfg.HeadDim
	return &lowRow{call: c, q: make([]float32, d), key: make([]float32, max(d, c.cfg.ValueDim()))}
}

// run leaves the weights of the visible keys in r.scores.
func (r *lowRow) run(b, h, row int, o []float32) (lse float32) {
	kv := h / r.a.Group()
	batch, at := r.queryRow(b, row)
	r.call.q.ReadRow(r.q, batch, h, at)
	r.visible = r.call.visible(r.visible[:0], b, h, row)
	r.scores = r.scores[:0]
	var most float64 // of the scores before they are modified
	for _, t := range r.visible {
		r.readKey(r.key, false, b, kv, int(t))
		var s float32
		for i, x := range r.q {
			s += x * r.key[i]
		}
		s *= r.cfg.ScaleValue()
		if x := math.Abs(float64(s)); !math.IsInf(x, 0) {
			most = max(most, x)
		}
		r.scores = append(r.scores, r.store(r.modify(s, b, h, row, int(t))))
	}
	r.noise = math.Ldexp(most, -24) * math.Sqrt(float64(len(r.q))) / 2
	lse = r.softmax(r.sink(h))
	clear(o)
	for i, t := range r.visible {
		r.readKey(r.key, true, b, kv, int(t))
		for j := range o {
			o[j] += r.scores[i] * r.key[j]
		}
	}
	for j := range o {
		o[j] = r.round(o[j])
	}
	return lse
}

// store rounds a score.
func (c *call) store(s float32) float32 {
	if c.cfg.DType == attention.F16 && !math.IsInf(float64(s), 0) {
		s = max(min(s, maxF16), -maxF16) // both keep NaN
	}
	return c.round(s)
}

// softmax turns the scores into rounded weights beside a sink and returns their
// logsumexp, the sink's share in it.
func (r *lowRow) softmax(sink float32) (lse float32) {
	most := sink
	for _, x := range r.scores {
		most = max(most, x)
	}
	if math.IsInf(float64(most), -1) {
		clear(r.scores)
		return most
	}
	sum := float32(math.Exp(float64(sink - most)))
	for i, x := range r.scores {
		r.scores[i] = float32(math.Exp(float64(x - most)))
		sum += r.scores[i]
	}
	for i := range r.scores {
		r.scores[i] = r.round(r.scores[i] / sum)
	}
	return most + float32(math.Log(float64(sum)))
}

// spread is lowWorker.spread for the row that run has computed.
func (r *lowRow) spread(b, h int, o []float32, noise []float64) {
	for i, t := range r.visible {
		p := float64(r.scores[i]) * r.noise
		if p == 0 {
			continue
		}
		r.readKey(r.key, true, b, h/r.a.Group(), int(t))
		for j := range noise {
			if x := math.Abs(float64(r.key[j]) - float64(o[j])); x < math.MaxFloat32 {
				noise[j] += p * x
			}
		}
	}
}

// lowOptions is Low of a call with features.
func lowOptions(cfg attention.Config, a attention.Args, sample []attention.Rows) (o, lse []float32, err error) {
	n, dv := attention.CountRows(sample), cfg.ValueDim()
	o, lse = make([]float32, n*dv), make([]float32, n)
	err = eachLowRow(cfg, a, sample, func(r *lowRow, b, h, row, i int) {
		lse[i] = r.run(b, h, row, o[i*dv:][:dv])
	})
	return o, lse, err
}

// noiseOptions is Noise of a call with features.
func noiseOptions(cfg attention.Config, a attention.Args, sample []attention.Rows) (o, lse []float64, err error) {
	n, dv := attention.CountRows(sample), cfg.ValueDim()
	o, lse = make([]float64, n*dv), make([]float64, n)
	err = eachLowRow(cfg, a, sample, func(r *lowRow, b, h, row, i int) {
		low := make([]float32, dv)
		if r.run(b, h, row, low); r.noise > leastNoise {
			r.spread(b, h, low, o[i*dv:][:dv])
			lse[i] = r.noise
		}
	})
	return o, lse, err
}

// eachLowRow visits the rows of a sample, many at a time; i counts them.
func eachLowRow(cfg attention.Config, a attention.Args, sample []attention.Rows, visit func(r *lowRow, b, h, row, i int)) error {
	c, err := openCall(cfg, a)
	if err != nil {
		return err
	}
	lengths := make([]int, len(sample))
	for i, s := range sample {
		lengths[i] = len(s.Rows)
	}
	pieces := par.Pieces(lengths, 8)
	par.Each(int64(len(pieces)), func() func(int64) {
		r := c.lowRow()
		return func(i int64) {
			p := pieces[i]
			s := sample[p.List]
			for j, row := range s.Rows[p.Lo:p.Hi] {
				visit(r, s.B, s.H, row, p.At+j)
			}
		}
	})
	return nil
}
