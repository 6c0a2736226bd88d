package attention

import (
	"runtime"

	"vkattn/attention/half"
	"vkattn/attention/internal/par"
)

// Blocks of the CPU forward pass. Queries, keys, values, scores and sums of a
// block take about 150 KiB at head dimension 128, within a core's L2. The rows
// of a block only share the work of widening K and V; they change no bit.
// Changing cpuKeys does: it is where sums are rescaled.
const (
	cpuRows = 64
	cpuKeys = 64
)

// forwardCPU computes a call in host memory. CheckArgs has accepted a.
//
// The unit of work is a block of query rows of one (batch, key head): all query
// heads of the group together, so that grouped queries widen K and V once.
func forwardCPU(cfg Config, a Args) error {
	if a.featured(&cfg) || cfg.modifies() {
		return forwardFeaturesCPU(cfg, a)
	}
	views, err := a.hostViews(cfg)
	if err != nil {
		return err
	}
	group := a.Group()
	rows := int64(a.Sq) * int64(group) // of one (batch, key head)
	pairs := int64(a.B) * int64(a.KVHeads())
	block := cpuBlockRows(rows, pairs)
	blocks := (rows + block - 1) / block
	par.Each(pairs*blocks, func() func(int64) {
		w := newCPUWorker(cfg, a, views, int(block))
		return func(unit int64) {
			// Blocks of one pair in turn, so that its K and V stay in cache;
			// last rows first, for under a causal mask they take longest.
			pair, i := unit/blocks, blocks-1-unit%blocks
			kv := int64(a.KVHeads())
			w.run(int(pair/kv), int(pair%kv), i*block, min(block, rows-i*block))
		}
	})
	return nil
}

// cpuBlockRows is the largest block that still leaves every CPU several, but no
// smaller than 8: with fewer rows a block spends its time widening K and V
// (decoding 4 heads a key head was 3 times slower in blocks of one row).
func cpuBlockRows(rows, pairs int64) int64 {
	const perCPU, least = 4, 8
	want := int64(runtime.GOMAXPROCS(0)) * perCPU
	perPair := (want + pairs - 1) / pairs
	return min(max((rows+perPair-1)/perPair, least), cpuRows, rows)
}

// views are the host tensors of a call.
type views struct {
	q, k, v, o HostView
	lse        []byte // from element 0 on; nil: not wanted
}

func (a Args) hostViews(cfg Config) (v views, err error) {
	if v.q, err = ViewHost(a.Q, cfg.DType, a.Hq, a.Sq, cfg.HeadDim); err != nil {
		return v, err
	}
	if v.k, err = ViewHost(a.K, cfg.DType, a.KVHeads(), a.Sk, cfg.HeadDim); err != nil {
		return v, err
	}
	if v.v, err = ViewHost(a.V, cfg.DType, a.KVHeads(), a.Sk, cfg.ValueDim()); err != nil {
		return v, err
	}
	if v.o, err = ViewHost(a.O, cfg.DType, a.Hq, a.Sq, cfg.ValueDim()); err != nil {
		return v, err
	}
	if a.hasLSE() {
		v.lse = a.LSE.Host[a.LSE.Offset*int64(F32.Size()):]
	}
	return v, nil
}

// putLSE writes one logsumexp.
func (v *views) putLSE(a *Args, b, h, row int, lse float32) {
	if v.lse == nil {
		return
	}
	i := (int64(b)*int64(a.Hq)+int64(h))*int64(a.Sq) + int64(row)
	half.EncodeF32(v.lse[i*int64(F32.Size()):], []float32{lse})
}
