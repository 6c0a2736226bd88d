package merge

import (
	"math"

	"vkattn/internal/half"
	"vkattn/internal/par"
)

// The merge of tier cpu: workers take blocks of rows in host memory.

// mergeBlock is how many rows a worker takes at once.
const mergeBlock = 64

// mergeLeast: a state whose LSE is farther below the row's largest has weight 0, for the
// reason that shaders/merge.comp gives.
const mergeLeast = -80

// mergeCPU computes a call in host memory. Merge.check has accepted it.
func mergeCPU(cfg MergeConfig, l *mergeLayouts) {
	out := &l.list[mergeO]
	j := mergeJob{mergeLayouts: *l, cfg: cfg, rows: out.Counts[0] * out.Counts[1] * out.Counts[2]}
	par.Each((j.rows+mergeBlock-1)/mergeBlock, func() func(int64) {
		w := mergeWorker{mergeJob: &j, row: make([]float32, cfg.HeadDim), sum: make([]float32, cfg.HeadDim),
			lse: make([]float32, l.list[mergeFirst].states+l.list[mergeSecond].states)}
		return func(block int64) {
			for row := block * mergeBlock; row < min(j.rows, (block+1)*mergeBlock); row++ {
				w.merge(row)
			}
		}
	})
}

// mergeJob is shared by the workers of a merge.
type mergeJob struct {
	mergeLayouts
	cfg  MergeConfig
	rows int64 // rows of all heads and batches
}

// mergeWorker merges rows in its own scratch memory.
type mergeWorker struct {
	*mergeJob
	row, sum []float32 // [HeadDim]: O of a state, and of the result
	lse      []float32 // of the row in every state
}

// merge computes one row. It reads the whole row before it writes, because the result may
// share memory with a state.
func (w *mergeWorker) merge(row int64) {
	most, attended, invalid := w.readLSE(row)
	clear(w.sum)
	lse := float32(math.Inf(-1))
	switch {
	case invalid:
		lse = float32(math.NaN())
		for i := range w.sum {
			w.sum[i] = lse
		}
	case attended:
		var total float32
		for _, x := range w.lse {
			total += mergeWeight(x, most)
		}
		for i, x := range w.lse {
			weight := mergeWeight(x, most) / total
			if weight == 0 {
				continue // its O may hold anything
			}
			o, state := w.locate(i, mergeFirst, mergeSecond)
			w.cfg.stateType().Decode(w.row, o.hostRow(state, row))
			for d, x := range w.row {
				w.sum[d] += float32(weight * x) // the conversion keeps the compiler from fusing, so that two states commute
			}
		}
		lse = most + float32(math.Log(float64(total)))
	}
	w.cfg.DType.Encode(w.list[mergeO].hostRow(0, row), w.sum)
	if out := &w.list[mergeLSE]; out.states != 0 {
		w.lse[0] = lse // its old value is no longer needed
		half.EncodeF32(out.hostRow(0, row), w.lse[:1])
	}
}

// readLSE reads the row's LSE in every state and finds the largest among states that
// attended to a key. invalid reports an LSE of NaN or +Inf.
func (w *mergeWorker) readLSE(row int64) (most float32, attended, invalid bool) {
	most = float32(math.Inf(-1))
	for i := range w.lse {
		t, state := w.locate(i, mergeFirstLSE, mergeSecondLSE)
		half.DecodeF32(w.lse[i:i+1], t.hostRow(state, row))
		x := w.lse[i]
		invalid = invalid || x != x || x > math.MaxFloat32
		most = max(most, x)
	}
	return most, most >= -math.MaxFloat32, invalid
}

// locate returns the tensor of a state and the state's index in it.
func (w *mergeWorker) locate(state, first, second int) (*stack, int64) {
	n := w.list[first].states
	if i := int64(state); i < n {
		return &w.list[first], i
	}
	return &w.list[second], int64(state) - n
}

// mergeWeight is e^(lse - most), 0 if lse is more than -mergeLeast below most.
func mergeWeight(lse, most float32) float32 {
	if d := lse - most; d >= mergeLeast { // false for -Inf
		return float32(math.Exp(float64(d)))
	}
	return 0
}

// HostRow returns the memory of a row, counted over all heads and batches.
func (t *stack) hostRow(state, row int64) []byte {
	seq, head, batch := row%t.Counts[2], row/t.Counts[2]%t.Counts[1], row/t.Counts[2]/t.Counts[1]
	e := t.Tensor.Offset + state*t.step + batch*t.Steps[0] + head*t.Steps[1] + seq*t.Steps[2]
	return t.Tensor.Host[e*t.Size:][:t.Dim*t.Size]
}
