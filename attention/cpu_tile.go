package attention

import "math"

// cpuWorker computes blocks of query rows in its own scratch memory, by the
// online softmax: for each block of keys, the scores, the new row maximum, the
// old sums rescaled to it, and the weighted values added.
type cpuWorker struct {
	cfg   Config
	a     Args
	views views
	scale float32

	q       []float32 // [rows][HeadDim]
	k, v    []float32 // [cpuKeys][HeadDim], [cpuKeys][HeadDimV]
	scores  []float32 // [rows][cpuKeys], then the weights
	o       []float32 // [rows][HeadDimV], not yet divided by sum
	most    []float32 // [rows] maximum score so far
	sum     []float32 // [rows] of e^(score - most)
	visible []int     // [rows] keys the row attends to
}

func newCPUWorker(cfg Config, a Args, v views, rows int) *cpuWorker {
	d, dv := cfg.HeadDim, cfg.ValueDim()
	keys := min(cpuKeys, a.Sk)
	return &cpuWorker{
		cfg: cfg, a: a, views: v, scale: cfg.ScaleValue(),
		q: make([]float32, rows*d),
		k: make([]float32, keys*d), v: make([]float32, keys*dv),
		scores: make([]float32, rows*cpuKeys),
		o:      make([]float32, rows*dv),
		most:   make([]float32, rows), sum: make([]float32, rows),
		visible: make([]int, rows),
	}
}

// place is the query row and head of row r of (b, kv): heads of the group run
// fastest, so that a block spans few positions and wastes little on the mask.
func (w *cpuWorker) place(kv int, r int64) (h, row int) {
	group := int64(w.a.Group())
	return kv*int(group) + int(r%group), int(r / group)
}

// run computes rows [first, first+n) of batch b and key head kv.
func (w *cpuWorker) run(b, kv int, first, n int64) {
	d, rows := w.cfg.HeadDim, int(n)
	keys := 0 // any row of the block attends to
	for r := range rows {
		h, row := w.place(kv, first+int64(r))
		w.views.q.ReadRow(w.q[r*d:], b, h, row)
		w.visible[r] = w.cfg.Causal.Visible(row, w.a.Sq, w.a.Sk)
		keys = max(keys, w.visible[r])
		w.most[r], w.sum[r] = float32(math.Inf(-1)), 0
	}
	clear(w.o)
	for key := 0; key < keys; key += cpuKeys {
		cols := min(cpuKeys, keys-key)
		w.views.k.ReadRows(w.k, b, kv, key, cols)
		w.views.v.ReadRows(w.v, b, kv, key, cols)
		w.score(rows, cols)
		for r := range rows {
			w.absorb(r, min(cols, w.visible[r]-key))
		}
	}
	for r := range rows {
		h, row := w.place(kv, first+int64(r))
		w.finish(r, b, h, row)
	}
}

// score computes Q Kᵀ of the block. At an odd edge the last row or key takes
// part twice. Masked slots get scores too; nothing reads them.
func (w *cpuWorker) score(rows, cols int) {
	d := w.cfg.HeadDim
	for r := 0; r < rows; r += 2 {
		t := min(r+1, rows-1)
		q0, q1 := w.q[r*d:][:d], w.q[t*d:][:d]
		s0, s1 := w.scores[r*cpuKeys:][:cols], w.scores[t*cpuKeys:][:cols]
		for c := 0; c < cols; c += 2 {
			e := min(c+1, cols-1)
			s0[c], s0[e], s1[c], s1[e] = dot2x2(q0, q1, w.k[c*d:][:d], w.k[e*d:][:d])
		}
	}
}

// absorb adds the first n keys of the block to row r.
func (w *cpuWorker) absorb(r, n int) {
	if n <= 0 {
		return
	}
	dv := w.cfg.ValueDim()
	o := w.o[r*dv:][:dv]
	s := w.scores[r*cpuKeys:][:n]
	most := w.most[r]
	for i, x := range s {
		x *= w.scale
		s[i] = x
		if x > most {
			most = x
		}
	}
	if math.IsInf(float64(most), -1) && !anyNaN(s) {
		return // nothing but -Inf so far
	}
	if most != w.most[r] {
		c := expf(w.most[r] - most)
		w.sum[r] *= c
		scaleRow(o, c)
		w.most[r] = most
	}
	var sum float32
	for i, x := range s {
		x = expf(x - most)
		s[i] = x
		sum += x
	}
	w.sum[r] += sum
	accumulate(o, s, w.v)
}

func anyNaN(s []float32) bool {
	for _, x := range s {
		if x != x {
			return true
		}
	}
	return false
}

// finish divides row r by its sum and stores it.
func (w *cpuWorker) finish(r, b, h, row int) {
	dv := w.cfg.ValueDim()
	o := w.o[r*dv:][:dv]
	lse := float32(math.Inf(-1))
	if sum := w.sum[r]; sum != 0 { // NaN is not 0
		for i := range o {
			o[i] /= sum
		}
		lse = w.most[r] + float32(math.Log(float64(sum)))
	}
	w.views.o.WriteRow(o, b, h, row)
	w.views.putLSE(&w.a, b, h, row, lse)
}
