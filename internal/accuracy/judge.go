package accuracy

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"vkattn/internal/oracle"
	"vkattn/internal/problem"
)

// Stats are the errors of a set of elements, of x and of low, and the outcome of the three
// rules.
type Stats struct {
	First, N int // elements [First, First+N) of the tensor

	Max, Mean, NMSE             float64 // of x
	LowMax, LowMean, LowNMSE    float64 // of low
	LimMax, LimMean, LimNMSE    float64 // limits of x
	Worst                       int     // element of the largest error, or the first of the wrong kind
	WorstGot, WorstWant         float64
	WrongKind                   int // elements that are NaN or Inf in x or ref and differ
	MaxOK, MeanOK, NMSEOK, Kind bool
}

// Pass reports whether all rules hold.
func (s Stats) Pass() bool { return s.MaxOK && s.MeanOK && s.NMSEOK && s.Kind }

// Reasons lists the rules that failed, one phrase each.
func (s Stats) Reasons() (why []string) {
	if !s.Kind {
		why = append(why, fmt.Sprintf("%d elements NaN or Inf where they should not be or missing where they should", s.WrongKind))
	}
	for _, r := range []struct {
		ok              bool
		name            string
		got, limit, low float64
	}{
		{s.MaxOK, "max error", s.Max, s.LimMax, s.LowMax},
		{s.MeanOK, "mean error", s.Mean, s.LimMean, s.LowMean},
		{s.NMSEOK, "NMSE", s.NMSE, s.LimNMSE, s.LowNMSE},
	} {
		if !r.ok {
			why = append(why, fmt.Sprintf("%s %.3g over %.3g (low %.3g)", r.name, r.got, r.limit, r.low))
		}
	}
	return why
}

// Share is the largest error relative to its limit, by the rule that comes closest. It is
// at most 1 if all three hold.
func (s Stats) Share() float64 {
	share := 0.0
	for _, r := range [][2]float64{{s.Max, s.LimMax}, {s.Mean, s.LimMean}, {s.NMSE, s.LimNMSE}} {
		if r[0] > 0 && !math.IsInf(r[0], 1) { // an NMSE is, of nothing but zeros
			share = max(share, r[0]/r[1])
		}
	}
	return share
}

// Report is the judgement of one tensor.
type Report struct {
	Whole      Stats
	BlockRows  int    // rows per block
	Width      int    // elements per row
	Blocks     int    // number of blocks
	Failed     int    // number of blocks that fail
	WorstBlock Stats  // the failing block with the largest error; zero if none fails
	Unjudged   string // why nothing was judged; "" if something was
}

// Pass reports whether all rules hold for the tensor and for every block of rows. The zero
// Report does not pass.
func (r Report) Pass() bool { return r.Failed == 0 && r.Whole.Pass() }

// Reasons says what failed and where; it is empty if the report passes. Row numbers count
// in Judge's arguments.
func (r Report) Reasons() []string {
	if r.Width < 1 || r.Unjudged != "" {
		return []string{cmp.Or(r.Unjudged, "nothing was judged")}
	}
	why := r.Whole.Reasons()
	if r.Failed > 0 {
		p := r.WorstBlock
		why = append(why, fmt.Sprintf("%d of %d row blocks fail, the worst at rows %d to %d: %s", r.Failed, r.Blocks,
			p.First/r.Width, (p.First+p.N)/r.Width-1, strings.Join(p.Reasons(), ", ")))
	}
	if len(why) > 0 {
		w := r.worst()
		why = append(why, fmt.Sprintf("worst at row %d column %d: %v, want %v", w.Worst/r.Width, w.Worst%r.Width, w.WorstGot, w.WorstWant))
	}
	return why
}

// worst returns the Stats with the element to look at first.
func (r Report) worst() Stats {
	if r.Failed > 0 && r.Whole.Kind {
		return r.WorstBlock
	}
	return r.Whole
}

// Judge applies the three rules to a tensor of rows of width elements, to the whole and to
// blocks of 64 rows, or of more rows if those have fewer than 1024 elements. x, ref, low
// and, if given, Limits.Noise must have the same number of elements, in whole rows, and Limits.Rows as many rows.
// Otherwise the Report does not pass and Unjudged says why.
func Judge(l Limits, width int, x []float32, ref []float64, low []float32) Report {
	switch n := len(ref); {
	case width < 1 || n%width != 0:
		return Report{Unjudged: fmt.Sprintf("ref has %d elements, want rows of %d", n, width)}
	case len(x) != n || len(low) != n || l.Noise != nil && len(l.Noise) != n:
		return Report{Unjudged: fmt.Sprintf("x, low and noise have %d, %d and %d elements, ref %d", len(x), len(low), len(l.Noise), n)}
	case l.Rows != nil && len(l.Rows) != n/width:
		return Report{Unjudged: fmt.Sprintf("Limits.Rows has %d rows, ref %d", len(l.Rows), n/width)}
	}
	r := Report{Width: width, BlockRows: max(64, (enough+width-1)/width)}
	var whole sums
	for at := 0; at < len(ref); at += r.BlockRows * width {
		end := min(at+r.BlockRows*width, len(ref))
		part := measure(l, at, x[at:end], ref[at:end], low[at:end])
		if l.Rows != nil {
			for _, row := range l.Rows[at/width : end/width] {
				part.likely.add(row)
				part.lowFloor = max(part.lowFloor, math.Sqrt(3*row.Squares/float64(width)))
			}
		}
		s := part.judge(l)
		r.Blocks++
		if !s.Pass() {
			if r.Failed == 0 || s.worse(r.WorstBlock) {
				r.WorstBlock = s
			}
			r.Failed++
		}
		whole.join(&part)
	}
	r.Whole = whole.judge(l)
	return r
}

func (s Stats) worse(t Stats) bool {
	if s.Kind != t.Kind {
		return !s.Kind
	}
	return s.Max > t.Max
}

// kind is a number for each of: finite, NaN, +Inf, -Inf.
func kind(v float64) int {
	switch {
	case math.IsNaN(v):
		return 1
	case math.IsInf(v, 1):
		return 2
	case math.IsInf(v, -1):
		return 3
	}
	return 0
}

// sums are the sums that the rules need over a run of elements. Runs can be joined.
type sums struct {
	first, n  int
	x, low    errors
	lowFloor  float64 // largest error low is to be credited with
	likely    likely  // the same of its mean error and NMSE
	worst     int
	got, want float64
	wrong     int // elements of the wrong kind
}

// errors accumulate |v - ref| of finite elements.
type errors struct {
	n       int
	most    float64
	sum, sq float64
	ref2    float64 // sum of ref² over the same elements
}

func (e *errors) add(err, ref float64) {
	e.n++
	e.most = max(e.most, err)
	e.sum += err
	e.sq += err * err
	e.ref2 += ref * ref
}

func (e *errors) join(f *errors) {
	e.n += f.n
	e.most = max(e.most, f.most)
	e.sum += f.sum
	e.sq += f.sq
	e.ref2 += f.ref2
}

func (e *errors) mean() float64 { return e.sum / float64(max(e.n, 1)) }

// nmse is 0 if there is no error, for any reference.
func (e *errors) nmse() float64 {
	if e.sq == 0 {
		return 0
	}
	return e.sq / e.ref2 // +Inf for an all-zero reference
}

// measure compares elements that start at index first of the tensor.
func measure(l Limits, first int, x []float32, ref []float64, low []float32) sums {
	s := sums{first: first, n: len(ref), worst: first}
	for i, want := range ref {
		got := float64(x[i])
		if k := kind(want); k != 0 || kind(got) != 0 {
			if k != kind(got) {
				if s.wrong == 0 {
					s.worst, s.got, s.want = first+i, got, want
				}
				s.wrong++
			}
			continue
		}
		err := math.Abs(got - want)
		if s.wrong == 0 && (err > s.x.most || s.x.n == 0) {
			s.worst, s.got, s.want = first+i, got, want
		}
		s.x.add(err, want)
		s.lowFloor = max(s.lowFloor, oracle.HalfUnit(l.Stored, want))
		if v := float64(low[i]); kind(v) == 0 {
			lowErr := math.Abs(v - want)
			if l.Noise != nil {
				lowErr = max(lowErr, l.Noise[first+i])
			}
			s.low.add(lowErr, want)
		}
	}
	return s
}

// join adds the sums of elements that follow.
func (s *sums) join(t *sums) {
	if t.wrong > 0 && s.wrong == 0 || t.wrong == s.wrong && (t.x.most > s.x.most || s.n == 0) {
		s.worst, s.got, s.want = t.worst, t.got, t.want
	}
	s.n += t.n
	s.wrong += t.wrong
	s.lowFloor = max(s.lowFloor, t.lowFloor)
	s.likely.join(t.likely)
	s.x.join(&t.x)
	s.low.join(&t.low)
}

// judge applies the rules.
func (s *sums) judge(l Limits) Stats {
	f := slack(s.x.n)
	r := Stats{
		First: s.first, N: s.n,
		Max: s.x.most, Mean: s.x.mean(), NMSE: s.x.nmse(),
		LowMax: s.low.most, LowMean: s.low.mean(), LowNMSE: s.low.nmse(),
		Worst: s.worst, WorstGot: s.got, WorstWant: s.want, WrongKind: s.wrong,
	}
	r.LimMax = f*l.MaxFactor*max(r.LowMax, s.lowFloor) + l.MaxFloor
	mean, nmse := r.LowMean, r.LowNMSE
	if sum, squares := s.likely.most(); sum > 0 {
		mean, nmse = max(mean, sum/float64(max(s.x.n, 1))), max(nmse, squares/s.x.ref2)
	}
	r.LimMean = f*l.MeanFactor*mean + l.MeanFloor
	r.LimNMSE = max(l.NMSE, f*f*l.NMSEFactor*nmse)
	r.MaxOK = r.Max <= r.LimMax
	r.MeanOK = r.Mean <= r.LimMean
	r.NMSEOK = r.NMSE <= r.LimNMSE || s.x.ref2 == 0 // nothing to be relative to
	r.Kind = s.wrong == 0
	return r
}

// likely is what rounding makes likely in a block of rows.
type likely struct{ sum, sumVariance, squares, squaresVariance float64 }

func (l *likely) add(r oracle.RowError) {
	if r.Draws > 0 {
		l.join(likely{r.Sum, r.Sum * r.Sum / r.Draws, r.Squares, 2 * r.Squares * r.Squares / r.Draws})
	}
}

func (l *likely) join(m likely) {
	l.sum += m.sum
	l.sumVariance += m.sumVariance
	l.squares += m.squares
	l.squaresVariance += m.squaresVariance
}

// most is the sum of errors that one kernel in about twenty exceeds, and the sum of their squares: two standard
// deviations above the mean.
func (l *likely) most() (sum, squares float64) {
	return l.sum + 2*math.Sqrt(l.sumVariance), l.squares + 2*math.Sqrt(l.squaresVariance)
}

// Limits are the constants of the three rules.
type Limits struct {
	Stored     problem.DType // type x is stored in
	MaxFactor  float64
	MaxFloor   float64
	MeanFactor float64
	MeanFloor  float64
	NMSE       float64
	NMSEFactor float64

	// Noise, if given, is the least error of low that counts for each element of the
	// tensor; see [oracle.Noise].
	Noise []float64
	// Rows, if given, is what rounding makes likely in each row. In rules 2 and 3 the error of low in a
	// block of rows counts as at least two standard deviations more, in rule 1 as at least the largest that a rounding
	// of this size makes.
	Rows []oracle.RowError
}

// Forward are the limits of O for a storage type.
func Forward(t problem.DType) Limits {
	nmse := map[problem.DType]float64{problem.F16: 1e-5, problem.BF16: 1e-4, problem.F32: 1e-10}
	return Limits{Stored: t, MaxFactor: 2, MaxFloor: 1e-5, MeanFactor: 1.5, MeanFloor: 1e-6, NMSE: nmse[t], NMSEFactor: 4}
}

// ForwardLSE are the limits of LSE, which is float32, for the storage type of
// the tensors it is computed from.
func ForwardLSE(t problem.DType) Limits {
	l := Forward(t)
	l.Stored = problem.F32
	return l
}

// Gradient are the limits of dQ, dK and dV for a storage type.
func Gradient(t problem.DType) Limits {
	l := Forward(t)
	l.MaxFactor, l.MaxFloor = 3, 1e-4
	return l
}

// enough elements tell the error to expect.
const enough = 1024

// slack is the growth of the factors for n elements.
func slack(n int) float64 {
	if n >= enough {
		return 1
	}
	return 1 + (math.Sqrt(enough/float64(max(n, 1)))-1)/4
}
