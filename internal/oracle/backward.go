package oracle

import (
	"math"
	"slices"

	"vkattn/attention/score"
	"vkattn/internal/hostcall"
	"vkattn/internal/hostmem"
	"vkattn/internal/par"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Gradients by the formula.

// ReferenceBackward is attention.ReferenceBackward, which documents it.
func ReferenceBackward(cfg problem.Config, a problem.BackwardArgs) (g problem.Gradients, err error) {
	if a.PartialKeys {
		return g, &problem.ShapeError{Field: "PartialKeys", Got: true, Want: "false: LSE is computed from the keys of the call"}
	}
	if err := tensors.CheckBackward(&a, &cfg); err != nil {
		return g, err
	}
	want := tensors.GradientsOf(&cfg, &a)
	if want == (tensors.GradientSet{}) {
		want = everyGradient(&cfg, &a)
	}
	if err := tensors.CheckHost("ReferenceBackward", backwardBytes(&cfg, &a, want, 8)); err != nil {
		return g, err
	}
	c := backward[float64]{args: &a, arithmetic: exact, want: want}
	if err := c.open(&cfg); err != nil {
		return g, err
	}
	c.run()
	return problem.Gradients{DQ: c.dQ, DK: c.dK, DV: c.dV, DBias: c.dBias, DSinks: c.dSinks, DTables: ofTables(c.args, &cfg, c.dTables)}, nil
}

// LowGradients are the results of [LowBackward], packed like the results of
// attention.ReferenceBackward.
type LowGradients struct {
	DQ, DK, DV, DBias, DSinks []float32
	DTables                   [][]float32

	Noise GradientNoise // what rounding makes likely in each element
	Rows  GradientRows  // for the 16-bit types the same in each row
}

// LowBackward computes the gradients of a call by plain backward attention in the storage
// type, as a chain of separate operations would, each rounding what it stores:
//
//	S, P, O                                 as [Low] has them
//	dP = round(dO Vᵀ)                       accumulated in float32
//	dX = round(P (dP - Σ dO O + dLSE))      computed in float32
//	dS = round(dX times the softcap's derivative)
//	dQ = round(scale * dS K)                accumulated in float32, as dK and dV are
//
// dBias is the sum of the rounded dX, and dSinks and the gradients of tables are computed, in float32. dK and dV of a
// group are accumulated over its heads. Dropout rounds P and dP once more behind it. It computes
// all gradients that the call can have; outputs in a may be zero. Tensors must lie in host memory.
func LowBackward(cfg problem.Config, a problem.BackwardArgs) (LowGradients, error) {
	a.Accumulate = false
	if err := tensors.CheckBackward(&a, &cfg); err != nil {
		return LowGradients{}, err
	}
	const element, row = 4 + 8, 24 + 24 // with its noise, and with draws and what they make likely
	want := everyGradient(&cfg, &a)
	rows := hostmem.Sum(hostmem.Product(a.B, a.Hq, a.Sq, row), hostmem.Product(a.B, a.KVHeads(), a.Sk, 2*row))
	if err := tensors.CheckHost("LowBackward", hostmem.Sum(backwardBytes(&cfg, &a, want, element), rows)); err != nil {
		return LowGradients{}, err
	}
	c := backward[float32]{args: &a, arithmetic: lowOf(cfg.DType), want: want}
	if err := c.open(&cfg); err != nil {
		return LowGradients{}, err
	}
	c.roundings = newRoundings(&c, true)
	c.run()
	g := LowGradients{DQ: c.dQ, DK: c.dK, DV: c.dV, DBias: c.dBias, DSinks: c.dSinks, DTables: ofTables(c.args, &cfg, c.dTables)}
	g.Noise, g.Rows = c.roundings.likely(&c)
	return g, nil
}

func everyGradient(cfg *problem.Config, a *problem.BackwardArgs) tensors.GradientSet {
	set := tensors.GradientSet{Q: true, K: true, V: true, Bias: a.Bias != nil, Sinks: a.Sinks.Given()}
	for i := range tensors.Tables(cfg) {
		set.Tables[i] = tensors.HasTableGradient(cfg, &a.Args, i)
	}
	return set
}

// backward is a backward call in host memory, and its results. Of a sample it has the rows and keys
// of one sequence and key head.
type backward[T number] struct {
	hostcall.Call
	arithmetic[T]
	args     *problem.BackwardArgs
	want     tensors.GradientSet
	dO, dLSE problem.HostView    // dLSE if args.DLSE is given
	stored   [3]problem.HostView // with args.Accumulate: DQ, DK and DV as they are
	column   []int               // of each key its place in a sample, -1 where it is not in it; nil: all keys

	dQ, dK, dV, dBias, dSinks []T
	biasStep                  [3]int64 // strides in dBias
	tables                    []tableGradient[T]
	dTables                   [score.MaxTables][]T
	sinks                     []T        // [B, Hq]: what each sequence adds to dSinks
	roundings                 *roundings // nil: not asked for
}

// open allocates the results. The caller has checked that there is memory for them.
func (c *backward[T]) open(cfg *problem.Config) error {
	a := c.args
	if err := c.inputs(cfg); err != nil {
		return err
	}
	d, dv := cfg.HeadDim, cfg.ValueDim()
	if c.want.Q {
		c.dQ = make([]T, a.B*a.Hq*a.Sq*d)
	}
	if c.want.K {
		c.dK = make([]T, a.B*a.KVHeads()*a.Sk*d)
	}
	if c.want.V {
		c.dV = make([]T, a.B*a.KVHeads()*a.Sk*dv)
	}
	if c.want.Bias {
		n := tensors.BiasSizes(a.Bias, &a.Shape)
		c.dBias = make([]T, n[0]*n[1]*n[2]*a.Sk)
		c.biasStep = tensors.Broadcast(problem.Strides{}, n, a.Sk)
	}
	if c.want.Sinks {
		c.dSinks, c.sinks = make([]T, a.Hq), make([]T, a.B*a.Hq)
	}
	c.openTables()
	if a.Accumulate {
		return c.openStored()
	}
	return nil
}

// openStored opens the gradients that the call adds to.
func (c *backward[T]) openStored() (err error) {
	a, dtype := c.args, c.Cfg.GradientType()
	_, rows := tensors.QueryExtent(&a.Args)
	_, keys := tensors.KVExtent(&a.Args)
	for i, x := range [...]struct {
		of                 problem.Tensor
		wanted             bool
		heads, extent, dim int
	}{
		{a.DQ, c.want.Q, a.Hq, rows, c.Cfg.HeadDim},
		{a.DK, c.want.K, a.KVHeads(), keys, c.Cfg.HeadDim},
		{a.DV, c.want.V, a.KVHeads(), keys, c.Cfg.ValueDim()},
	} {
		if x.wanted && err == nil {
			c.stored[i], err = problem.ViewHost(x.of, dtype, x.heads, x.extent, x.dim)
		}
	}
	return err
}

// inputs opens the tensors that the gradients are computed from.
func (c *backward[T]) inputs(cfg *problem.Config) (err error) {
	a := c.args
	if err = c.Open(cfg, &a.Args); err != nil {
		return err
	}
	_, rows := tensors.QueryExtent(&a.Args)
	if c.dO, err = problem.ViewHost(a.DO, cfg.DType, a.Hq, rows, cfg.ValueDim()); err == nil && a.DLSE.Given() {
		c.dLSE, err = problem.ViewHost(a.DLSE, problem.F32, a.Hq, rows, 1)
	}
	return err
}

// run computes all gradients. A unit of work is one (batch, key head), or all that add to the same
// elements of dBias.
func (c *backward[T]) run() {
	a := c.args
	batches, heads := a.B, a.KVHeads()
	if c.want.Bias {
		n := tensors.BiasSizes(a.Bias, &a.Shape)
		batches, heads = min(batches, n[0]), min(heads, n[1])
	}
	par.Each(int64(batches)*int64(heads), func() func(int64) {
		w := newBackwardWorker(c)
		return func(unit int64) {
			for b := int(unit / int64(heads)); b < a.B; b += batches {
				for kv := int(unit % int64(heads)); kv < a.KVHeads(); kv += heads {
					w.run(b, kv)
				}
			}
		}
	})
	for i, x := range c.sinks { // in the order of the sequences
		c.dSinks[i%a.Hq] += x
	}
	c.sumTables()
	c.roundAll()
}

// roundAll rounds the results that are stored.
func (c *backward[T]) roundAll() {
	for _, x := range [][]T{c.dQ, c.dK, c.dV} {
		for i := range x {
			x[i] = c.round(x[i])
		}
	}
}

// rowNumber is the number of a row in dQ, and keyNumber that of a key in dK and dV.
func (c *backward[T]) rowNumber(b, h, row int) int { return (b*c.args.Hq+h)*c.args.Sq + row }

func (c *backward[T]) keyNumber(b, kv, key int) int {
	if c.column != nil {
		return c.column[key]
	}
	return (b*c.args.KVHeads()+kv)*c.args.Sk + key
}

func (c *backward[T]) biasRow(b, h, row int) int64 {
	return int64(b)*c.biasStep[0] + int64(h)*c.biasStep[1] + int64(row)*c.biasStep[2]
}

// backwardWorker computes the gradients of one (batch, key head) after the other by the
// formula. It goes over the query heads of the group and over blocks of their rows, and
// adds to dK, dV and dBias in this order, so the order of every sum is fixed. Each block
// takes three passes over its keys: the first computes the scores, the second dP and dV,
// the third dQ and dK.
type backwardWorker[T number] struct {
	*worker[T]
	call  *backward[T]
	given *given // LSE and O of the rows, for a sample of keys; nil: they follow from all keys
}

// rowGradients are the numbers of a row that only the backward pass has.
type rowGradients[T number] struct {
	o     []T // of the row, where delta comes from it
	dO    []T
	dLSE  T
	delta T
	dQ    int // the number of the row in dQ
	dS    []T // of the entries: dP, then dX, then dS
	rowRoundings
}

func newBackwardWorker[T number](c *backward[T]) *backwardWorker[T] {
	w := &backwardWorker[T]{worker: newWorker(&c.Call, c.arithmetic, backwardRows(c.Args)), call: c}
	w.column = c.column
	if slope := scoreOf(&c.Call).Diff(); slope != score.Num(1) {
		w.slope = score.NewEvaluator(slope, nil)
	}
	if c.want.Bias && c.Cfg.ScoreMod.Given() {
		w.biasSlope = score.NewEvaluator(c.Cfg.ScoreMod.Diff().Of(optionsOf(&c.Call)), nil)
	}
	w.openTables(c.tables)
	for i := range w.rows {
		w.rows[i].dO, w.rows[i].o = make([]T, c.Cfg.ValueDim()), make([]T, c.Cfg.ValueDim())
	}
	return w
}

// run computes all that a sequence and key head contribute.
func (w *backwardWorker[T]) run(b, kv int) {
	group, rows := w.Args.Group(), w.Sequences[b].Rows
	for h := kv * group; h < (kv+1)*group; h++ {
		for first := 0; first < rows; first += len(w.rows) {
			var numbers []int
			for row := first; row < min(first+len(w.rows), rows); row++ {
				numbers = append(numbers, row)
			}
			w.block(b, h, numbers, w.call.rowNumber(b, h, first))
		}
	}
	if w.call.args.Accumulate {
		w.addStored(b, kv)
	}
}

// block computes what rows of a query head contribute. number is the number of the first in dQ.
func (w *backwardWorker[T]) block(b, h int, numbers []int, number int) {
	c, d, dv, kv := w.call, w.Cfg.HeadDim, w.Cfg.ValueDim(), h/w.Args.Group()
	rows := w.begin(b, h, numbers)
	for i := range rows {
		rows[i].dQ = number + i
		w.readGradients(&rows[i])
	}
	w.eachRun(rows, &w.V, func(r *row[T], weights, values []T) {
		from := r.next - len(weights)
		dP := r.dS[from:r.next]
		dots(dP, 1, r.dO, values)
		for i, p := range weights {
			key := w.key(r.entries[from+i])
			keep, dropped := w.keep(r.number, key), p
			dP[i] = w.round(dP[i])
			switch {
			case keep == 0:
				dP[i], dropped = 0, 0 // dP may be NaN where the slot is dropped
			case keep != 1:
				dP[i], dropped = w.round(dP[i]*keep), w.round(p*keep)
			}
			if w.low && w.given == nil {
				addScaled(r.o, dropped, values[i*dv:][:dv])
			}
			if c.want.V {
				at := c.keyNumber(b, kv, key)
				addScaled(c.dV[at*dv:][:dv], dropped, r.dO)
				if c.roundings != nil {
					one := p == 1
					if w.given != nil {
						one = w.given.ones[r.number] == key+1
					}
					addValue(c.roundings, r, at, one, float32(p), float32(keep), float32(dropped))
				}
			}
		}
	})
	for i := range rows {
		if !math.IsInf(float64(rows[i].lse), -1) {
			w.scoreGradients(&rows[i])
		}
	}
	if !c.want.Q && !c.want.K {
		return
	}
	w.eachRun(rows, &w.K, func(r *row[T], weights, keys []T) {
		from := r.next - len(weights)
		for i, p := range weights {
			entry := from + i
			x, key, k := w.scale*r.dS[entry], 0, keys[i*d:][:d]
			if c.want.Q {
				addScaled(c.dQ[r.dQ*d:][:d], x, k)
			}
			if c.want.K {
				key = c.keyNumber(b, kv, w.key(r.entries[entry]))
				addScaled(c.dK[key*d:][:d], x, r.q)
			}
			if c.roundings != nil {
				addProduct(c.roundings, r, key, entry, p, k)
			}
		}
	})
	if c.roundings != nil {
		for i := range rows {
			c.roundings.endRow(rows[i].dQ, &rows[i].rowRoundings)
		}
	}
}

// readGradients turns the scores of a row into P and reads the row's dO and dLSE. For a row with
// nothing to attend to it reads neither.
func (w *backwardWorker[T]) readGradients(r *row[T]) {
	r.rowRoundings = rowRoundings{}
	clear(r.o)
	if w.given == nil {
		w.weights(r)
	} else {
		w.readGiven(r)
	}
	if math.IsInf(float64(r.lse), -1) {
		r.drop()
		return
	}
	r.dS = slices.Grow(r.dS[:0], len(r.scores))[:len(r.scores)]
	batch, at := w.QueryRow(w.b, r.number)
	narrow := w.narrow[:w.Cfg.ValueDim()]
	w.call.dO.ReadRow(narrow, batch, w.h, at)
	widen(r.dO, narrow)
	r.dLSE = 0
	if w.call.args.DLSE.Given() {
		w.call.dLSE.ReadRow(narrow, batch, w.h, at)
		r.dLSE = T(narrow[0])
	}
	if w.call.roundings != nil {
		beginRow(r, w.scoreError(r))
	}
}

// setDelta computes delta: Σ P dP from all keys of the row, or Σ dO O where operations store O, or O
// is given.
func (w *backwardWorker[T]) setDelta(r *row[T]) {
	r.delta = 0
	if !w.low && w.given == nil {
		for i, p := range r.scores {
			if p != 0 { // dP may be NaN where the weight is 0
				r.delta += p * r.dS[i]
			}
		}
		return
	}
	var squares float64
	for j, x := range r.o {
		if x != 0 { // dO may hold anything where the row attends to its sink alone
			rounded := w.round(x)
			r.delta += r.dO[j] * rounded
			e := float64(r.dO[j]) * float64(rounded-x)
			squares += e * e
		}
	}
	r.deltaError = 2 * math.Sqrt(squares)
}

// scoreGradients turns dP of a row into dS, and adds its share to dBias and dSinks.
func (w *backwardWorker[T]) scoreGradients(r *row[T]) {
	c := w.call
	w.setDelta(r)
	if c.roundings != nil {
		addScores(c.roundings, r)
	}
	for i, p := range r.scores {
		if p != 0 {
			r.dS[i] = w.round(p * (r.dS[i] - r.delta + r.dLSE))
		} else {
			r.dS[i] = 0
		}
	}
	if c.want.Bias {
		first := c.biasRow(w.b, w.h, r.number)
		for i, x := range r.dS {
			at := int(first) + w.key(r.entries[i])
			slope := T(1)
			if len(r.biases) > 0 && r.scores[i] != 0 {
				slope = r.biases[i]
			}
			c.dBias[at] += x * slope
			if c.roundings != nil {
				c.roundings.addBias(at, &r.rowRoundings, i, float64(r.scores[i]), float64(slope))
			}
		}
	}
	w.addTables(r)
	if c.want.Sinks {
		if p := T(math.Exp(float64(w.logit() - r.lse))); p != 0 {
			c.sinks[w.b*w.Args.Hq+w.h] -= p * (r.delta - r.dLSE)
			if c.roundings != nil {
				c.roundings.addSink(w.b*w.Args.Hq+w.h, &r.rowRoundings, float64(p), math.Abs(float64(r.delta-r.dLSE)))
			}
		}
	}
	for i, slope := range r.slopes {
		if r.scores[i] == 0 {
			continue // the derivative may be NaN
		}
		r.dS[i] = w.round(r.dS[i] * slope)
		if r.noise != nil {
			r.noise[i] *= float64(slope)
		}
	}
}

// addStored adds what the outputs hold to the gradients of a sequence and key head.
func (w *backwardWorker[T]) addStored(b, kv int) {
	c, group := w.call, w.Args.Group()
	add := func(dst []T, view problem.HostView, rows int, number func(i int) int, where func(b, row int) (batch, at int), head int) {
		if dst == nil {
			return
		}
		narrow := w.narrow[:view.Dim()]
		for i := range rows {
			batch, at := where(b, i)
			view.ReadRow(narrow, batch, head, at)
			for j, x := range narrow {
				dst[number(i)*len(narrow)+j] += T(x)
			}
		}
	}
	for h := kv * group; h < (kv+1)*group; h++ {
		add(c.dQ, c.stored[0], w.Sequences[b].Rows, func(i int) int { return c.rowNumber(b, h, i) }, w.QueryRow, h)
	}
	number := func(i int) int { return c.keyNumber(b, kv, i) }
	add(c.dK, c.stored[1], w.Sequences[b].Keys, number, w.KVRow, kv)
	add(c.dV, c.stored[2], w.Sequences[b].Keys, number, w.KVRow, kv)
}

// backwardBytes is the memory of the results, of elements of the given size, and of the workers: for
// every key of a block of rows a score, an entry, dS and the derivative of the score, as slices
// that grow, and for one row the lists of keys and biases.
func backwardBytes(cfg *problem.Config, a *problem.BackwardArgs, want tensors.GradientSet, element int) uint64 {
	const perKey, growth = 8 + 8 + 8 + 8, 2
	d, dv := cfg.HeadDim, cfg.ValueDim()
	results := tensors.SequenceBytes(a.Args.Shape)
	add := func(wanted bool, sizes ...int) {
		if wanted {
			results = hostmem.Sum(results, hostmem.Product(append(sizes, element)...))
		}
	}
	add(want.Q, a.B, a.Hq, a.Sq, d)
	add(want.K, a.B, a.KVHeads(), a.Sk, d)
	add(want.V, a.B, a.KVHeads(), a.Sk, dv)
	if want.Bias {
		n := tensors.BiasSizes(a.Bias, &a.Shape)
		add(true, n[0], n[1], n[2], a.Sk)
	}
	add(want.Sinks, a.B+1, a.Hq)
	for i, wanted := range want.Tables {
		if wanted { // of the table, and of each head of a sequence
			_, entries := tensors.TableGradient(cfg, i).Sizes(tensors.TableDims(cfg, &a.Args, i))
			add(true, tensors.TableElements(cfg, &a.Args, i))
			add(true, a.B, a.Hq, entries, 2)
		}
	}
	block := uint64(backwardRows(&a.Args))
	each := hostmem.Sum(hostmem.Product(block, hostmem.Sum(hostmem.Product(tensors.RowKeys(&a.Args), perKey, growth), uint64(d+2*dv)*8)), rowBytes(cfg, &a.Args))
	return hostmem.Sum(results, hostmem.Product(each, workers(hostmem.Product(a.B, a.KVHeads()))))
}

// backwardRows is how many rows share one widening of K and V: enough to hide its
// cost, few enough to keep a worker's numbers for each of their keys within 32 MiB. It
// depends on the call alone and not on the number of CPUs, because the order in which dK
// is summed depends on it where a list of tokens has a key twice.
func backwardRows(a *problem.Args) int {
	return max(1, min(64, 1<<20/max(1, int(tensors.RowKeys(a))), a.Sq))
}
