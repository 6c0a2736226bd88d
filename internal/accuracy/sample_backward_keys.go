package accuracy

import (
	"math"
	"math/rand/v2"

	"vkattn/attention"
	"vkattn/internal/dropout"
	"vkattn/internal/par"
	"vkattn/internal/tensors"
)

// dK and dV of the keys of a sample: float64 sums over the rows of their group.

// keySums are the sums of one key.
type keySums struct {
	key    int
	times  int // that the list of sparse tokens has the key; 1 without a list
	k, v   []float32
	dK, dV []float64
	lowDK  []float32
	lowDV  []float32

	drawsK, drawsV draws
	noiseK         []float64 // squares; nil in float32

	attended bool // by any row of the group
}

// keysOf judges dK and dV of some keys of the first and the last head of a sample.
func (s *gradientSample) keysOf(sample []attention.Rows, want tensors.GradientSet, seed uint64) error {
	d, dv := s.cfg.HeadDim, s.cfg.ValueDim()
	dK := gradientRows{name: "dK", dtype: s.cfg.GradientType(), width: d}
	dV := gradientRows{name: "dV", dtype: s.cfg.GradientType(), width: dv}
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
			of     func(*keySums) (ref []float64, low []float32, noise []float64, roundings draws)
		}{
			{want.K, &dK, s.a.DK, func(k *keySums) ([]float64, []float32, []float64, draws) { return k.dK, k.lowDK, k.noiseK, k.drawsK }},
			{want.V, &dV, s.a.DV, func(k *keySums) ([]float64, []float32, []float64, draws) { return k.dV, k.lowDV, nil, k.drawsV }},
		} {
			if !t.wanted {
				continue
			}
			read, err := s.reader(t.tensor, true, t.rows.width)
			if err != nil {
				return err
			}
			for i := range sums {
				ref, low, noise, roundings := t.of(&sums[i])
				var errors []RowError
				if s.cfg.DType != attention.F32 {
					errors = []RowError{roundings.row(s.cfg.GradientType(), low)}
				}
				t.rows.add(rowPosition{b, kv, sums[i].key}, read, ref, low, noise, errors, !sums[i].attended)
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
		if s.cfg.DType != attention.F32 {
			k.noiseK = make([]float64, d)
		}
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
			st := rowStatistics{most: float64(one[0]), lowMost: float64(one[0]), dLSE: s.readDLSE(b, h, i), q: sizeOf(q[i*d:][:d]), dO: sizeOf(dO[i*dv:][:dv])}
			st.delta, _ = dot(dO[i*dv:][:dv], row)
			st.lowDelta, st.deltaError = s.delta(dO[i*dv:][:dv], row)
			stats[i] = st
		}
		exactly(stats, largeLSE(s.cfg.DType), func(i int, st *rowStatistics) { s.exactLSE(st, b, h, i, q[i*d:][:d]) })
		par.Each(int64(len(list)), func() func(int64) {
			w := s.scorer()
			return func(i int64) { s.addRows(w, &list[i], b, h, q, dO, stats) }
		})
	}
	for i := range list {
		for _, x := range [][]float32{list[i].lowDK, list[i].lowDV} {
			for c := range x {
				x[c] = s.round(x[c])
			}
		}
		for c, x := range list[i].noiseK {
			list[i].noiseK[c] = math.Sqrt(x)
		}
	}
	return list, nil
}

// addRows adds what the rows of a query head contribute to a key.
func (s *gradientSample) addRows(w *scorer, k *keySums, b, h int, q, dO []float32, stats []rowStatistics) {
	d, dv, scale := s.cfg.HeadDim, s.cfg.ValueDim(), s.cfg.ScaleValue()
	for i := range stats {
		st := &stats[i]
		if k.times == 0 || !s.sees(b, h, i, k.key) || s.biasedAway(b, h, i, k.key) {
			continue
		}
		k.attended = true
		if math.IsInf(st.most, -1) {
			continue
		}
		qi, dOi := q[i*d:][:d], dO[i*dv:][:dv]
		x, y := dot(qi, k.k)
		slot := w.one(float64(scale)*x, scale*y, b, h, i, k.key)
		x, y = dot(dOi, k.v)
		y = s.round(y)
		factor, keep := 1.0, s.keep(b, h, i, k.key) // that dropout gives P in dV, and dP
		switch keep {
		case 1:
		case 0:
			factor, x, y = 0, 0, 0
		default:
			factor = dropout.Scale(s.cfg.Dropout)
			x, y = x*factor, s.round(y*keep)
		}
		n := float64(k.times)
		exact := math.Exp(slot.score - st.most - st.logSum)
		if p := exact; !(p < leastWeight) {
			dS := n * float64(scale) * p * (x - st.delta + float64(st.dLSE)) * slot.slope
			for c, v := range qi {
				k.dK[c] += dS * float64(v)
			}
			if factor != 0 { // dO of a dropped slot may be Inf
				for c, v := range dOi {
					k.dV[c] += n * p * factor * float64(v)
				}
			}
		}
		if p := s.round(float32(math.Exp(float64(slot.lowScore) - st.lowMost - st.lowLogSum))); p != 0 {
			dS, dropped := s.lowGradient(p, y, st.lowDelta, st.dLSE, slot.lowSlope), s.round(p*keep)
			addTimes(k.lowDK, float32(n)*scale*dS, qi)
			addTimes(k.lowDV, float32(n)*dropped, dOi)
			if k.noiseK != nil {
				e := n * float64(scale) * st.deltaError * float64(p*slot.lowSlope)
				for c, x := range qi {
					k.noiseK[c] += e * e * float64(x) * float64(x)
				}
				k.drawsK.move(e/2, st.q)
				k.drawsK.round(s.cfg.DType, dS, float32(n)*scale, st.q)
				if !roundsToOne(s.round(float32(exact))) {
					k.drawsV.round(s.cfg.DType, dropped, float32(n), st.dO)
				}
			}
		}
	}
}
