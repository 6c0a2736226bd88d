package tests

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/vk"
)

// onOptionTiers is onTiers with one storage type per tier, which turn selects: types differ
// only in how elements are read. If pipelines must be few, the type is f16, and tiers whose
// kernels compile slowly run the property only if matrices is set. At the full level
// properties run in parallel, since each mostly waits for a compiler.
func onOptionTiers(t *testing.T, turn int, matrices bool, property func(t *rapid.T, e *engine, tt cases.Target)) {
	if full() {
		t.Parallel()
	}
	types := map[attention.Tier][]attention.DType{}
	for _, tt := range open(t).available() {
		types[tt.Tier] = append(types[tt.Tier], tt.DType)
	}
	onTiersThat(t, func(tt cases.Target) bool {
		switch of := types[tt.Tier]; {
		case fewPipelines():
			return tt.DType == attention.F16 && (matrices || !slowToCompile(tt))
		case tt.Tier == attention.TierCPU:
			return true
		default:
			return tt.DType == of[turn%len(of)]
		}
	}, property)
}

// compositions are the seeds of the compositions on which properties are tested at the full
// level. Together they have every modifier. They are few, since each is compiled in many
// forms, and none has a head dim that takes a GPU's compiler twenty seconds.
// TestOptionsConformance tests compositions in general.
var compositions = []int{5002, 5004, 5011, 5015, 5029}

// drawOptions draws a problem with options. rows is the approximate number of rows of a
// sequence; at the brief level it also decides the other options.
func drawOptions(t *rapid.T, rows int) cases.Case {
	c := cases.Case{Name: "property", D: 64, Dv: 64, Shape: attention.Shape{Hq: 4, Hkv: 2}, LSE: true, Layout: cases.Packed}
	if !full() {
		if rows > 16 {
			c.Causal, c.ALiBi, c.Sinks = attention.BottomRight, true, true
		}
	} else {
		c = cases.RandomOptions(rapid.SampledFrom(compositions).Draw(t, "composition"))
		c.Name, c.PageSize, c.Prefix, c.FixedSplit, c.KVBlock = "property", 0, 0, 0, 0
		c.PackedQ, c.PackedK, c.LooseQ, c.LooseK = false, false, false, false
	}
	c.Seed = rapid.Uint64Range(1, 1<<32).Draw(t, "seed")
	c.Seqs = nil
	keys := 300
	if fewPipelines() {
		keys = 170 // the reference takes time for each
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "sequences") {
		c.Seqs = append(c.Seqs, cases.Seq{
			ID: i, Rows: rapid.IntRange(max(1, rows/2), rows).Draw(t, "rows"), Keys: rapid.IntRange(1, keys).Draw(t, "keys"),
		})
	}
	return c
}

func drawRows(t *rapid.T, tt cases.Target) int {
	if fewPipelines() && slowToCompile(tt) {
		return 1
	}
	if fewPipelines() {
		return rapid.SampledFrom([]int{1, 40}).Draw(t, "about")
	}
	return rapid.SampledFrom([]int{1, 70}).Draw(t, "about")
}

// result is a computed problem with the rows that were read.
type result struct {
	*cases.Problem
	job    *job
	o, lse []float32
}

// computeOptions runs a problem and reads all of its rows.
func (e *engine) computeOptions(t *rapid.T, c cases.Case, tt cases.Target) result {
	p, err := cases.NewProblem(c, tt.DType)
	require.NoError(t, err)
	r := result{Problem: p, job: &job{Problem: p, cfg: attention.Config(c.Config(tt)), before: p.Image}}
	require.NoError(t, e.run([]*job{r.job}))
	require.NoError(t, p.Trespass(r.job.before, r.job.after))
	r.o, r.lse = p.Gather(r.job.after, p.SampleRows())
	return r
}

// judgeAs judges outputs by the reference of another problem whose rows have the same
// result.
func judgeAs(t *rapid.T, p *cases.Problem, o, lse []float32) {
	var x cases.Truth
	require.NoError(t, x.Expect(p))
	require.Len(t, o, len(x.Ref))
	v := x.Expected.Judge(o, lse)
	require.True(t, v.Pass(), "%v: %v", p, v)
}

// rowsOf returns the outputs of one sequence.
func (r *result) rowsOf(seq int) (o, lse []float32) {
	for b, s := range r.Seqs {
		if b == seq {
			n := s.Rows * r.Hq
			at := 0
			for _, before := range r.Seqs[:b] {
				at += before.Rows * r.Hq
			}
			return r.o[at*r.Dv : (at+n)*r.Dv], r.lse[at : at+n]
		}
	}
	return nil, nil
}

// Paged keys give the bits of contiguous keys if the tiles are the same.
func TestOptionsPropertyPagedIsContiguous(t *testing.T) {
	onOptionTiers(t, 0, true, func(t *rapid.T, e *engine, tt cases.Target) {
		c := drawOptions(t, drawRows(t, tt))
		splits := []int{0, 3}
		if fewPipelines() && slowToCompile(tt) {
			splits = []int{3} // the table has the cases without splits
		}
		c.LooseK, c.LSE, c.FixedSplit = true, true, rapid.SampledFrom(splits).Draw(t, "split")
		whole := e.computeOptions(t, c, tt)
		c.LooseK = false
		c.Sk = whole.Bounds().Sk
		sizes := []int{1, 5, 16, 64, 256}
		if fewPipelines() {
			sizes = []int{5, 16}
		}
		c.PageSize = rapid.SampledFrom(sizes).Draw(t, "page size")
		paged := e.computeOptions(t, c, tt)
		a, err := e.plan(whole.job)
		require.NoError(t, err)
		b, err := e.plan(paged.job)
		require.NoError(t, err)
		if a.Tile != b.Tile {
			judgeAs(t, whole.Problem, paged.o, paged.lse)
			return
		}
		sameBits(t, whole.o, paged.o, "O")
		sameBits(t, whole.lse, paged.lse, "LSE")
	})
}

// With FixedSplit the bits of a sequence do not depend on the batch: they are the same
// alone, in another order, and among sequences of other lengths.
func TestOptionsPropertyFixedSplitIsOfTheSequence(t *testing.T) {
	onOptionTiers(t, 1, true, func(t *rapid.T, e *engine, tt cases.Target) {
		c := drawOptions(t, drawRows(t, tt))
		c.FixedSplit, c.LSE = rapid.SampledFrom([]int{1, 2, 3, 7}).Draw(t, "split"), true
		c.PackedQ, c.LooseK = true, true
		most := 90
		if c.Seqs[0].Rows == 1 && fewPipelines() {
			most = 3
		}
		if fewPipelines() && slowToCompile(tt) || rapid.Bool().Draw(t, "paged") {
			c.PageSize = 16
		}
		batched := e.computeOptions(t, c, tt)
		which := rapid.IntRange(0, len(c.Seqs)-1).Draw(t, "which")
		o, lse := batched.rowsOf(which)
		company := c
		company.Seqs = nil
		for i := range rapid.IntRange(0, 5).Draw(t, "others") {
			company.Seqs = append(company.Seqs, cases.Seq{
				ID: 10 + i, Rows: rapid.IntRange(0, most).Draw(t, "other rows"), Keys: rapid.IntRange(0, 1500).Draw(t, "other keys"),
			})
		}
		at := rapid.IntRange(0, len(company.Seqs)).Draw(t, "at")
		company.Seqs = append(company.Seqs[:at:at], append([]cases.Seq{c.Seqs[which]}, company.Seqs[at:]...)...)
		other := e.computeOptions(t, company, tt)
		o1, lse1 := other.rowsOf(at)
		sameBits(t, o, o1, "O")
		sameBits(t, lse, lse1, "LSE")
	})
}

// Options that exclude no key do not change the result: a list of every token, a window as
// wide as the keys, a mask of ones, a bitmap of ones. The order of sums may differ, so the
// rules judge the result, not the bits.
func TestOptionsPropertyNothingExcluded(t *testing.T) {
	onOptionTiers(t, 2, false, func(t *rapid.T, e *engine, tt cases.Target) {
		c := drawOptions(t, drawRows(t, tt))
		c.LSE, c.LooseK = true, true
		c.SparseRatio, c.Shuffled, c.PerRow, c.TopK = 0, false, false, false
		c.Mask, c.BlockQ, c.Window = cases.Spread{}, 0, attention.Window{}
		if c.Causal == attention.CausalNone && c.Align == attention.CausalNone {
			c.Align = attention.BottomRight
		}
		plain, err := cases.NewProblem(c, tt.DType)
		require.NoError(t, err)
		switch rapid.IntRange(0, 3).Draw(t, "by") {
		case 0:
			c.SparseRatio = 1
		case 1:
			c.Window = attention.WindowOf(400, 400)
		case 2:
			c.Mask, c.Ones = cases.Spread{On: true, Rows: true}, true
		case 3:
			c.BlockQ, c.BlockK, c.Ones = 16, 32, true
		}
		r := e.computeOptions(t, c, tt)
		judgeAs(t, plain, r.o, r.lse)
	})
}

// Each sequence of a call has the result that it has in a call of its own.
func TestOptionsPropertyVarlenIsSeparateCalls(t *testing.T) {
	onOptionTiers(t, 3, false, func(t *rapid.T, e *engine, tt cases.Target) {
		c := drawOptions(t, drawRows(t, tt))
		c.LSE, c.PackedQ, c.PackedK = true, true, true
		batched, err := cases.NewProblem(c, tt.DType)
		require.NoError(t, err)
		var o, lse []float32
		for _, s := range c.Seqs {
			alone := c
			alone.Seqs, alone.PackedQ, alone.PackedK = []cases.Seq{s}, false, false
			r := e.computeOptions(t, alone, tt)
			o, lse = append(o, r.o...), append(lse, r.lse...)
		}
		judgeAs(t, batched, o, lse)
		r := e.computeOptions(t, c, tt)
		judgeAs(t, batched, r.o, r.lse)
	})
}

// A sequence has the same bits on every run, with fixed and with chosen splits.
func TestOptionsPropertySameBitsAgain(t *testing.T) {
	onOptionTiers(t, 4, false, func(t *rapid.T, e *engine, tt cases.Target) {
		c := drawOptions(t, drawRows(t, tt))
		c.LooseQ, c.LooseK = true, true
		a, b := e.computeOptions(t, c, tt), e.computeOptions(t, c, tt)
		sameBits(t, a.o, b.o, "O")
		sameBits(t, a.lse, b.lse, "LSE")
	})
}

// part is a problem with only some of its keys.
type part struct {
	*cases.Problem
	from, to int
}

func (p part) HostArgs(images [][]byte) attention.Args {
	return p.cut(p.Problem.HostArgs(images))
}

func (p part) DeviceArgs(buffers []*vk.Buffer) attention.Args {
	return p.cut(p.Problem.DeviceArgs(buffers))
}

func (p part) cut(a attention.Args) attention.Args {
	a.Sk = p.to - p.from
	a.K.Offset += int64(p.from) * a.K.Strides.Seq
	a.V.Offset += int64(p.from) * a.V.Strides.Seq
	return a
}

// Splits of the keys computed in separate calls and merged by LSE give the result of the
// whole. So does one call with the same splits.
func TestOptionsPropertySplitsMerge(t *testing.T) {
	onOptionTiers(t, 5, false, func(t *rapid.T, e *engine, tt cases.Target) {
		rows, keys := drawRows(t, tt), rapid.IntRange(2, 500).Draw(t, "keys")
		c := cases.Case{
			Name: "parts", D: 64, Dv: 64, Shape: attention.Shape{Hq: 4, Hkv: 2}, LSE: true, Layout: cases.Packed,
			Seqs: []cases.Seq{{ID: 0, Rows: rows, Keys: keys}, {ID: 1, Rows: rows, Keys: keys}},
			Seed: rapid.Uint64Range(1, 1<<32).Draw(t, "seed"),
		}
		c.FixedSplit = rapid.SampledFrom([]int{1, 2, 3, 7}).Draw(t, "split")
		whole := e.computeOptions(t, c, tt)
		judgeAs(t, whole.Problem, whole.o, whole.lse)
		cut := rapid.IntRange(1, keys-1).Draw(t, "cut")
		var o, lse [2][]float32
		for i, span := range [2][2]int{{0, cut}, {cut, keys}} {
			j := &job{Problem: part{whole.Problem, span[0], span[1]}, cfg: attention.Config(c.Config(tt)), before: whole.Image}
			require.NoError(t, e.run([]*job{j}))
			o[i], lse[i] = whole.Gather(j.after, whole.SampleRows())
		}
		for r := range lse[0] {
			a, b := float64(lse[0][r]), float64(lse[1][r])
			most := max(a, b)
			l := most + math.Log(math.Exp(a-most)+math.Exp(b-most))
			for i := r * c.Dv; i < (r+1)*c.Dv; i++ {
				merged := math.Exp(a-l)*float64(o[0][i]) + math.Exp(b-l)*float64(o[1][i])
				require.InDelta(t, whole.o[i], merged, map[attention.DType]float64{attention.F16: 4e-3, attention.BF16: 4e-2, attention.F32: 2e-5}[tt.DType])
			}
			require.InDelta(t, whole.lse[r], l, 1e-4)
		}
	})
}
