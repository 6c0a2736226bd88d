package attention

import (
	"math"
	"slices"
	"sort"

	"vkattn/attention/internal/par"
	"vkattn/vk/hostmem"
)

// forwardFeaturesCPU computes a call with features in host memory. CheckArgs has
// accepted a.
//
// The unit of work is one row of the query heads that attend to the same keys: a
// group's, or one. Its keys are gathered in blocks of cpuKeys and go through the
// block kernels of the plain pass, so that a row that sees the first keys of a
// sequence and nothing else has the plain pass's bits.
func forwardFeaturesCPU(cfg Config, a Args) error {
	if err := checkHost("Forward", a.sequenceBytes(), hostmem.Product(a.rowBytes(&cfg, 0, 4), workers(uint64(a.Rows())))); err != nil {
		return err
	}
	var call hostCall
	if err := call.open(&cfg, &a); err != nil {
		return err
	}
	// Outputs as packed as the tensors are.
	placed := a
	placed.B, placed.Sq = a.rowPlaces()
	o, err := ViewHost(a.O, cfg.DType, placed.Hq, placed.Sq, cfg.ValueDim())
	if err != nil {
		return err
	}
	out := views{o: o}
	if a.hasLSE() {
		out.lse = a.LSE.Host[a.LSE.Offset*int64(F32.Size()):]
	}
	heads := 1
	if call.headsAlike() {
		heads = a.Group()
	}
	perRow := int64(a.Hq / heads)
	ends := make([]int64, a.B) // units up to and with each sequence
	var units int64
	for b, s := range call.sequences {
		units += int64(s.Rows) * perRow
		ends[b] = units
	}
	par.Each(units, func() func(int64) {
		w := newCPUFeatures(&call, placed, out, heads)
		return func(unit int64) {
			b := sort.Search(len(ends), func(i int) bool { return ends[i] > unit })
			rows := int64(call.sequences[b].Rows)
			// Rows of one head in turn, so that its K and V stay in cache; last rows
			// first, for under a causal mask they take longest.
			at := ends[b] - 1 - unit
			w.row(b, int(at/rows)*heads, int(at%rows))
		}
	})
	return nil
}

// cpuFeatures computes rows of a few heads. The tile keeps a block of keys and the
// rows' sums; its scale is 1, since scores reach it finished.
type cpuFeatures struct {
	tile   *cpuWorker
	call   *hostCall
	heads  int
	factor float32 // on Q Kᵀ
	keys   []int   // the row attends to
	k, v   *keyRows[float32]
	kBlock []float32 // where a block's keys do not follow each other
	vBlock []float32
	bias   [cpuKeys]float32
}

func newCPUFeatures(call *hostCall, placed Args, out views, heads int) *cpuFeatures {
	cfg := *call.cfg
	placed.Sk = cpuKeys // of a block
	tile := newCPUWorker(cfg, placed, out, heads)
	tile.scale = 1
	keys, reuse := call.a.Sk, call.a.Sq > 1 || heads < call.a.Group()
	return &cpuFeatures{
		tile: tile, call: call, heads: heads, factor: cfg.ScaleValue(),
		k:      newKeyRows(keys, cfg.HeadDim, reuse, call.reader(&call.k)),
		v:      newKeyRows(keys, cfg.ValueDim(), reuse, call.reader(&call.v)),
		kBlock: tile.k, vBlock: tile.v,
	}
}

// row computes a row of heads [first, first+w.heads).
func (w *cpuFeatures) row(b, first, row int) {
	cfg, kv := w.call.cfg, first/w.call.a.Group()
	d := cfg.HeadDim
	batch, at := w.call.placeRow(b, row)
	for r := range w.heads {
		w.call.q.ReadRow(w.tile.q[r*d:], batch, first+r, at)
		w.tile.most[r], w.tile.sum[r] = float32(math.Inf(-1)), 0
	}
	clear(w.tile.o)
	w.keys = w.call.visible(w.keys[:0], b, first, row)
	for keys := range slices.Chunk(w.keys, cpuKeys) {
		w.tile.k = gather(w.kBlock, w.k, b, kv, keys)
		w.tile.v = gather(w.vBlock, w.v, b, kv, keys)
		w.tile.score(w.heads, len(keys))
		for r := range w.heads {
			w.modify(w.tile.scores[r*cpuKeys:][:len(keys)], b, first+r, row, keys)
			w.tile.absorb(r, len(keys))
		}
	}
	for r := range w.heads {
		if x, ok := w.call.sink(first + r); ok {
			w.absorbSink(r, x)
		}
		w.tile.finish(r, batch, first+r, at)
	}
}

// gather is the rows of a block of keys, copied together where they do not follow
// each other.
func gather(block []float32, rows *keyRows[float32], b, kv int, keys []int) []float32 {
	if n := runOf(keys); n == len(keys) {
		return rows.run(b, kv, keys[0], n)
	}
	for i := 0; i < len(keys); {
		n := runOf(keys[i:])
		copy(block[i*rows.dim:], rows.run(b, kv, keys[i], n))
		i += n
	}
	return block
}

// reader reads the elements of a key's row in float32.
func (h *hostCall) reader(v *kvView) func(dst []float32, b, kv, key int) {
	return func(dst []float32, b, kv, key int) {
		batch, at := h.placeKey(b, key)
		if scale := v.read(dst, batch, kv, at); scale != 1 {
			scaleRow(dst, scale)
		}
	}
}

// modify makes products scores. Conversions keep compilers from fusing.
func (w *cpuFeatures) modify(s []float32, b, h, row int, keys []int) {
	for i, x := range s {
		s[i] = float32(x * w.factor)
	}
	if limit := w.call.cfg.Softcap; limit != 0 {
		for i, x := range s {
			s[i] = float32(limit * float32(math.Tanh(float64(x/limit))))
		}
	}
	if w.call.a.Bias != nil {
		bias := w.bias[:len(keys)]
		w.call.readBias(bias, b, h, row, keys)
		for i, x := range bias {
			s[i] += x
		}
	}
	if w.call.a.ALiBi.Given() {
		slope, at := w.call.slope(h), w.call.position(b, row)
		for i, key := range keys {
			distance := at - int64(key)
			s[i] -= float32(slope * float32(max(distance, -distance)))
		}
	}
}

// absorbSink adds a row's sink, a score without a value, after its keys.
func (w *cpuFeatures) absorbSink(r int, x float32) {
	if math.IsInf(float64(x), -1) {
		return
	}
	if x > w.tile.most[r] {
		c := expf(w.tile.most[r] - x)
		w.tile.sum[r] *= c
		dv := w.call.cfg.ValueDim()
		scaleRow(w.tile.o[r*dv:][:dv], c)
		w.tile.most[r] = x
	}
	w.tile.sum[r] += expf(x - w.tile.most[r])
}
