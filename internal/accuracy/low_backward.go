package accuracy

import (
	"math"
	"runtime"

	"vkattn/attention"
	"vkattn/internal/hostmem"
	"vkattn/internal/par"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// LowGradients are the results of [LowBackward], packed like the results of
// attention.ReferenceBackward.
type LowGradients struct {
	DQ, DK, DV, DBias, DSinks []float32

	// Noise is for f32 what [Noise] is for O: the error to expect of each element because
	// float32 cannot hold large scores better. To first order a score's error e moves its P
	// by e P (1 - P), and delta by the sum of e P |dP - delta|. A dP and delta, a dot product
	// with a rounded O, are off by as much of their size as scores are, and differ by less
	// than that where one key takes most of P. The errors of n dP with equal P add up to
	// sqrt(n) times one.
	//
	// For the 16-bit types it is what rounding O does. With r the amounts by which the
	// elements of O are rounded, of either sign, delta of a row has a standard deviation
	// of sqrt(Σ (dO r)²). It is one draw for all keys of the row. So its error e counts as
	// twice that deviation, and the error of dX as P e. It moves dQ by e |scale Σ P K|,
	// and the draws of rows add up in dK, dBias and dSinks to the root of the sum of their
	// squares. The results of LowBackward have one draw, which is often small in a row or
	// a key that matters.
	Noise GradientNoise

	// Rows is for the 16-bit types what rounding makes likely in each row.
	Rows GradientRows
}

// GradientRows has the rows of dQ, dK and dV of [LowGradients].
type GradientRows struct{ DQ, DK, DV []RowError }

// GradientNoise has the elements of [LowGradients].
type GradientNoise struct{ DQ, DK, DV, DBias, DSinks []float64 }

// LowBackward computes the gradients of a call by plain backward attention in the storage
// type, as a chain of separate operations would, each rounding what it stores:
//
//	S, P, O                                 as [Low] has them
//	dP = round(dO Vᵀ)                       accumulated in float32
//	dX = round(P (dP - Σ dO O + dLSE))      computed in float32
//	dS = round(dX times the softcap's derivative)
//	dQ = round(scale * dS K)                accumulated in float32, as dK and dV are
//
// dBias is the sum of the rounded dX, and dSinks is computed, in float32. dK and dV of a
// group are accumulated over its heads. Dropout rounds P and dP once more behind it. It computes all gradients that the call can have;
// outputs in a may be zero. Tensors must lie in host memory.
func LowBackward(cfg attention.Config, a attention.BackwardArgs) (LowGradients, error) {
	if err := tensors.CheckBackward(&a, &cfg); err != nil {
		return LowGradients{}, err
	}
	if err := gradientRoom(&cfg, &a); err != nil {
		return LowGradients{}, err
	}
	c, err := openCall(cfg, a.Args)
	if err != nil {
		return LowGradients{}, err
	}
	rows := a.Sq
	if c.startQ != nil {
		rows = a.Varlen.TotalQ
	}
	g := &lowGradients{call: c, dLSEGiven: a.DLSE.Given()}
	if g.dO, err = attention.ViewHost(a.DO, cfg.DType, a.Hq, rows, cfg.ValueDim()); err != nil {
		return LowGradients{}, err
	}
	if g.dLSEGiven {
		if g.dLSE, err = attention.ViewHost(a.DLSE, attention.F32, a.Hq, rows, 1); err != nil {
			return LowGradients{}, err
		}
	}
	d, dv, heads := cfg.HeadDim, cfg.ValueDim(), a.KVHeads()
	g.DQ = make([]float32, int(a.Rows())*d)
	g.DK, g.DV = make([]float32, a.B*heads*a.Sk*d), make([]float32, a.B*heads*a.Sk*dv)
	n := &g.Noise
	n.DQ, n.DK, n.DV = make([]float64, len(g.DQ)), make([]float64, len(g.DK)), make([]float64, len(g.DV))
	g.noisy = cfg.DType == attention.F32
	if !g.noisy {
		g.drawsQ, g.drawsK, g.drawsV = make([]draws, len(g.DQ)/d), make([]draws, len(g.DK)/d), make([]draws, len(g.DV)/dv)
	}
	batches := a.B
	if b := a.Bias; b != nil {
		g.biasSizes = [3]int{orAll(b.Batches, a.B), orAll(b.Heads, a.Hq), orAll(b.Rows, a.Sq)}
		g.DBias = make([]float32, g.biasSizes[0]*g.biasSizes[1]*g.biasSizes[2]*a.Sk)
		n.DBias = make([]float64, len(g.DBias))
		batches, heads = 1, 1 // sequences may share elements of dBias
	}
	if a.Sinks.Given() {
		g.DSinks = make([]float32, a.Hq)
		n.DSinks = make([]float64, a.Hq)
		batches = 1
	}
	par.Each(int64(batches*heads), func() func(int64) {
		w := c.lowWorker(lowRows(&a.Args))
		return func(unit int64) {
			for b := int(unit) / heads; b < a.B; b += batches {
				for kv := int(unit) % heads; kv < a.KVHeads(); kv += heads {
					g.run(w, b, kv)
				}
			}
		}
	})
	for _, x := range [][]float32{g.DQ, g.DK, g.DV} {
		for i := range x {
			x[i] = c.round(x[i])
		}
	}
	g.Rows = GradientRows{g.rowErrors(g.drawsQ, g.DQ, d), g.rowErrors(g.drawsK, g.DK, d), g.rowErrors(g.drawsV, g.DV, dv)}
	if !g.noisy {
		for k, x := range [][]float64{n.DQ, n.DK, n.DBias, n.DSinks} {
			for i := range x {
				if k > 0 { // a sum of squares
					x[i] = math.Sqrt(x[i])
				}
				if !(x[i] < math.MaxFloat32) { // where inputs are not finite
					x[i] = 0
				}
			}
		}
	}
	return g.LowGradients, nil
}

// gradientRoom refuses results and scratch memory that do not fit the host's memory. The
// error matches vk.ErrOutOfMemory.
func gradientRoom(cfg *attention.Config, a *attention.BackwardArgs) error {
	const element = 4 + 8                            // with its noise
	d, dv, perRow := cfg.HeadDim, cfg.ValueDim(), 16 // of a score: dP, slope, noise
	const row = 24 + 24                              // its draws, and what they make likely
	needed := hostmem.Sum(hostmem.Product(a.B, a.Hq, a.Sq, d*element+row), hostmem.Product(a.B, a.KVHeads(), a.Sk, (d+dv)*element+2*row),
		hostmem.Product(runtime.GOMAXPROCS(0), lowRows(&a.Args), mostKeys(&a.Args), perRow+16), hostmem.Product(a.B, 32))
	if b := a.Bias; b != nil {
		n := tensors.BiasSizes(b, &a.Shape)
		needed = hostmem.Sum(needed, hostmem.Product(n[0], n[1], n[2], a.Sk, element))
	}
	if needed < roomFloor {
		return nil
	}
	return vk.CheckHostMemory("LowBackward", needed)
}

type lowGradients struct {
	LowGradients
	*call
	dO, dLSE  attention.HostView
	dLSEGiven bool
	noisy     bool // float32: scores and dP are
	biasSizes [3]int

	drawsQ, drawsK, drawsV []draws // of the rows of dQ, dK and dV; nil in float32
}

// run adds what a sequence and key head contribute.
func (g *lowGradients) run(w *lowWorker, b, kv int) {
	group := g.a.Group()
	for h := kv * group; h < (kv+1)*group; h++ {
		for first := 0; first < g.rows[b]; first += len(w.rows) {
			s := attention.Rows{B: b, H: h}
			for row := first; row < min(first+len(w.rows), g.rows[b]); row++ {
				s.Rows = append(s.Rows, row)
			}
			g.chunk(w, s, kv)
		}
	}
}

// chunk adds what some rows of a head contribute.
func (g *lowGradients) chunk(w *lowWorker, s attention.Rows, kv int) {
	d, dv := g.cfg.HeadDim, g.cfg.ValueDim()
	scale := g.cfg.ScaleValue()
	w.scores(s)
	rows := w.rows[:len(s.Rows)]
	slopes, lse := make([][]float32, len(rows)), make([]float32, len(rows))
	dO, dS, o := make([][]float32, len(rows)), make([][]float32, len(rows)), make([][]float32, len(rows))
	noise := make([][]float64, len(rows)) // of dS; nil: none
	sizeQ, sizeDO := make([]size, len(rows)), make([]size, len(rows))
	deltaError := make([]float64, len(rows)) // of delta, in 16-bit types
	if g.sloped() {                          // the derivative takes the products
		w.eachRun(rows, s.B, kv, false, func(r *lowRow, i int, scores, keys []float32) {
			from := len(slopes[i])
			slopes[i] = append(slopes[i], scores...)
			products := slopes[i][from:]
			dots(products, r.q, keys)
			for c := range products {
				products[c] *= scale
			}
		})
		for i, row := range s.Rows {
			w.atRow(&rows[i], s.B, s.H, row)
			w.slopes(slopes[i])
		}
	}
	for i, row := range s.Rows {
		lse[i] = rows[i].softmax(w.sink(s.H), w.round)
		dS[i] = make([]float32, 0, len(rows[i].scores))
		if !rows[i].skip {
			batch, at := w.queryRow(s.B, row)
			dO[i], o[i] = make([]float32, dv), make([]float32, dv)
			g.dO.ReadRow(dO[i], batch, s.H, at)
			sizeQ[i], sizeDO[i] = sizeOf(rows[i].q), sizeOf(dO[i])
		}
	}
	w.eachRun(rows, s.B, kv, true, func(r *lowRow, i int, weights, values []float32) {
		from := len(dS[i])
		dS[i] = dS[i][:from+len(weights)]
		dots(dS[i][from:], dO[i], values)
		for c, p := range weights {
			key := int(w.key(r.entries[from+c]))
			keep, dP, dropped := w.keep(s.B, s.H, s.Rows[i], key), w.round(dS[i][from+c]), p
			switch {
			case keep == 0:
				dP, dropped = 0, 0
			case keep != 1:
				dP, dropped = w.round(dP*keep), w.round(p*keep)
			}
			dS[i][from+c] = dP
			addTimes(o[i], dropped, values[c*dv:][:dv])
			addTimes(rowOf(g, g.DV, s.B, kv, key, dv), dropped, dO[i])
			if g.drawsV != nil && !roundsToOne(p) {
				g.drawsV[g.keyRow(s.B, kv, key)].round(g.cfg.DType, dropped, 1, sizeDO[i])
			}
			if e := w.scoreError(r); g.noisy && e > leastNoise {
				addSizes(rowOf(g, g.Noise.DV, s.B, kv, key, dv), e*float64(keep*p*(1-p)), dO[i])
			}
		}
	})
	for i, row := range s.Rows {
		if !rows[i].skip {
			var delta float32
			delta, deltaError[i] = w.delta(dO[i], o[i]) // no error in float32, which rounds nothing here
			noise[i] = g.gradients(w, &rows[i], dS[i], slopes[i], lse[i], delta, deltaError[i], s.B, s.H, row)
		}
	}
	at, meanKey := make([]int, len(rows)), make([][]float64, len(rows)) // meanKey: Σ P K, with slopes
	w.eachRun(rows, s.B, kv, false, func(r *lowRow, i int, weights, keys []float32) {
		if meanKey[i] == nil {
			meanKey[i] = make([]float64, d)
		}
		for c, p := range weights {
			x, key, row := scale*dS[i][at[i]], int(w.key(r.entries[at[i]])), g.row(s.B, s.H, s.Rows[i])*d
			addTimes(g.DQ[row:][:d], x, keys[c*d:][:d])
			addTimes(rowOf(g, g.DK, s.B, kv, key, d), x, r.q)
			if noise[i] != nil {
				e := math.Abs(float64(scale)) * noise[i][at[i]]
				addSizes(g.Noise.DQ[row:][:d], e, keys[c*d:][:d])
				addSizes(rowOf(g, g.Noise.DK, s.B, kv, key, d), e, r.q)
			}
			if g.drawsK != nil {
				g.drawsQ[row/d].round(g.cfg.DType, dS[i][at[i]], scale, sizeOf(keys[c*d:][:d]))
				g.drawsK[g.keyRow(s.B, kv, key)].round(g.cfg.DType, dS[i][at[i]], scale, sizeQ[i])
			}
			if deltaError[i] != 0 && p != 0 {
				p := float64(p)
				if slopes[i] != nil {
					p *= float64(slopes[i][at[i]])
				}
				for j, k := range keys[c*d:][:d] {
					meanKey[i][j] += p * float64(k)
				}
				e := float64(scale) * deltaError[i] * p
				g.drawsK[g.keyRow(s.B, kv, key)].move(e/2, sizeQ[i])
				for j, q := range r.q {
					rowOf(g, g.Noise.DK, s.B, kv, key, d)[j] += e * e * float64(q) * float64(q)
				}
			}
			at[i]++
		}
	})
	for i, mean := range meanKey {
		if deltaError[i] == 0 {
			continue
		}
		row := g.row(s.B, s.H, s.Rows[i])
		g.drawsQ[row].moveDelta(float64(scale)*deltaError[i], mean)
		copy(g.Noise.DQ[row*d:], mean)
	}
}

// gradients turns dP of a row into dS, and adds to dBias and dSinks. It returns the noise of
// dS in float32, or nil if there is none.
func (g *lowGradients) gradients(w *lowWorker, r *lowRow, dS, slopes []float32, lse, delta float32, deltaError float64, b, h, row int) (noise []float64) {
	var dLSE [1]float32
	if g.dLSEGiven {
		batch, at := w.queryRow(b, row)
		g.dLSE.ReadRow(dLSE[:], batch, h, at)
	}
	e := w.scoreError(r)
	if e <= leastNoise {
		e = 0
	}
	var spread float64 // of delta, for scores that are off by 1
	if g.noisy {
		noise = make([]float64, len(dS))
		var most, squares float64 // the largest |dP|, and the sum of P²
		for c, p := range r.scores {
			if p != 0 {
				spread += float64(p) * math.Abs(float64(dS[c]-delta))
				most, squares = max(most, math.Abs(float64(dS[c]))), squares+float64(p)*float64(p)
			}
		}
		dP := math.Ldexp(most, -24) * math.Sqrt(float64(g.cfg.ValueDim())*squares) / 2
		for c, p := range r.scores {
			if p != 0 {
				noise[c] = float64(p) * (e*(float64(1-p)*math.Abs(float64(dS[c]-delta+dLSE[0]))+spread) + dP)
			}
		}
	}
	for c, p := range r.scores {
		if p == 0 {
			dS[c] = 0
		} else {
			dS[c] = w.round(p * (dS[c] - delta + dLSE[0]))
		}
	}
	if g.DBias != nil {
		n := g.biasSizes
		first := ((b%n[0]*n[1]+h%n[1])*n[2] + row%n[2]) * g.a.Sk
		for c, x := range dS {
			g.DBias[first+int(w.key(r.entries[c]))] += x
		}
		for c, x := range noise {
			g.Noise.DBias[first+int(w.key(r.entries[c]))] += x
		}
		if deltaError != 0 {
			for c, p := range r.scores {
				e := deltaError * float64(p)
				g.Noise.DBias[first+int(w.key(r.entries[c]))] += e * e
			}
		}
	}
	if g.DSinks != nil {
		if p := float32(math.Exp(float64(w.sink(h) - lse))); p != 0 {
			g.DSinks[h] -= p * (delta - dLSE[0])
			if deltaError != 0 {
				e := deltaError * float64(p)
				g.Noise.DSinks[h] += e * e
			}
			if noise != nil {
				g.Noise.DSinks[h] += e * float64(p) * (float64(1-p)*math.Abs(float64(delta-dLSE[0])) + spread)
			}
		}
	}
	for c, slope := range slopes {
		dS[c] = w.round(dS[c] * slope)
		if noise != nil {
			noise[c] *= float64(slope)
		}
	}
	return noise
}

// row is the number of a row in dQ, and keyRow that of a key in dK and dV.
func (g *lowGradients) row(b, h, row int) int     { return (b*g.a.Hq+h)*g.a.Sq + row }
func (g *lowGradients) keyRow(b, kv, key int) int { return (b*g.a.KVHeads()+kv)*g.a.Sk + key }

// rowOf is the row of a key in dK or dV, or their noise.
func rowOf[T float32 | float64](g *lowGradients, x []T, b, kv, key, dim int) []T {
	return x[g.keyRow(b, kv, key)*dim:][:dim]
}

// rowErrors is what rounding makes likely in the rows of a gradient.
func (g *lowGradients) rowErrors(list []draws, low []float32, dim int) []RowError {
	if list == nil {
		return nil
	}
	rows := make([]RowError, len(list))
	for i, d := range list {
		rows[i] = d.row(g.cfg.GradientType(), low[i*dim:][:dim])
	}
	return rows
}

// addTimes adds x times src to dst. A factor of 0 adds nothing, whatever src holds.
func addTimes(dst []float32, x float32, src []float32) {
	if x == 0 {
		return
	}
	for i, y := range src {
		dst[i] += x * y
	}
}

// addSizes adds x times the magnitudes of src to dst.
func addSizes(dst []float64, x float64, src []float32) {
	if x == 0 {
		return
	}
	for i, y := range src {
		dst[i] += x * math.Abs(float64(y))
	}
}
