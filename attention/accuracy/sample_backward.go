package accuracy

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"runtime"

	"vkattn/attention"
	"vkattn/attention/internal/dropout"
	"vkattn/attention/internal/par"
	"vkattn/attention/internal/tensors"
	"vkattn/vk"
	"vkattn/vk/hostmem"
)

// keysPerHead is the number of keys sampled of a KV head, keyHeads of how many heads.
const keysPerHead, keyHeads = 32, 2

// gradientSample computes gradients of some rows and keys, in float64 and by plain
// attention in the storage type, from the inputs of the call. Of one head at a time it holds
// all rows of Q and dO, or all keys of K and V, in float32.
type gradientSample struct {
	*gradientCheck
	dO, dLSE attention.HostView
	dlse     bool
}

// sampled compares about opt.Rows rows, and some keys of the first and the last head among
// theirs.
func (g *gradientCheck) sampled(opt Options) error {
	a, dv := &g.a, g.cfg.ValueDim()
	n := opt.Rows
	if n == 0 {
		n = sampledRows(g.cfg, a.Shape)
	}
	sample, err := SampleArgs(a.Args, n, opt.Seed)
	if err != nil {
		return err
	}
	sample = g.within(sample)
	if err := g.sampleRoom(attention.CountRows(sample)); err != nil {
		return err
	}
	s := gradientSample{gradientCheck: g, dlse: a.DLSE.Given()}
	_, extent := tensors.QueryExtent(&a.Args)
	if s.dO, err = attention.ViewHost(a.DO, g.cfg.DType, a.Hq, extent, dv); err != nil {
		return err
	}
	if s.dlse {
		if s.dLSE, err = attention.ViewHost(a.DLSE, attention.F32, a.Hq, extent, 1); err != nil {
			return err
		}
	}
	want := tensors.GradientsOf(a)
	if want.Q {
		if err := s.rows(sample); err != nil {
			return err
		}
	}
	sumsKeys := g.cfg.Dropout == 0 // statistics computes O of a head alone, where it has another mask
	if (want.K || want.V) && sumsKeys {
		if err := s.keysOf(sample, want, opt.Seed); err != nil {
			return err
		}
	}
	for _, t := range []struct {
		wanted bool
		name   string
	}{{want.K && !sumsKeys, "dK"}, {want.V && !sumsKeys, "dV"}, {want.Bias, "dBias"}, {want.Sinks, "dSinks"}} {
		if t.wanted {
			g.judge(&gradientRows{name: t.name, refused: "the problem is sampled"})
		}
	}
	return nil
}

// sampleRoom refuses a sample that does not fit the host's memory.
func (g *gradientCheck) sampleRoom(rows int) error {
	return vk.CheckHostMemory("VerifyBackward", gradientSampleBytes(g.cfg, g.a.Shape, rows))
}

// gradientSampleBytes is the host memory that a sample of rows of a large problem takes.
func gradientSampleBytes(cfg attention.Config, s attention.Shape, rows int) uint64 {
	both := cfg.HeadDim + cfg.ValueDim()
	long := max(s.Sq, s.Sk)
	return hostmem.Sum(
		hostmem.Product(rows+2*keysPerHead*keyHeads, both, 8+4+4, 2),            // results
		hostmem.Product(long, both, 4),                                          // Q and dO, or K and V
		hostmem.Product(s.Group(), s.Sq, cfg.ValueDim()*cfg.DType.Size()+4+8+8), // O, LSE and delta of a KV head
		hostmem.Product(s.Sk, 8*(8+4), 64),                                      // scores and their gradients of the rows under way
	)
}

// sampledRows is the number of rows that are sampled of a large problem unless the caller
// says how many.
func sampledRows(cfg attention.Config, s attention.Shape) int {
	return int(min(max(wholeProducts/(float64(s.Sk)*float64(3*cfg.HeadDim+2*cfg.ValueDim())), 32), 1<<12))
}

// VerifyBackwardBytes is about the host memory that VerifyBackward takes for a problem
// without bias, in addition to its tensors.
func VerifyBackwardBytes(cfg attention.Config, s attention.Shape) uint64 {
	if gradientProducts(cfg, s) > wholeProducts {
		return gradientSampleBytes(cfg, s, sampledRows(cfg, s))
	}
	const element = 8 + 4 + 8 + 2*(4+8+4+8) // reference, low and noise, and those to compare in slices that grow
	keys := hostmem.Product(s.B, s.KVHeads(), s.Sk)
	return hostmem.Sum(
		hostmem.Product(s.B, s.Hq, s.Sq, cfg.HeadDim, element),
		hostmem.Product(keys, uint64(cfg.HeadDim+cfg.ValueDim()), uint64(element)),
		hostmem.Product(min(uint64(runtime.GOMAXPROCS(0)), hostmem.Product(s.B, s.KVHeads())), 64, uint64(s.Sk), 2*(8+8+8+8)))
}

// score applies the options to a scaled product in float64. slope is the derivative of the
// softcap.
func (s *gradientSample) score(x float64, b, h, row, t int) (score, slope float64) {
	slope = 1
	if limit := float64(s.cfg.Softcap); limit != 0 {
		cosh := math.Cosh(x / limit)
		x, slope = limit*math.Tanh(x/limit), 1/(cosh*cosh)
	}
	x += float64(s.bias(b, h, row, t))
	if s.a.ALiBi.Given() {
		x -= float64(floatAt(s.a.ALiBi, h)) * math.Abs(float64(s.position(b, row)-t))
	}
	return x, slope
}

// lowScore is score in the storage type.
func (s *gradientSample) lowScore(x float32, b, h, row, t int) (score, slope float32) {
	slope = 1
	if limit := float64(s.cfg.Softcap); limit != 0 {
		cosh := math.Cosh(float64(x) / limit)
		slope = float32(1 / (cosh * cosh))
	}
	return s.store(s.modify(x, b, h, row, t)), slope
}

// dot is the product of two rows, in float64 and in float32.
func dot(x, y []float32) (exact float64, low float32) {
	for i, v := range x {
		exact += float64(v) * float64(y[i])
		low += v * y[i]
	}
	return exact, low
}

// readDLSE is the gradient of a row's LSE.
func (s *gradientSample) readDLSE(b, h, row int) float32 {
	if !s.dlse {
		return 0
	}
	var one [1]float32
	batch, at := s.queryRow(b, row)
	s.dLSE.ReadRow(one[:], batch, h, at)
	return one[0]
}

// rows judges dQ of the rows of a sample.
func (s *gradientSample) rows(sample []attention.Rows) error {
	d, dv := s.cfg.HeadDim, s.cfg.ValueDim()
	r := gradientRows{name: "dQ", dtype: s.cfg.DType, width: d}
	read, err := s.reader(s.a.DQ, false, d)
	if err != nil {
		return err
	}
	k, v := make([]float32, s.a.Sk*d), make([]float32, s.a.Sk*dv)
	for _, head := range sample {
		kv := head.H / s.a.Group()
		for t := range s.keys[head.B] {
			s.readKey(k[t*d:][:d], false, head.B, kv, t)
			s.readKey(v[t*dv:][:dv], true, head.B, kv, t)
		}
		ref, low := make([]float64, len(head.Rows)*d), make([]float32, len(head.Rows)*d)
		par.Each(int64(len(head.Rows)), func() func(int64) {
			w := &rowWork{gradientSample: s, q: make([]float32, d), dO: make([]float32, dv)}
			return func(i int64) {
				w.row(head.B, head.H, head.Rows[i], k, v, ref[int(i)*d:][:d], low[int(i)*d:][:d])
			}
		})
		for i, row := range head.Rows {
			r.add(rowPosition{head.B, head.H, row}, read, ref[i*d:][:d], low[i*d:][:d], nil, len(s.visible(nil, head.B, head.H, row)) == 0)
		}
	}
	s.verdict.Rows = len(r.at)
	s.judge(&r)
	return nil
}

// rowWork computes dQ of one row after the other.
type rowWork struct {
	*gradientSample
	q, dO            []float32
	entries          []int32
	p, dP, slopes    []float64
	low              lowRow
	lowDP, lowSlopes []float32
}

func (w *rowWork) row(b, h, row int, k, v []float32, ref []float64, low []float32) {
	d, dv := w.cfg.HeadDim, w.cfg.ValueDim()
	batch, at := w.queryRow(b, row)
	w.q, w.dO = w.q[:d], w.dO[:dv]
	w.call.q.ReadRow(w.q, batch, h, at)
	w.gradientSample.dO.ReadRow(w.dO, batch, h, at)
	w.entries = w.visible(w.entries[:0], b, h, row)
	w.p, w.dP, w.slopes = w.p[:0], w.dP[:0], w.slopes[:0]
	w.low.scores, w.low.skip, w.lowDP, w.lowSlopes = w.low.scores[:0], false, w.lowDP[:0], w.lowSlopes[:0]
	scale := w.cfg.ScaleValue()
	for i, entry := range w.entries {
		if w.lists != nil {
			entry = w.lists[b*w.a.KVHeads()+h/w.a.Group()][entry]
			w.entries[i] = entry
		}
		t := int(entry)
		x, y := dot(w.q, k[t*d:][:d])
		score, slope := w.score(float64(scale)*x, b, h, row, t)
		lowScore, lowSlope := w.lowScore(scale*y, b, h, row, t)
		w.p, w.slopes = append(w.p, score), append(w.slopes, slope)
		w.low.scores, w.lowSlopes = append(w.low.scores, lowScore), append(w.lowSlopes, lowSlope)
		x, y = dot(w.dO, v[t*dv:][:dv])
		y = w.round(y)
		if keep := w.keep(b, h, row, t); keep == 0 {
			x, y = 0, 0
		} else if keep != 1 {
			x, y = x*dropout.Scale(w.cfg.Dropout), w.round(y*keep)
		}
		w.dP, w.lowDP = append(w.dP, x), append(w.lowDP, y)
	}
	sink := w.sink(h)
	w.low.softmax(sink, w.round)
	if w.low.skip {
		return // nothing to attend to
	}
	softmax(w.p, float64(sink))
	dLSE := w.readDLSE(b, h, row)
	var delta float64
	var lowDelta float32
	for i, p := range w.p {
		if p != 0 {
			delta += p * w.dP[i]
		}
		if q := w.low.scores[i]; q != 0 {
			lowDelta += q * w.lowDP[i]
		}
	}
	for i, p := range w.p {
		key := k[int(w.entries[i])*d:][:d]
		if p != 0 {
			dS := float64(scale) * p * (w.dP[i] - delta + float64(dLSE)) * w.slopes[i]
			for c, x := range key {
				ref[c] += dS * float64(x)
			}
		}
		if q := w.low.scores[i]; q != 0 {
			addTimes(low, scale*w.lowGradient(q, w.lowDP[i], lowDelta, dLSE, w.lowSlopes[i]), key)
		}
	}
	for c, x := range low {
		low[c] = w.round(x)
	}
}

// lowGradient is the gradient of a score in the storage type.
func (s *gradientSample) lowGradient(p, dP, delta, dLSE, slope float32) float32 {
	x := s.round(p * (dP - delta + dLSE))
	if s.cfg.Softcap != 0 {
		x = s.round(x * slope)
	}
	return x
}

// softmax turns scores into weights, with a sink (-Inf: none) as one more term. Weights
// that vanish in float32 are 0.
func softmax(s []float64, sink float64) {
	most := sink
	for _, x := range s {
		most = max(most, x)
	}
	sum := math.Exp(sink - most)
	for i, x := range s {
		if s[i] = math.Exp(x - most); s[i] < leastWeight {
			s[i] = 0
		}
		sum += s[i]
	}
	for i := range s {
		s[i] /= sum
	}
}

// leastWeight is the least normal float32.
const leastWeight = 0x1p-126

// keySums are the sums of one key.
type keySums struct {
	key    int
	times  int // that the list of sparse tokens has the key; 1 without a list
	k, v   []float32
	dK, dV []float64
	lowDK  []float32
	lowDV  []float32
}

// keysOf judges dK and dV of some keys of the first and the last head of a sample.
func (s *gradientSample) keysOf(sample []attention.Rows, want tensors.GradientSet, seed uint64) error {
	d, dv := s.cfg.HeadDim, s.cfg.ValueDim()
	dK := gradientRows{name: "dK", dtype: s.cfg.DType, width: d}
	dV := gradientRows{name: "dV", dtype: s.cfg.DType, width: dv}
	r := rand.New(rand.NewPCG(seed, 0xb5))
	done := map[[2]int]bool{}
	for _, at := range []int{0, len(sample) - 1} {
		if len(sample) == 0 {
			break
		}
		b, kv := sample[at].B, sample[at].H/s.a.Group()
		n := s.keys[b]
		if done[[2]int{b, kv}] || n == 0 {
			continue
		}
		done[[2]int{b, kv}] = true
		tile := r.IntN((n+63)/64) * 64
		sums, err := s.sums(b, kv, pick(r, n, min(n, keysPerHead), 0, n-1, tile, tile-1, tile+63))
		if err != nil {
			return err
		}
		for _, t := range []struct {
			wanted bool
			rows   *gradientRows
			tensor attention.Tensor
			of     func(*keySums) ([]float64, []float32)
		}{
			{want.K, &dK, s.a.DK, func(k *keySums) ([]float64, []float32) { return k.dK, k.lowDK }},
			{want.V, &dV, s.a.DV, func(k *keySums) ([]float64, []float32) { return k.dV, k.lowDV }},
		} {
			if !t.wanted {
				continue
			}
			read, err := s.reader(t.tensor, true, t.rows.width)
			if err != nil {
				return err
			}
			for i := range sums {
				ref, low := t.of(&sums[i])
				t.rows.add(rowPosition{b, kv, sums[i].key}, read, ref, low, nil, allZero(sums[i].lowDV) && allZero(ref))
			}
		}
		s.verdict.Keys += len(sums)
	}
	if want.K {
		s.judge(&dK)
	}
	if want.V {
		s.judge(&dV)
	}
	return nil
}

// sums adds up what all rows of a group contribute to some keys.
func (s *gradientSample) sums(b, kv int, keys []int) ([]keySums, error) {
	d, dv, group, rows := s.cfg.HeadDim, s.cfg.ValueDim(), s.a.Group(), s.call.rows[b]
	lse, o, err := s.statistics(b, kv)
	if err != nil {
		return nil, err
	}
	list := make([]keySums, len(keys))
	for i, key := range keys {
		k := &list[i]
		*k = keySums{key: key, times: 1, k: make([]float32, d), v: make([]float32, dv), dK: make([]float64, d), dV: make([]float64, dv),
			lowDK: make([]float32, d), lowDV: make([]float32, dv)}
		s.readKey(k.k, false, b, kv, key)
		s.readKey(k.v, true, b, kv, key)
		if s.lists != nil {
			k.times = 0
			for _, t := range s.lists[b*s.a.KVHeads()+kv] {
				if int(t) == key {
					k.times++
				}
			}
		}
	}
	q, dO, row := make([]float32, rows*d), make([]float32, rows*dv), make([]float32, dv)
	stats := make([]rowStatistics, rows)
	for g := range group {
		h := kv*group + g
		for i := range rows {
			batch, at := s.queryRow(b, i)
			s.call.q.ReadRow(q[i*d:], batch, h, at)
			s.dO.ReadRow(dO[i*dv:], batch, h, at)
			var one [1]float32
			lse.ReadRow(one[:], 0, g, at)
			o.ReadRow(row, 0, g, at)
			delta, _ := dot(dO[i*dv:][:dv], row)
			stats[i] = rowStatistics{lse: float64(one[0]), delta: delta, dLSE: s.readDLSE(b, h, i)}
		}
		par.Each(int64(len(list)), func() func(int64) {
			return func(i int64) { s.addRows(&list[i], b, h, q, dO, stats) }
		})
	}
	for i := range list {
		for _, x := range [][]float32{list[i].lowDK, list[i].lowDV} {
			for c := range x {
				x[c] = s.round(x[c])
			}
		}
	}
	return list, nil
}

type rowStatistics struct {
	lse, delta float64
	dLSE       float32
}

// addRows adds what the rows of a query head contribute to a key.
func (s *gradientSample) addRows(k *keySums, b, h int, q, dO []float32, stats []rowStatistics) {
	d, dv, scale := s.cfg.HeadDim, s.cfg.ValueDim(), s.cfg.ScaleValue()
	for i := range stats {
		st := &stats[i]
		if k.times == 0 || math.IsInf(st.lse, -1) || !s.sees(b, h, i, k.key) {
			continue
		}
		qi, dOi := q[i*d:][:d], dO[i*dv:][:dv]
		x, y := dot(qi, k.k)
		score, slope := s.score(float64(scale)*x, b, h, i, k.key)
		lowScore, lowSlope := s.lowScore(scale*y, b, h, i, k.key)
		x, y = dot(dOi, k.v)
		n := float64(k.times)
		if p := math.Exp(score - st.lse); !(p < leastWeight) {
			dS := n * float64(scale) * p * (x - st.delta + float64(st.dLSE)) * slope
			for c, v := range qi {
				k.dK[c] += dS * float64(v)
			}
			for c, v := range dOi {
				k.dV[c] += n * p * float64(v)
			}
		}
		if p := s.round(float32(math.Exp(float64(lowScore) - st.lse))); p != 0 {
			addTimes(k.lowDK, float32(n)*scale*s.lowGradient(p, s.round(y), float32(st.delta), st.dLSE, lowSlope), qi)
			addTimes(k.lowDV, float32(n)*p, dOi)
		}
	}
}

// statistics computes LSE and O of the group of a KV head on the CPU tier, as views of
// [1, group, rows].
func (s *gradientSample) statistics(b, kv int) (lse, o attention.HostView, err error) {
	cfg := s.cfg
	cfg.Tier, cfg.Access, cfg.Kernel, cfg.FixedSplit, cfg.Tuning = attention.TierCPU, attention.AccessAuto, "", 0, attention.TuningOff
	op, err := attention.New(nil, cfg)
	if err != nil {
		return lse, o, err
	}
	a := oneHead(s.cfg, s.a.Args, b, kv)
	_, rows := tensors.QueryExtent(&a)
	a.O = attention.Tensor{Host: make([]byte, a.Hq*rows*cfg.ValueDim()*cfg.DType.Size())}
	a.LSE = attention.Tensor{Host: make([]byte, a.Hq*rows*4)}
	for i := range a.Hq * rows {
		binary.LittleEndian.PutUint32(a.LSE.Host[4*i:], math.Float32bits(float32(math.Inf(-1))))
	}
	if err = op.Forward(nil, a); err != nil {
		return lse, o, err
	}
	if lse, err = attention.ViewHost(a.LSE, attention.F32, a.Hq, rows, 1); err != nil {
		return lse, o, err
	}
	o, err = attention.ViewHost(a.O, cfg.DType, a.Hq, rows, cfg.ValueDim())
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
