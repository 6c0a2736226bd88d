package accuracy

import (
	"math"
	"runtime"
	"slices"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/par"
)

// Low computes rows of a call by plain attention in the storage type, as a
// chain of separate operations would, each rounding what it stores:
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
// rounds what it stores. Quantized K and V are dequantized and
// rounded to the storage type first. Slots that a row does not attend to are left out. A
// sparse token that is listed twice counts twice. The sample must not have rows past the
// end of their sequence.
//
// Low returns O packed [rows, HeadDimV] and LSE [rows], in the order of the
// sample; a.O and a.LSE may be zero. Tensors must lie in host memory.
func Low(cfg attention.Config, a attention.Args, sample []attention.Rows) (o, lse []float32, err error) {
	if err := attention.CheckSample(cfg, a, sample); err != nil {
		return nil, nil, err
	}
	if err := room("Low", cfg, a, attention.CountRows(sample), 4); err != nil {
		return nil, nil, err
	}
	n, dv := attention.CountRows(sample), cfg.ValueDim()
	o, lse = make([]float32, n*dv), make([]float32, n)
	err = eachLow(cfg, a, sample, func(w *lowWorker, s attention.Rows, at int) {
		w.scores(s)
		w.weigh(s, o[at*dv:][:len(s.Rows)*dv], lse[at:])
	})
	return o, lse, err
}

// eachLow cuts a sample into chunks of rows of one head and visits them, many at a time.
// at is the number of rows before the chunk.
func eachLow(cfg attention.Config, a attention.Args, sample []attention.Rows, visit func(w *lowWorker, s attention.Rows, at int)) error {
	c, err := openCall(cfg, a)
	if err != nil {
		return err
	}
	lengths := make([]int, len(sample))
	for i, s := range sample {
		lengths[i] = len(s.Rows)
	}
	block := max(1, min(lowRows(&a), attention.CountRows(sample)/(4*runtime.GOMAXPROCS(0))))
	pieces := par.Pieces(lengths, block)
	par.Each(int64(len(pieces)), func() func(int64) {
		w := c.lowWorker(block)
		return func(i int64) {
			p := pieces[i]
			s := sample[p.List]
			s.Rows = s.Rows[p.Lo:p.Hi]
			visit(w, s, p.At)
		}
	})
	return nil
}

// lowRows is the most rows of a chunk: they share the conversion of K and V, and their
// scores stay within 32 MiB.
func lowRows(a *attention.Args) int {
	return max(1, min(64, (8<<20)/max(mostKeys(a), 1)))
}

// mostKeys is the most keys that a row attends to.
func mostKeys(a *attention.Args) int {
	if a.SparseTokens != nil {
		return max(a.Sk, a.SparseTokens.Total)
	}
	return a.Sk
}

// rounding is rounding to a storage type and back.
func rounding(t attention.DType) func(float32) float32 {
	switch t {
	case attention.F16:
		return func(f float32) float32 { return half.F16ToFloat32(half.F16FromFloat32(f)) }
	case attention.BF16:
		return func(f float32) float32 { return half.BF16ToFloat32(half.BF16FromFloat32(f)) }
	}
	return func(f float32) float32 { return f }
}

const maxF16 = 65504

const lowKeys = 64 // keys widened at once

// lowWorker computes chunks of rows of one head in its own scratch memory. It goes over
// the keys in tiles and widens each key of a tile once for all rows.
type lowWorker struct {
	*scorer
	rows []lowRow
	list []int32   // sparse tokens of the head; nil: entry i is key i
	wide []float32 // [lowKeys][larger dim]: K or V of the tile's entries
	have [lowKeys]bool
}

// lowRow is a query row of a chunk.
type lowRow struct {
	q       []float32 // [HeadDim]
	entries []int32   // the row attends to these entries of the head's keys, ascending
	scores  []float32 // of the entries, then their weights
	next    int       // first entry that no tile has reached
	most    float64   // largest finite magnitude of a scaled product
	skip    bool      // there is no weighted sum
}

func (c *call) lowWorker(rows int) *lowWorker {
	d := c.cfg.HeadDim
	w := &lowWorker{scorer: c.scorer(), rows: make([]lowRow, rows), wide: make([]float32, lowKeys*max(d, c.cfg.ValueDim()))}
	for i := range w.rows {
		w.rows[i].q = make([]float32, d)
	}
	return w
}

// scores computes the rounded scores of a chunk.
func (w *lowWorker) scores(s attention.Rows) {
	kv := s.H / w.a.Group()
	if w.lists != nil {
		w.list = w.lists[s.B*w.a.KVHeads()+kv]
	}
	rows := w.rows[:len(s.Rows)]
	for i, row := range s.Rows {
		r := &rows[i]
		batch, at := w.queryRow(s.B, row)
		w.q.ReadRow(r.q, batch, s.H, at)
		r.entries = w.visible(r.entries[:0], s.B, s.H, row)
		r.scores = slices.Grow(r.scores[:0], len(r.entries))[:len(r.entries)]
		r.most, r.skip = 0, false
	}
	w.eachRun(rows, s.B, kv, false, func(r *lowRow, _ int, scores, keys []float32) {
		dots(scores, r.q, keys)
	})
	scale := w.cfg.ScaleValue()
	for i, row := range s.Rows {
		r := &rows[i]
		for j, x := range r.scores {
			x *= scale
			if size := math.Abs(float64(x)); !math.IsInf(size, 0) {
				r.most = max(r.most, size)
			}
			r.scores[j] = x
		}
		w.atRow(r, s.B, s.H, row)
		w.store(r.scores)
	}
}

// atRow names the slots of a row to the scorer.
func (w *lowWorker) atRow(r *lowRow, b, h, row int) {
	for i, keys := 0, w.at(b, h, row, len(r.entries)); i < len(keys); i++ {
		keys[i] = int(w.key(r.entries[i]))
	}
}

// weigh turns the scores of a chunk into O and LSE.
func (w *lowWorker) weigh(s attention.Rows, o, lse []float32) {
	dv := w.cfg.ValueDim()
	rows := w.rows[:len(s.Rows)]
	for i := range rows {
		lse[i] = rows[i].softmax(w.sink(s.H), w.round)
		if w.cfg.Dropout != 0 {
			w.drop(&rows[i], s.B, s.H, s.Rows[i])
		}
	}
	clear(o)
	w.eachRun(rows, s.B, s.H/w.a.Group(), true, func(_ *lowRow, i int, weights, values []float32) {
		out := o[i*dv:][:dv]
		for c, p := range weights {
			for j, x := range values[c*dv:][:dv] {
				out[j] += p * x
			}
		}
	})
	for i, x := range o {
		o[i] = w.round(x)
	}
}

// drop applies dropout to the weights of a row and rounds them again.
func (w *lowWorker) drop(r *lowRow, b, h, row int) {
	for i, p := range r.scores {
		r.scores[i] = w.round(p * w.keep(b, h, row, int(w.key(r.entries[i]))))
	}
}

// eachRun goes over the keys of the rows in tiles. It visits each row's runs of
// consecutive entries with their scores and the widened rows
// of K or V. It leaves rows to skip out.
func (w *lowWorker) eachRun(rows []lowRow, b, kv int, value bool, visit func(r *lowRow, i int, scores, wide []float32)) {
	dim, end := w.cfg.HeadDim, 0
	if value {
		dim = w.cfg.ValueDim()
	}
	for i := range rows {
		rows[i].next = 0
		if n := len(rows[i].entries); n > 0 {
			end = max(end, int(rows[i].entries[n-1])+1)
		}
	}
	for tile := 0; tile < end; tile += lowKeys {
		w.have = [lowKeys]bool{}
		for i := range rows {
			r := &rows[i]
			for !r.skip && r.next < len(r.entries) && int(r.entries[r.next]) < tile+lowKeys {
				from, first := r.next, int(r.entries[r.next])-tile
				for n := first; n < lowKeys && r.next < len(r.entries) && int(r.entries[r.next])-tile == n; n++ {
					if !w.have[n] {
						w.have[n] = true
						w.readKey(w.wide[n*dim:], value, b, kv, int(w.key(int32(tile+n))))
					}
					r.next++
				}
				visit(r, i, r.scores[from:r.next], w.wide[first*dim:][:(r.next-from)*dim])
			}
		}
	}
}

// key returns the key of an entry.
func (w *lowWorker) key(entry int32) int32 {
	if w.list != nil {
		return w.list[entry]
	}
	return entry
}

// dots sets s to the products of q with the rows of k. Four keys go together, for speed;
// each sum runs in order.
func dots(s, q, k []float32) {
	d, last := len(q), len(s)-1
	for c := 0; c <= last; c += 4 {
		c1, c2, c3 := min(c+1, last), min(c+2, last), min(c+3, last)
		k0, k1, k2, k3 := k[c*d:][:d], k[c1*d:][:d], k[c2*d:][:d], k[c3*d:][:d]
		var s0, s1, s2, s3 float32
		for i, x := range q {
			s0 += x * k0[i]
			s1 += x * k1[i]
			s2 += x * k2[i]
			s3 += x * k3[i]
		}
		s[c], s[c1], s[c2], s[c3] = s0, s1, s2, s3
	}
}

// stored rounds a score.
func (c *call) stored(s float32) float32 {
	if c.cfg.DType == attention.F16 && !math.IsInf(float64(s), 0) {
		s = max(min(s, maxF16), -maxF16) // both keep NaN
	}
	return c.round(s)
}

// softmax turns the scores into rounded weights and returns their logsumexp, in which a
// sink (-Inf: none) is one more term.
func (r *lowRow) softmax(sink float32, round func(float32) float32) (lse float32) {
	most := sink
	for _, x := range r.scores {
		most = max(most, x)
	}
	if math.IsInf(float64(most), -1) {
		r.skip = true // nothing to attend to
		return most
	}
	sum := float32(math.Exp(float64(sink - most)))
	for i, x := range r.scores {
		r.scores[i] = float32(math.Exp(float64(x - most)))
		sum += r.scores[i]
	}
	for i := range r.scores {
		r.scores[i] = round(r.scores[i] / sum)
	}
	return most + float32(math.Log(float64(sum)))
}
