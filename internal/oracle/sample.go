package oracle

import (
	"math"

	"vkattn/internal/par"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Rows of gradients of a problem that is too large to compute whole.

// SampleDQ computes dQ of the rows of a sample.
func SampleDQ(cfg problem.Config, a problem.BackwardArgs, sample []problem.Rows) (g Gradient, err error) {
	ref, low, err := openSampled(&cfg, &a, tensors.GradientSet{Q: true})
	if err != nil {
		return g, err
	}
	n := tensors.CountRows(sample) * cfg.HeadDim
	ref.dQ, low.dQ = make([]float64, n), make([]float32, n)
	low.roundings = newRoundings(low, false)
	sampleRows(ref, sample)
	sampleRows(low, sample)
	return sampled(&cfg, low.roundings.likely(low)["dQ"], ref.dQ), nil
}

// sampled is a gradient with its reference. Nothing is likely in float32.
func sampled(cfg *problem.Config, g Gradient, ref []float64) Gradient {
	if g.Ref = ref; cfg.DType == problem.F32 {
		g.Noise = nil
	}
	return g
}

// openSampled opens a call in both arithmetics.
func openSampled(cfg *problem.Config, a *problem.BackwardArgs, want tensors.GradientSet) (ref *backward[float64], low *backward[float32], err error) {
	ref, low = &backward[float64]{args: a, arithmetic: exact, want: want}, &backward[float32]{args: a, arithmetic: lowOf(cfg.DType), want: want}
	if err = ref.inputs(cfg); err == nil {
		err = low.inputs(cfg)
	}
	return ref, low, err
}

func sampleRows[T number](c *backward[T], sample []problem.Rows) {
	block := min(backwardRows(c.Args), blockRows(tensors.CountRows(sample), int(tensors.RowKeys(c.Args))))
	lengths := make([]int, len(sample))
	for i, s := range sample {
		lengths[i] = len(s.Rows)
	}
	pieces := par.Pieces(lengths, block)
	par.Each(int64(len(pieces)), func() func(int64) {
		w := newBackwardWorker(c)
		return func(i int64) {
			p := pieces[i]
			s := sample[p.List]
			w.block(s.B, s.H, s.Rows[p.Lo:p.Hi], p.At)
		}
	})
	c.roundAll()
}

// SampleDKV computes dK and dV of some keys of a sequence and key head. lse and o are LSE and O, not
// rounded, of the rows of the group, as views of [1, group, rows]. An LSE that float32 does not hold
// well enough is computed from all keys.
func SampleDKV(cfg problem.Config, a problem.BackwardArgs, b, kv int, keys []int, lse, o problem.HostView) (dK, dV Gradient, err error) {
	ref, low, err := openSampled(&cfg, &a, tensors.GradientSet{K: true, V: true})
	if err != nil {
		return dK, dV, err
	}
	n, d, dv := len(keys), cfg.HeadDim, cfg.ValueDim()
	ref.dK, ref.dV, low.dK, low.dV = make([]float64, n*d), make([]float64, n*dv), make([]float32, n*d), make([]float32, n*dv)
	low.roundings = newRoundings(low, false)
	ones := make([]int, a.Group()*ref.Sequences[b].Rows)
	sampleKeys(ref, b, kv, keys, lse, o, ones)
	sampleKeys(low, b, kv, keys, lse, o, ones)
	all := low.roundings.likely(low)
	return sampled(&cfg, all["dK"], ref.dK), sampled(&cfg, all["dV"], ref.dV), nil
}

// sampleKeys adds up what the rows of a group contribute to some keys. For each row, ones has 1 + the
// key whose P is 1 as stored, 0 if there is none: the reference sets it, and low reads it.
func sampleKeys[T number](c *backward[T], b, kv int, keys []int, lse, o problem.HostView, ones []int) {
	c.column = places(c.Args.Sk, keys)
	heads := make([]*given, c.Args.Group())
	for g := range heads {
		heads[g] = c.givenOf(b, kv*len(heads)+g, g, lse, o)
		n := len(heads[g].lse)
		heads[g].ones = ones[g*n:][:n]
	}
	var numbers []int
	for row := range c.Sequences[b].Rows {
		numbers = append(numbers, row)
	}
	pieces := par.Pieces([]int{len(keys)}, max(1, len(keys)/int(workers(uint64(len(keys))))))
	par.Each(int64(len(pieces)), func() func(int64) {
		w := newBackwardWorker(c)
		return func(i int64) {
			w.column = places(c.Args.Sk, keys[pieces[i].Lo:pieces[i].Hi])
			for g := range heads {
				w.given = heads[g]
				for first := 0; first < len(numbers); first += len(w.rows) {
					w.block(b, kv*len(heads)+g, numbers[first:min(first+len(w.rows), len(numbers))], 0)
				}
			}
		}
	})
	c.roundAll()
}

// places are the places of keys in a list, -1 of those that are not in it.
func places(all int, keys []int) []int {
	at := make([]int, all)
	for i := range at {
		at[i] = -1
	}
	for i, key := range keys {
		at[key] = i
	}
	return at
}

// given has LSE and O of the rows of a query head.
type given struct {
	lse  []splitLSE
	o    problem.HostView
	head int   // in o
	ones []int // see sampleKeys
}

// splitLSE is an LSE in two parts: the sum of both may not be a number of float64, as with a bias of
// the least float32.
type splitLSE struct{ most, logSum float64 }

// largeLSE is the size from which on float32 does not hold LSE well enough for gradients of
// a storage type: half a unit in the last place changes P by 1e-6 of its size, and by 1.5e-5.
func largeLSE(dtype problem.DType) float64 {
	if dtype == problem.F32 {
		return 16
	}
	return 256
}

// givenOf reads LSE of the rows of a query head. A large one is computed from the scores, which in
// the storage type may differ from the exact ones by more than 1.
func (c *backward[T]) givenOf(b, h, head int, lse, o problem.HostView) *given {
	g := &given{lse: make([]splitLSE, c.Sequences[b].Rows), o: o, head: head}
	var large []int
	for row := range g.lse {
		var one [1]float32
		_, at := c.QueryRow(b, row)
		lse.ReadRow(one[:], 0, head, at)
		g.lse[row].most = float64(one[0])
		if size := math.Abs(float64(one[0])); size >= largeLSE(c.Cfg.DType) && !math.IsInf(size, 0) {
			large = append(large, row)
		}
	}
	par.Each(int64(len(large)), func() func(int64) {
		w := newWorker(&c.Call, c.arithmetic, 1)
		return func(i int64) {
			r := &w.begin(b, h, large[i:i+1])[0]
			g.lse[r.number] = logSumExp(r.scores, w.logit())
		}
	})
	return g
}

// logSumExp is the logarithm of the sum of weights.
func logSumExp[T number](scores []T, sink T) splitLSE {
	most := float64(sink)
	for _, x := range scores {
		most = max(most, float64(x))
	}
	sum := math.Exp(float64(sink) - most)
	for _, x := range scores {
		sum += math.Exp(float64(x) - most)
	}
	return splitLSE{most, math.Log(sum)}
}

// readGiven turns the scores of a row into P by its LSE, and reads its O.
func (w *backwardWorker[T]) readGiven(r *row[T]) {
	lse := w.given.lse[r.number]
	r.lse = T(lse.most)
	for i, s := range r.scores {
		p := T(math.Exp(float64(s) - lse.most - lse.logSum))
		if p < w.least {
			p = 0
		}
		r.scores[i] = w.round(p)
		if !w.low && lowOf(w.Cfg.DType).round(float32(p)) == 1 {
			w.given.ones[r.number] = 1 + w.key(r.entries[i])
		}
	}
	narrow := w.narrow[:w.Cfg.ValueDim()]
	_, at := w.QueryRow(w.b, r.number)
	w.given.o.ReadRow(narrow, 0, w.given.head, at)
	widen(r.o, narrow)
}
