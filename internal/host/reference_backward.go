package host

import (
	"vkattn/internal/hostmem"
	"vkattn/internal/par"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// ReferenceBackward is attention.ReferenceBackward, which documents it.
func ReferenceBackward(cfg problem.Config, a problem.BackwardArgs) (g problem.Gradients, err error) {
	if a.PartialKeys {
		return problem.Gradients{}, &problem.ShapeError{Field: "PartialKeys", Got: true, Want: "false: LSE is computed from the keys of the call"}
	}
	if err := tensors.CheckBackward(&a, &cfg); err != nil {
		return problem.Gradients{}, err
	}
	want := tensors.GradientsOf(&a)
	if want == (tensors.GradientSet{}) {
		want = tensors.GradientSet{Q: true, K: true, V: true, Bias: a.Bias != nil, Sinks: a.Sinks.Given()}
	}
	if err := tensors.CheckHost("ReferenceBackward", referenceBackwardBytes(&cfg, &a, want)); err != nil {
		return problem.Gradients{}, err
	}
	call := backwardCall{args: &a}
	if err := call.open(&cfg, want); err != nil {
		return problem.Gradients{}, err
	}
	// A unit of work is one (batch, key head), or all that add to the same elements of dBias.
	batches, heads := a.B, a.KVHeads()
	if want.Bias {
		n := tensors.BiasSizes(a.Bias, &a.Shape)
		batches, heads = min(batches, n[0]), min(heads, n[1])
	}
	par.Each(int64(batches)*int64(heads), func() func(int64) {
		w := newBackwardWorker(&call)
		return func(unit int64) {
			for b := int(unit / int64(heads)); b < a.B; b += batches {
				for kv := int(unit % int64(heads)); kv < a.KVHeads(); kv += heads {
					w.run(b, kv)
				}
			}
		}
	})
	call.sumSinks()
	return call.g, nil
}

// backwardCall is a checked backward call in host memory, and its results.
type backwardCall struct {
	hostCall
	args       *problem.BackwardArgs
	g          problem.Gradients
	biasStep   [3]int64  // strides in g.DBias, as hostCall.bias
	sinks      []float64 // [B, Hq]: what each sequence adds to g.DSinks
	dO         problem.HostView
	dLSE       problem.HostView // if args.DLSE is given
	dQ, dK, dV problem.HostView // of the outputs, if the call accumulates
}

// open allocates the results. The caller has checked that there is memory for them.
func (c *backwardCall) open(cfg *problem.Config, want tensors.GradientSet) (err error) {
	a := c.args
	if err := c.hostCall.open(cfg, &a.Args); err != nil {
		return err
	}
	_, rows := tensors.QueryExtent(&a.Args)
	_, keys := tensors.KVExtent(&a.Args)
	d, dv := cfg.HeadDim, cfg.ValueDim()
	for _, v := range [5]struct {
		used             bool
		view             *problem.HostView
		tensor           *problem.Tensor
		dtype            problem.DType
		heads, rows, dim int
	}{
		{true, &c.dO, &a.DO, cfg.DType, a.Hq, rows, dv},
		{a.DLSE.Given(), &c.dLSE, &a.DLSE, problem.F32, a.Hq, rows, 1},
		{a.Accumulate && want.Q, &c.dQ, &a.DQ, cfg.GradientType(), a.Hq, rows, d},
		{a.Accumulate && want.K, &c.dK, &a.DK, cfg.GradientType(), a.KVHeads(), keys, d},
		{a.Accumulate && want.V, &c.dV, &a.DV, cfg.GradientType(), a.KVHeads(), keys, dv},
	} {
		if v.used {
			if *v.view, err = problem.ViewHost(*v.tensor, v.dtype, v.heads, v.rows, v.dim); err != nil {
				return err
			}
		}
	}
	if want.Q {
		c.g.DQ = make([]float64, a.B*a.Hq*a.Sq*d)
	}
	if want.K {
		c.g.DK = make([]float64, a.B*a.KVHeads()*a.Sk*d)
	}
	if want.V {
		c.g.DV = make([]float64, a.B*a.KVHeads()*a.Sk*dv)
	}
	if want.Bias {
		n := tensors.BiasSizes(a.Bias, &a.Shape)
		c.g.DBias = make([]float64, n[0]*n[1]*n[2]*a.Sk)
		c.biasStep = tensors.Broadcast(problem.Strides{}, n, a.Sk)
	}
	if want.Sinks {
		c.g.DSinks, c.sinks = make([]float64, a.Hq), make([]float64, a.B*a.Hq)
	}
	return nil
}

// The methods below return a row of a gradient.

func (c *backwardCall) rowOfDQ(b, h, row int) []float64 {
	d := c.cfg.HeadDim
	return c.g.DQ[((b*c.a.Hq+h)*c.a.Sq+row)*d:][:d]
}

func (c *backwardCall) rowOfDK(b, kv, key int) []float64 {
	d := c.cfg.HeadDim
	return c.g.DK[((b*c.a.KVHeads()+kv)*c.a.Sk+key)*d:][:d]
}

func (c *backwardCall) rowOfDV(b, kv, key int) []float64 {
	dv := c.cfg.ValueDim()
	return c.g.DV[((b*c.a.KVHeads()+kv)*c.a.Sk+key)*dv:][:dv]
}

func (c *backwardCall) rowOfDBias(b, h, row int) []float64 {
	return c.g.DBias[int64(b)*c.biasStep[0]+int64(h)*c.biasStep[1]+int64(row)*c.biasStep[2]:][:c.a.Sk]
}

// sumSinks sums what the sequences add to the gradient of each sink, in their order.
func (c *backwardCall) sumSinks() {
	for i, x := range c.sinks {
		c.g.DSinks[i%c.a.Hq] += x
	}
}

// referenceBackwardBytes is the memory of the results and of the workers: for every key of
// a block of rows a score, an entry, dS and the derivative of the softcap, as slices that
// grow, and for one row the lists of keys and biases.
func referenceBackwardBytes(cfg *problem.Config, a *problem.BackwardArgs, want tensors.GradientSet) uint64 {
	const perKey, growth = 8 + 8 + 8 + 8, 2
	d, dv := cfg.HeadDim, cfg.ValueDim()
	results := tensors.SequenceBytes(a.Args.Shape)
	add := func(wanted bool, sizes ...int) {
		if wanted {
			results = hostmem.Sum(results, hostmem.Product(append(sizes, 8)...))
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
	keys := tensors.RowKeys(&a.Args)
	block := uint64(backwardBlockRows(&a.Args))
	each := hostmem.Sum(hostmem.Product(block, hostmem.Sum(hostmem.Product(keys, perKey, growth), uint64(d+dv)*8)),
		hostmem.Product(keys, 8+8+4+2*8, growth), uint64(refKeys*max(d, dv)*8))
	return hostmem.Sum(results, hostmem.Product(each, workers(hostmem.Product(a.B, a.KVHeads()))))
}

// backwardBlockRows is how many rows share one widening of K and V: enough to hide its
// cost, few enough to keep a worker's numbers for each of their keys within 32 MiB. It
// depends on the call alone and not on the number of CPUs, because the order in which dK
// is summed depends on it where a list of tokens has a key twice.
func backwardBlockRows(a *problem.Args) int {
	return max(1, min(64, 1<<20/int(tensors.RowKeys(a)), a.Sq))
}
