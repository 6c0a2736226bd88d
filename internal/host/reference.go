package host

import (
	"runtime"

	"vkattn/internal/hostmem"
	"vkattn/internal/par"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Reference is attention.Reference, which documents it.
func Reference(cfg problem.Config, a problem.Args) (o, lse []float64, err error) {
	if err := tensors.CheckInputs(cfg, a); err != nil { // before there is a list of rows
		return nil, nil, err
	}
	if err := tensors.CheckHost("Reference", tensors.ListBytes(a.Shape), hostmem.Product(uint64(a.Rows()), uint64(cfg.ValueDim()+1), 8)); err != nil {
		return nil, nil, err
	}
	return ReferenceSample(cfg, a, tensors.AllRows(a.Shape))
}

// ReferenceRows is attention.ReferenceRows, which documents it.
func ReferenceRows(cfg problem.Config, a problem.Args, b, h int, rows []int) (o, lse []float64, err error) {
	return ReferenceSample(cfg, a, []problem.Rows{{B: b, H: h, Rows: rows}})
}

// ReferenceSample is attention.ReferenceSample, which documents it.
func ReferenceSample(cfg problem.Config, a problem.Args, sample []problem.Rows) (o, lse []float64, err error) {
	if err := tensors.CheckSample(cfg, a, sample); err != nil {
		return nil, nil, err
	}
	n, dv := tensors.CountRows(sample), cfg.ValueDim()
	if err := tensors.CheckHost("Reference", referenceBytes(&cfg, &a, n)); err != nil {
		return nil, nil, err
	}
	o, lse = make([]float64, n*dv), make([]float64, n)
	var call hostCall
	if err := call.open(&cfg, &a); err != nil {
		return nil, nil, err
	}
	block := refBlockRows(n, int(tensors.RowKeys(&a)))
	lengths := make([]int, len(sample))
	for i, s := range sample {
		lengths[i] = len(s.Rows)
	}
	pieces := par.Pieces(lengths, block)
	par.Each(int64(len(pieces)), func() func(int64) {
		w := newRefWorker(&call, block)
		return func(i int64) {
			p := pieces[i]
			s := sample[p.List]
			s.Rows = s.Rows[p.Lo:p.Hi]
			w.run(s, o[p.At*dv:], lse[p.At:])
		}
	})
	return o, lse, nil
}

// referenceBytes is the memory of the outputs of n rows and of the workers: a score and an
// entry for every key of a block of rows, as slices that grow, and for one row lists of
// keys and biases.
func referenceBytes(cfg *problem.Config, a *problem.Args, n int) uint64 {
	const perKey, growth = 8 + 8, 2
	outputs := hostmem.Product(n, cfg.ValueDim()+1, 8)
	block := uint64(refBlockRows(n, int(tensors.RowKeys(a))))
	each := hostmem.Sum(hostmem.Product(block, hostmem.Sum(hostmem.Product(tensors.RowKeys(a), perKey, growth), uint64(cfg.HeadDim)*8)),
		hostmem.Product(tensors.RowKeys(a), 8+8+4+2*8, growth), uint64(refKeys*max(cfg.HeadDim, cfg.ValueDim())*8))
	return hostmem.Sum(outputs, tensors.SequenceBytes(a.Shape), hostmem.Product(each, workers(uint64(n))))
}

// refBlockRows is how many rows share one widening of K and V: enough to hide
// its cost, few enough to occupy every CPU and to keep scores and entries within 32 MiB.
func refBlockRows(rows, keys int) int {
	const perCPU = 4
	spread := rows / (perCPU * runtime.GOMAXPROCS(0))
	return max(1, min(64, 2<<20/max(keys, 1), spread))
}
