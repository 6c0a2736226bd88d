// Package oracle computes attention and its gradients by the plain formula: all scores of a row,
// their softmax, the weighted sum of V. One code does it in two arithmetics: in float64, which is
// the reference, and as a chain of separate operations in the storage type does, each of which
// rounds what it stores. The second result is off by what a result may be off by.
//
// It shares with the CPU tier the reading of tensors and no arithmetic.
package oracle

import (
	"math"
	"runtime"
	"slices"
	"sync"

	"vkattn/internal/hostcall"
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

// ReferenceMaxLogits is attention.ReferenceMaxLogits, which documents it.
func ReferenceMaxLogits(cfg problem.Config, a problem.Args) ([]float64, error) {
	if err := tensors.CheckInputs(cfg, a); err != nil {
		return nil, err
	}
	if err := tensors.CheckHost("ReferenceMaxLogits", tensors.ListBytes(a.Shape), forwardBytes(&cfg, &a, int(a.Rows()))); err != nil {
		return nil, err
	}
	tops := slices.Repeat([]float64{math.Inf(-1)}, a.Hq)
	var mu sync.Mutex
	err := eachBlock(&cfg, &a, tensors.AllRows(a.Shape), exact, func(w *worker[float64], s problem.Rows, _ int) {
		top := math.Inf(-1)
		for _, r := range w.begin(s.B, s.H, s.Rows) {
			for _, x := range r.scores {
				if x > top {
					top = x
				}
			}
		}
		mu.Lock()
		defer mu.Unlock()
		tops[s.H] = max(tops[s.H], top)
	})
	return tops, err
}

// ReferenceRows is oracle.ReferenceRows, which documents it.
func ReferenceRows(cfg problem.Config, a problem.Args, b, h int, rows []int) (o, lse []float64, err error) {
	return ReferenceSample(cfg, a, []problem.Rows{{B: b, H: h, Rows: rows}})
}

// ReferenceSample is attention.ReferenceSample, which documents it.
func ReferenceSample(cfg problem.Config, a problem.Args, sample []problem.Rows) (o, lse []float64, err error) {
	return forward("Reference", cfg, a, sample, exact, nil)
}

// Low computes rows of a call by plain attention in the storage type, as a chain of separate
// operations would, each rounding what it stores:
//
//	S = round(scale * Q Kᵀ)     accumulated in float32
//	P = round(softmax(S))       computed in float32
//	O = round(P V)              accumulated in float32
//	LSE = log sum exp S         float32, never rounded to the storage type
//
// For f32 there is nothing to round: it is the naive float32 formula, summed in
// order. A finite score that overflows f16 becomes the largest finite value.
//
// Options enter as follows. Softcap, bias and ALiBi change a score in float32 before it is
// rounded. A sink is one more term of the softmax. Dropout is another operation on P, which
// rounds what it stores. Quantized K and V are dequantized and rounded to the storage type
// first. Slots that a row does not attend to are left out. A sparse token that is listed twice
// counts twice.
//
// Low returns O packed [rows, HeadDimV] and LSE [rows], in the order of the
// sample; a.O and a.LSE may be zero. Tensors must lie in host memory.
func Low(cfg problem.Config, a problem.Args, sample []problem.Rows) (o, lse []float32, err error) {
	o, lse, _, err = LowErrors(cfg, a, sample)
	return o, lse, err
}

// LowErrors is Low, and what rounding makes likely in each row of O for the 16-bit types: the roundings of P
// and of O itself. Where V of the keys cancel in O, that of P is the larger one.
func LowErrors(cfg problem.Config, a problem.Args, sample []problem.Rows) (o, lse []float32, errors []RowError, err error) {
	if cfg.DType != problem.F32 {
		errors = make([]RowError, tensors.CountRows(sample))
	}
	o, lse, err = forward("Low", cfg, a, sample, lowOf(cfg.DType), errors)
	return o, lse, errors, err
}

func forward[T number](op string, cfg problem.Config, a problem.Args, sample []problem.Rows, how arithmetic[T], errors []RowError) (o, lse []T, err error) {
	if err := tensors.CheckSample(cfg, a, sample); err != nil {
		return nil, nil, err
	}
	n, dv := tensors.CountRows(sample), cfg.ValueDim()
	if err := tensors.CheckHost(op, forwardBytes(&cfg, &a, n)); err != nil {
		return nil, nil, err
	}
	o, lse = make([]T, n*dv), make([]T, n)
	err = eachBlock(&cfg, &a, sample, how, func(w *worker[T], s problem.Rows, at int) {
		w.forward(s, o[at*dv:], lse[at:])
		for i := range s.Rows {
			if errors != nil {
				errors[at+i] = rowError(&w.rows[i].rounded, cfg.OType(), o[(at+i)*dv:][:dv])
			}
		}
	})
	return o, lse, err
}

// eachBlock cuts a sample into blocks of rows of one head and visits them, on all CPUs. at is the
// number of rows before the block.
func eachBlock[T number](cfg *problem.Config, a *problem.Args, sample []problem.Rows, how arithmetic[T], visit func(w *worker[T], s problem.Rows, at int)) error {
	var call hostcall.Call
	if err := call.Open(cfg, a); err != nil {
		return err
	}
	block := blockRows(tensors.CountRows(sample), int(tensors.RowKeys(a)))
	lengths := make([]int, len(sample))
	for i, s := range sample {
		lengths[i] = len(s.Rows)
	}
	pieces := par.Pieces(lengths, block)
	par.Each(int64(len(pieces)), func() func(int64) {
		w := newWorker(&call, how, block)
		return func(i int64) {
			p := pieces[i]
			s := sample[p.List]
			s.Rows = s.Rows[p.Lo:p.Hi]
			visit(w, s, p.At)
		}
	})
	return nil
}

// forwardBytes is the memory of the outputs of n rows and of the workers: a score and an
// entry for every key of a block of rows, as slices that grow, and for one row lists of
// keys, biases and scores.
func forwardBytes(cfg *problem.Config, a *problem.Args, n int) uint64 {
	const perKey, growth = 8 + 8, 2
	outputs := hostmem.Product(n, cfg.ValueDim()+1, 8)
	block := uint64(blockRows(n, int(tensors.RowKeys(a))))
	each := hostmem.Sum(hostmem.Product(block, hostmem.Sum(hostmem.Product(tensors.RowKeys(a), perKey, growth), uint64(cfg.HeadDim)*8)), rowBytes(cfg, a))
	return hostmem.Sum(outputs, tensors.SequenceBytes(a.Shape), hostmem.Product(each, workers(uint64(n))))
}

// rowBytes is the memory that a worker takes once, whatever its number of rows.
func rowBytes(cfg *problem.Config, a *problem.Args) uint64 {
	const growth = 2
	return hostmem.Sum(hostmem.Product(tensors.RowKeys(a), 8+8+4+4*8, growth), uint64(tileKeys*max(cfg.HeadDim, cfg.ValueDim())*8))
}

// blockRows is how many rows share one widening of K and V: enough to hide
// its cost, few enough to occupy every CPU and to keep scores and entries within 32 MiB.
func blockRows(rows, keys int) int {
	const perCPU = 4
	spread := rows / (perCPU * runtime.GOMAXPROCS(0))
	return max(1, min(64, 2<<20/max(keys, 1), spread))
}

// workers is the number of CPUs that units of work run on.
func workers(units uint64) uint64 { return min(uint64(runtime.GOMAXPROCS(0)), units) }

// Noise is the error to expect of plain float32 attention in each element of O and of LSE
// because float32 cannot hold large scores better. It is nil for the 16-bit types, whose
// Low rounds scores so coarsely that the error shows there.
//
// A float32 score of 1e4 is off by some units of 1e-3 in any order of summation. If two
// such keys compete, their weights are off by as many parts in a thousand. Low is one draw
// of that error. It may be lucky by a factor of ten in the few rows that matter, and no
// correct kernel can follow. A dot product of d terms is off by about u sqrt(d)/2 of its
// size, with u = 2^-24 (the probabilistic bound of Higham and Mary, 2019, at its typical
// value). To first order a score's error e moves O by sum p e |V - O| and LSE by e.
func Noise(cfg problem.Config, a problem.Args, sample []problem.Rows) (o, lse []float64, err error) {
	if cfg.DType != problem.F32 {
		return nil, nil, nil
	}
	if err := tensors.CheckSample(cfg, a, sample); err != nil {
		return nil, nil, err
	}
	n, dv := tensors.CountRows(sample), cfg.ValueDim()
	if err := tensors.CheckHost("Noise", forwardBytes(&cfg, &a, n)); err != nil {
		return nil, nil, err
	}
	o, lse = make([]float64, n*dv), make([]float64, n)
	err = eachBlock(&cfg, &a, sample, lowOf(cfg.DType), func(w *worker[float32], s problem.Rows, at int) {
		low, lowLSE := make([]float32, len(s.Rows)*dv), make([]float32, len(s.Rows))
		w.forward(s, low, lowLSE)
		rows := w.rows[:len(s.Rows)]
		if !slices.ContainsFunc(rows, func(r row[float32]) bool { return w.scoreError(&r) > leastNoise }) {
			return
		}
		moved := make(map[*row[float32]][]float64, len(rows))
		for i := range rows {
			r := &rows[i]
			e := w.scoreError(r)
			if e <= leastNoise {
				r.drop()
				continue
			}
			lse[at+i], moved[r] = e, o[(at+i)*dv:][:dv]
		}
		w.eachRun(rows, &w.V, func(r *row[float32], weights, values []float32) {
			for c, x := range weights {
				p := float64(x) * w.scoreError(r)
				if p == 0 {
					continue
				}
				for j, v := range values[c*dv:][:dv] {
					if x := math.Abs(float64(v) - float64(r.o[j])); x < math.MaxFloat32 {
						moved[r][j] += p * x
					}
				}
			}
		})
	})
	return o, lse, err
}

// leastNoise: smaller errors of a score do not count.
const leastNoise = 1e-7

// scoreError is the error to expect of the row's largest score in float32.
func (w *worker[T]) scoreError(r *row[T]) float64 {
	return math.Ldexp(r.most, -24) * math.Sqrt(float64(w.Cfg.HeadDim)) / 2
}
