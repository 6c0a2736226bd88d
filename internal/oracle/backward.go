package oracle

import (
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
// all gradients that the call can have, without their references: dQ, dK, dV, dBias, dSinks and dTables[name], packed as
// attention.ReferenceBackward has them. Outputs in a may be zero. Tensors must lie in host memory.
func LowBackward(cfg problem.Config, a problem.BackwardArgs) (map[string]Gradient, error) {
	a.Accumulate = false
	if err := tensors.CheckBackward(&a, &cfg); err != nil {
		return nil, err
	}
	const element, row = 4 + 8, 24 + 24 // with its noise, and with draws and what they make likely
	want := everyGradient(&cfg, &a)
	rows := hostmem.Sum(hostmem.Product(a.B, a.Hq, a.Sq, row), hostmem.Product(a.B, a.KVHeads(), a.Sk, 2*row))
	if err := tensors.CheckHost("LowBackward", hostmem.Sum(backwardBytes(&cfg, &a, want, element), rows)); err != nil {
		return nil, err
	}
	c := backward[float32]{args: &a, arithmetic: lowOf(cfg.DType), want: want}
	if err := c.open(&cfg); err != nil {
		return nil, err
	}
	c.roundings = newRoundings(&c, true)
	c.run()
	return c.roundings.likely(&c), nil
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
