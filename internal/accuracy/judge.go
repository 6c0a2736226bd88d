package accuracy

import (
	"cmp"
	"fmt"
	"math"
	"strings"
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
