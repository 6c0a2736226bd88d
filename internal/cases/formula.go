package cases

import (
	"fmt"
	"math"
	"slices"

	"vkattn/internal/problem"
)

// Formula judges a result by the formula of attention alone, in float64, from the
// numbers that the case was made of. It reads no tensor and shares no code with the
// kernels, with the CPU tier or with the oracle: it has the modifiers of scores written out instead
// of the expression of package score, so that it refuses the reference if that expression, or its
// evaluation, is wrong.
//
// It also computes the error that a correct result may have. Float32 holds a score s only
// to about 2^-22 |s|, so a row whose scores are 1e9 may give its weight to any of the keys
// whose scores lie within that error of the largest one, and to no others. Each element of
// O must lie
//
//   - within the error that the errors of scores and weights make of it, and
//   - between the smallest and the largest value of the keys that may have weight.
//
// The second rule still holds if the first allows anything. NaN is never right, and
// neither is 0 unless the values are 0.
type Formula struct {
	// Rounded says that rounding moves weights also where the scores of a row are one large
	// bias, exactly: the exponents of V's scales are added to scores.
	Rounded bool
	// MaxScore is the bound of the row max, by magnitude, that the kernel promises to be right
	// within; 0: none. Rows beyond it must be right or NaN.
	MaxScore float64

	p    *Problem
	unit roundings

	wide         bool // sums keep what float32 rounds away
	keys, values map[keyID][]float64
	row          rowScores
}

// roundings are the relative errors that a kernel may make.
type roundings struct {
	stored  float64 // of O, as stored
	weight  float64 // of a weight before it is multiplied by V
	least   float64 // absolute error of a weight times V's scale, the largest being 1
	element float64 // of an element of K or V that is dequantized
	most    float64 // largest number stored
	// smallest is an error below which none is counted: subnormal numbers may become 0.
	smallest float64
}

// leastSplit is the smallest weight of a split, times V's scale, that does not count as 0: the largest being 1, and divided
// by a sum of up to 1024 splits, smaller ones may be subnormal (split_weights.glsl).
const leastSplit = 0x1p-115

func roundingsOf(p *Problem) roundings {
	u := map[problem.DType]roundings{
		problem.F16:  {stored: 0x1p-11, weight: 0x1p-10, least: 0x1p-24, element: 0x1p-11, most: 65504},
		problem.BF16: {stored: 0x1p-8, weight: 0x1p-7, least: leastSplit, element: 0x1p-8, most: 0x1.fep127},
		problem.F32:  {stored: 0x1p-24, weight: 0x1p-22, most: math.MaxFloat32},
	}[p.DType]
	u.smallest = 0x1p-120
	if p.DType == problem.F16 {
		u.smallest = 0x1p-24
	}
	if !p.KeyType.Blocked() {
		u.element = 0 // numbers are exact and scales multiply scores and weights
	}
	return u
}

// Judgement is what a Formula says of a result.
type Judgement struct {
	Rows     int     // judged
	Unjudged int     // scores, or their sums with a bias, that float32 cannot hold
	Beyond   int     // rows with a row max beyond MaxScore that are NaN
	Share    float64 // largest error as a part of what it may be
	Wrong    int     // rows
	First    *RowError
}

// Err is nil where every row is right.
func (j *Judgement) Err() error {
	if j.First == nil {
		return nil
	}
	return fmt.Errorf("%d of %d rows are wrong: %w", j.Wrong, j.Rows, j.First)
}

// RowError is a row that is wrong.
type RowError struct {
	B, H, Row  int
	What       string // what is wrong with it
	Class      string // which extreme the row has, the first that applies
	Keys       int
	Low, High  float64 // of its scores
	Sink       float64
	ScoreError float64 // of its largest score
}

func (e *RowError) Error() string {
	return fmt.Sprintf("sequence %d, head %d, row %d (%s; %d keys, scores %.6g to %.6g +- %.3g, sink %.6g): %s",
		e.B, e.H, e.Row, e.Class, e.Keys, e.Low, e.High, e.ScoreError, e.Sink, e.What)
}

// NewFormula prepares a problem of a case with Seqs to be judged. A Formula has one user at
// a time.
func NewFormula(p *Problem) *Formula {
	return &Formula{p: p, unit: roundingsOf(p), keys: map[keyID][]float64{}, values: map[keyID][]float64{}}
}

// Judge judges what a call left in memory.
func (f *Formula) Judge(after [][]byte) Judgement {
	sample := f.p.SampleRows()
	o, lse := f.p.Gather(after, sample)
	return f.JudgeRows(sample, o, lse)
}

// JudgeRows judges rows of O and LSE; lse is nil where the call has none.
func (f *Formula) JudgeRows(sample []problem.Rows, o, lse []float32) (j Judgement) {
	i, dv := 0, f.p.Dv
	for _, s := range sample {
		for _, row := range s.Rows {
			f.score(s.B, s.H, row)
			var sum *float32
			if lse != nil {
				sum = &lse[i]
			}
			share, what := f.judgeRow(o[i*dv:][:dv], sum)
			if what != "" && f.row.absorbed {
				f.wide = true // or by what float64 keeps
				f.score(s.B, s.H, row)
				if again, wrong := f.judgeRow(o[i*dv:][:dv], sum); wrong == "" {
					share, what = again, wrong
				}
				f.wide = false
			}
			if f.row.beyond {
				j.Unjudged++
				i++
				continue
			}
			if what != "" && f.pastMaxScore() && allOf(o[i*dv:][:dv], sum, "NaN", math.IsNaN) == "" {
				j.Beyond++
				i++
				continue
			}
			i++
			j.Rows++
			if what == "" {
				j.Share = max(j.Share, share)
				continue
			}
			j.Wrong++
			if j.First == nil {
				j.First = f.describe(s.B, s.H, row, what)
			}
		}
	}
	return j
}

// pastMaxScore reports whether float32 may hold the row max as one beyond MaxScore.
func (f *Formula) pastMaxScore() bool {
	s := f.row.s
	return f.MaxScore != 0 && len(s) > 0 && math.Abs(slices.Max(s)) > f.MaxScore*(1-0x1p-20)
}

// judgeRow judges a row whose scores are known; what is empty where it is right.
func (f *Formula) judgeRow(o []float32, lse *float32) (share float64, what string) {
	r := &f.row
	switch {
	case r.mayBeNaN && allOf(o, lse, "NaN", math.IsNaN) == "":
		return 0, ""
	case r.isNaN, math.IsNaN(r.sink), math.IsInf(r.sink, 1):
		return 0, allOf(o, lse, "NaN", math.IsNaN)
	case math.IsInf(r.most, -1):
		for i, x := range o {
			if x != 0 && !slices.ContainsFunc(r.unweighted, func(v []float64) bool { return !finite(v[i]) }) {
				return 0, fmt.Sprintf("O[%d] is %v, want 0: there is nothing to attend to", i, x)
			}
		}
		if lse != nil && !math.IsInf(float64(*lse), -1) {
			return 0, fmt.Sprintf("LSE is %v, want -Inf: there is nothing to attend to", *lse)
		}
		return 0, ""
	}
	weights := f.weigh()
	for j, got := range o {
		part, wrong := f.judgeElement(&weights, j, float64(got))
		if wrong != "" {
			return 0, wrong
		}
		share = max(share, part)
	}
	if lse == nil {
		return share, ""
	}
	want := r.most + math.Log(weights.sum)
	moved := max(math.Log(weights.high/weights.sum), math.Log(weights.sum/weights.low)) // by the errors of scores
	if w := weights.mostE; w > largestExponent {
		moved = w
	}
	allowed := 1e-5 + 0x1p-21*math.Abs(want) + f.unit.weight + min(moved, weights.mostE)
	if off := math.Abs(float64(*lse) - want); !(off <= allowed) || math.IsInf(float64(*lse), 0) {
		return 0, fmt.Sprintf("LSE is %v, want %.9g +- %.3g", *lse, want, allowed)
	} else if allowed < math.Inf(1) {
		share = max(share, off/allowed)
	}
	return share, ""
}

func allOf(o []float32, lse *float32, want string, is func(x float64) bool) string {
	for i, x := range o {
		if !is(float64(x)) {
			return fmt.Sprintf("O[%d] is %v, want %s", i, x, want)
		}
	}
	if lse != nil && !is(float64(*lse)) {
		return fmt.Sprintf("LSE is %v, want %s", *lse, want)
	}
	return ""
}

// elementError is the error of element i of a row of K or V from its conversion to the storage type. Devices may round a number
// times the scale before they add the minimum of q4_1 and q5_1; the product is at most twice the largest element of the block.
func (f *Formula) elementError(kv problem.KVType, row []float64, i int) float64 {
	if f.unit.element == 0 {
		return 0
	}
	size := math.Abs(row[i])
	if kv == problem.KVQ4_1 || kv == problem.KVQ5_1 {
		const block = 32
		first, most := i/block*block, 0.0
		for _, x := range row[first:min(first+block, len(row))] {
			most = max(most, math.Abs(x))
		}
		size += 2 * most
	}
	return f.unit.element * size
}

func (f *Formula) judgeElement(w *rowWeights, j int, got float64) (share float64, what string) {
	r, u := &f.row, &f.unit
	switch reached, mayReach := f.nonFinite(w, j); {
	case reached && finite(got):
		return 0, fmt.Sprintf("O[%d] is %.6g, want Inf or NaN as in V", j, got)
	case mayReach:
		return 0, ""
	}
	var want, size, all, elements, converted, most float64
	for i, p := range w.p {
		v := r.value[i][j]
		off := f.elementError(f.p.valueType(), r.value[i], j)
		converted, most = converted+p*off, max(most, off)
		want += p * v
		size += p * math.Abs(v)
		all += r.times[i] * math.Abs(v)
		if s := r.scale[i]; s > 0 {
			elements += r.times[i] * math.Abs(v) / s
		}
	}
	want, size = want/w.sum, size/w.sum
	// spread is the error of O from errors of the scores: their effect on the sum of
	// p (v - O), which is 0.
	spread := w.sinkOff * math.Abs(want)
	lo, hi := math.Inf(1), math.Inf(-1)
	if w.sinkCompetes {
		lo, hi = 0, 0
	}
	for i, off := range w.off {
		v := r.value[i][j]
		spread += off * math.Abs(v-want)
		if w.competes[i] {
			lo, hi = min(lo, v), max(hi, v)
		}
	}
	spread /= w.low
	// Float64 does not hold what is left of v - O in a row that one key dominates, by which
	// errors of more than a few units are multiplied.
	if !(w.low > 0) || w.mostE > 8 || math.IsNaN(spread) {
		spread = math.Inf(1)
	}
	// rest is the error of O from everything else: rounding of weights and elements before
	// they are multiplied, the sum over keys, and rounding of the stored O.
	rest := size*(2*u.weight+0x1p-23*(8+math.Sqrt(w.count))) + converted/w.sum + elements*w.largest/w.sum*u.least + all*0x1p-80 + 1.01*u.stored*math.Abs(want) + u.smallest
	allowed := spread + rest
	hull := rest + (u.stored+2*u.weight+0x1p-20)*max(math.Abs(lo), math.Abs(hi)) + most + all*0x1p-56
	switch {
	case math.IsNaN(got):
		return 0, fmt.Sprintf("O[%d] is NaN, want %.6g", j, want)
	case want+allowed >= u.most && got >= u.most/2, want-allowed <= -u.most && got <= -u.most/2:
		return 0, "" // more than the storage type holds, or nearly
	case math.Abs(got-want) > allowed:
		return 0, fmt.Sprintf("O[%d] is %.6g, want %.6g +- %.3g", j, got, want, allowed)
	case got < lo-hull || got > hi+hull:
		return 0, fmt.Sprintf("O[%d] is %.6g, want %.6g to %.6g, the values of the keys that may have weight", j, got, lo, hi)
	}
	if math.IsInf(spread, 1) || spread > math.Abs(hi-lo) {
		return max(0, (lo-got)/hull, (got-hi)/hull), ""
	}
	return math.Abs(got-want) / allowed, ""
}

// nonFinite reports whether column j of V is Inf or NaN in a key that has weight, and
// whether it is in a key that may have weight.
func (f *Formula) nonFinite(w *rowWeights, j int) (reached, mayReach bool) {
	for i := range w.p {
		if !finite(f.row.value[i][j]) {
			mayReach = true
			reached = reached || w.p[i] > 0x1p-20 && f.row.e[i] < 1
		}
	}
	for _, v := range f.row.unweighted {
		mayReach = mayReach || !finite(v[j])
	}
	return reached, mayReach
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// describe names a wrong row.
func (f *Formula) describe(b, h, row int, what string) *RowError {
	r := &f.row
	x := &RowError{B: b, H: h, Row: row, What: what, Keys: len(r.s), Low: math.Inf(1), High: math.Inf(-1), Sink: r.sink}
	for i, s := range r.s {
		x.Low = min(x.Low, s)
		if s > x.High {
			x.High, x.ScoreError = s, r.e[i]
		}
	}
	x.Class = f.class(x)
	return x
}

// class names the extreme that a row has.
func (f *Formula) class(x *RowError) string {
	p := f.p
	window := p.Window.Given() && max(p.Window.Left(), p.Window.Right()) > 1<<24
	switch {
	case math.IsNaN(x.Sink) || math.IsInf(x.Sink, 1):
		return "sink that is NaN or +Inf"
	case p.Extremes.NonFinite:
		return "Inf or NaN in the tensors"
	case math.Abs(x.Sink) > 1e9 && !math.IsInf(x.Sink, -1):
		return "sink of 1e30 and more"
	case len(p.Extremes.Bias) > 0 && (x.High < -1e9 && x.Keys > 0 || x.High > 1e20 || x.Low < -1e20):
		return "bias of 1e30 and more"
	case math.Abs(f.row.raw) > 1e6:
		return "scores over 1e6"
	case window:
		return "window of 2^24 keys and more"
	case len(p.Extremes.KScales)+len(p.Extremes.VScales) > 0:
		return "extreme scales of K or V"
	case math.Abs(x.Sink) > 80 && !math.IsInf(x.Sink, -1):
		return "large sink"
	case p.Softcap != 0 && p.Softcap < 1:
		return "small softcap"
	case p.Extremes.V != 0:
		return "values of extreme size"
	case p.Extremes.Slopes != nil:
		return "extreme slopes"
	case len(p.Extremes.Bias) > 0:
		return "extreme bias"
	}
	return "ordinary numbers"
}
