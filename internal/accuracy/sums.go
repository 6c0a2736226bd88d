package accuracy

import (
	"math"

	"vkattn/internal/oracle"
)

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
