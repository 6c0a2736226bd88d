package accuracy

import (
	"encoding/binary"
	"math"

	"vkattn/attention"
	"vkattn/internal/host"
	"vkattn/internal/par"
	"vkattn/internal/tensors"
)

// Statistics of the rows that the sampled keys are summed over: LSE, and the product of dO and O.

// rowStatistics are what the gradients of keys need of a row. Its LSE is most + logSum.
type rowStatistics struct {
	most, logSum float64 // -Inf and 0 for a row without keys

	lowMost, lowLogSum float64 // the same of scores in the storage type
	delta              float64
	lowDelta           float32
	deltaError         float64
	dLSE               float32
	q, dO              size
}

// largeLSE is the size from which on float32 does not hold LSE well enough for gradients of
// a storage type: half a unit in the last place changes P by 1e-6 of its size, and by 1.5e-5.
func largeLSE(dtype attention.DType) float64 {
	if dtype == attention.F32 {
		return 16
	}
	return 256
}

// exactly visits the rows with an LSE of at least this size, on all CPUs.
func exactly(stats []rowStatistics, large float64, visit func(i int, st *rowStatistics)) {
	var list []int
	for i := range stats {
		if size := math.Abs(stats[i].most); size >= large && !math.IsInf(size, 0) {
			list = append(list, i)
		}
	}
	par.Each(int64(len(list)), func() func(int64) {
		return func(n int64) { visit(list[n], &stats[list[n]]) }
	})
}

// exactLSE computes a row's LSE in float64: the largest score, and the logarithm of the sum
// of the others' weights. Their sum may be lost even in float64, as with a bias of the least
// float32. LSE of scores in the storage type may differ by more than 1, so plain attention has its own.
func (s *gradientSample) exactLSE(st *rowStatistics, b, h, row int, q []float32) {
	w := s.scorer()
	key, scores, lowScores := make([]float32, s.cfg.HeadDim), []float64{}, []float64{}
	for _, entry := range s.visible(nil, b, h, row) {
		t := s.keyOf(b, h, entry)
		s.readKey(key, false, b, h/s.a.Group(), t)
		x, y := dot(q, key)
		slot := w.one(float64(s.cfg.ScaleValue())*x, s.cfg.ScaleValue()*y, b, h, row, t)
		scores, lowScores = append(scores, slot.score), append(lowScores, float64(slot.lowScore))
	}
	st.most, st.logSum = logSumExp(scores, float64(s.sink(h)))
	st.lowMost, st.lowLogSum = logSumExp(lowScores, float64(s.sink(h)))
}

// logSumExp is the logarithm of the sum of weights, in two parts to add.
func logSumExp(scores []float64, sink float64) (most, logSum float64) {
	most = sink
	for _, x := range scores {
		most = max(most, x)
	}
	sum := math.Exp(sink - most)
	for _, x := range scores {
		sum += math.Exp(x - most)
	}
	return most, math.Log(sum)
}

// statistics computes LSE and O, not rounded, of the group of a KV head on the CPU tier, with its dropout
// mask in the call, as views of [1, group, rows].
func (s *gradientSample) statistics(b, kv int) (lse, o attention.HostView, err error) {
	cfg := s.cfg
	cfg.Tier, cfg.Access, cfg.Kernel, cfg.FixedSplit, cfg.Tuning = attention.TierCPU, attention.AccessAuto, "", 0, attention.TuningOff
	cfg.F32O = cfg.DType != attention.F32
	op, err := attention.New(nil, cfg)
	if err != nil {
		return lse, o, err
	}
	a := oneHead(s.cfg, s.a.Args, b, kv)
	_, rows := tensors.QueryExtent(&a)
	a.O = attention.Tensor{Host: make([]byte, a.Hq*rows*cfg.ValueDim()*cfg.OType().Size())}
	a.LSE = attention.Tensor{Host: make([]byte, a.Hq*rows*4)}
	for i := range a.Hq * rows {
		binary.LittleEndian.PutUint32(a.LSE.Host[4*i:], math.Float32bits(float32(math.Inf(-1))))
	}
	if _, err = op.PlanFor(a); err != nil { // checks the arguments
		return lse, o, err
	}
	if err = host.ForwardFrom(cfg, a, uint32(b*s.a.Hq+kv*s.a.Group())); err != nil {
		return lse, o, err
	}
	if lse, err = attention.ViewHost(a.LSE, attention.F32, a.Hq, rows, 1); err != nil {
		return lse, o, err
	}
	o, err = attention.ViewHost(a.O, cfg.OType(), a.Hq, rows, cfg.ValueDim())
	return lse, o, err
}

// oneHead are the arguments of the call for one sequence and KV head, without outputs.
func oneHead(cfg attention.Config, a attention.Args, b, kv int) attention.Args {
	group := a.Group()
	h := kv * group
	_, rows := tensors.QueryExtent(&a)
	_, keys := tensors.KVExtent(&a)
	shift := func(t *attention.Tensor, heads, rows, dim, b, h int) {
		t.Strides = t.Strides.Resolve(heads, rows, dim)
		t.Offset += int64(b)*t.Strides.Batch + int64(h)*t.Strides.Head
	}
	batchQ, batchK := b, b
	if v := a.Varlen; v != nil {
		one := *v
		for _, x := range []*attention.Vector{&one.CuQ, &one.CuK, &one.UsedQ, &one.UsedK} {
			if x.Given() {
				x.Offset += int64(b)
			}
		}
		if v.CuQ.Given() {
			batchQ = 0
		}
		if v.CuK.Given() {
			batchK = 0
		}
		a.Varlen = &one
	}
	heads, headsKV := a.Hq, a.KVHeads()
	shift(&a.Q, heads, rows, cfg.HeadDim, batchQ, h)
	shift(&a.K, headsKV, keys, cfg.HeadDim, batchK, kv)
	shift(&a.V, headsKV, keys, cfg.ValueDim(), batchK, kv)
	// broadcast moves a tensor [batches, heads, rows, Sk] whose sizes may be 1 for all.
	broadcast := func(t *attention.Tensor, batches, perBatch, perRow *int) {
		at, atHead := b, h
		if *batches == 1 {
			at = 0
		}
		if *perBatch == 1 {
			atHead = 0
		}
		shift(t, orAll(*perBatch, heads), orAll(*perRow, a.Sq), a.Sk, at, atHead)
		*batches = 1
		if *perBatch != 1 {
			*perBatch = group
		}
	}
	if a.Bias != nil {
		one := *a.Bias
		broadcast(&one.Tensor, &one.Batches, &one.Heads, &one.Rows)
		a.Bias = &one
	}
	if a.Mask != nil {
		one := *a.Mask
		broadcast(&one.Tensor, &one.Batches, &one.Heads, &one.Rows)
		a.Mask = &one
	}
	if a.Blocks != nil {
		one := *a.Blocks
		line := ((a.Sq + one.BlockQ - 1) / one.BlockQ) * (((a.Sk+one.BlockK-1)/one.BlockK + 31) / 32)
		one.Map.Offset += int64((wrapOne(b, one.Batches)*orAll(one.Heads, heads) + wrapOne(h, one.Heads)) * line)
		one.Batches = 1
		if one.Heads != 1 {
			one.Heads = group
		}
		a.Blocks = &one
	}
	if a.SparseTokens != nil {
		one := *a.SparseTokens
		one.Offsets.Offset += int64(b*headsKV + kv)
		a.SparseTokens = &one
	}
	for _, v := range []*attention.Vector{&a.ALiBi, &a.Sinks} {
		if v.Given() {
			v.Offset += int64(h)
		}
	}
	a.Shape = attention.Shape{B: 1, Hq: group, Hkv: 1, Sq: a.Sq, Sk: a.Sk}
	return a
}
