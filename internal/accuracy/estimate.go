package accuracy

import (
	"math"
	"math/bits"

	"vkattn/internal/oracle"
)

// Estimate extends the rules to rows without low, as in a problem that is too large for
// the CPU and whose whole result another device computed.
//
// It applies to random inputs of one distribution, where the error of a row depends only
// on the number of keys that it attends to. Rows are grouped by the power of two below
// that number. A row that was not sampled is held to low's errors in its group. The
// largest of many errors is larger than the largest of few, so rule 1 grows by
// sqrt(ln N / ln n), like the maximum of a normal sample, for N elements of which n were
// seen.
type Estimate struct {
	limits Limits
	whole  group
	groups [65]group // of rows that attend to [2^(i-1), 2^i) keys; 0: to none
}

// group are the errors of low in some rows.
type group struct {
	errors
	rows, elements int
	grow           float64
}

func (g *group) join(o *group) {
	g.rows += o.rows
	g.elements += o.elements
	g.errors.join(&o.errors)
}

// enoughRows: a group with fewer rows borrows from its neighbours.
const enoughRows = 16

// NewEstimate takes rows of width elements: the number of keys that each attends to, the
// reference and low. total is the number of elements of the tensor. It ignores rows that
// ref, low or Limits.Noise has no elements for.
func NewEstimate(l Limits, width int, keys []int, ref []float64, low []float32, total int64) *Estimate {
	e := &Estimate{limits: l}
	e.limits.Noise = nil
	var own [65]group
	there := min(len(ref), len(low))
	if l.Noise != nil {
		there = min(there, len(l.Noise))
	}
	for i, n := range keys {
		if width < 1 || i >= there/width {
			break
		}
		g := group{rows: 1, elements: width}
		for j := i * width; j < (i+1)*width; j++ {
			err := math.Abs(float64(low[j]) - ref[j])
			if kind(ref[j]) != 0 || kind(err) != 0 {
				continue
			}
			if l.Noise != nil {
				err = max(err, l.Noise[j])
			}
			g.add(err, ref[j])
		}
		own[bits.Len(uint(n))].join(&g)
		e.whole.join(&g)
	}
	for i := range e.groups {
		g := own[i]
		for d := 1; g.rows < enoughRows && d < len(own); d++ {
			if i-d > 0 { // rows that attend to nothing are exact and ignored
				g.join(&own[i-d])
			}
			if i+d < len(own) && i > 0 {
				g.join(&own[i+d])
			}
		}
		g.grow = growth(total, g.elements)
		e.groups[i] = g
	}
	e.whole.grow = growth(total, e.whole.elements)
	return e
}

// growth is the ratio of the largest of total errors to the largest of seen ones.
func growth(total int64, seen int) float64 {
	if int64(seen) >= total || seen < 1 {
		return 1
	}
	return math.Sqrt(math.Log(float64(total)) / math.Log(float64(max(seen, 3))))
}

// Block returns the limits of rules 1 and 2 for rows that attend to least to most keys and
// whose largest reference element is about size.
func (e *Estimate) Block(least, most int, size float64) (maxError, meanError float64) {
	if e == nil {
		return 0, 0
	}
	for i := bits.Len(uint(least)); i <= bits.Len(uint(most)); i++ {
		g := &e.groups[i]
		a, b := e.allow(g, size)
		maxError, meanError = max(maxError, a), max(meanError, b)
	}
	return maxError, meanError
}

// Whole returns the limits of the three rules for the whole tensor.
func (e *Estimate) Whole(size float64) (maxError, meanError, nmse float64) {
	if e == nil {
		return 0, 0, 0
	}
	maxError, meanError = e.allow(&e.whole, size)
	f := slack(e.whole.elements)
	return maxError, meanError, max(e.limits.NMSE, f*f*e.limits.NMSEFactor*e.whole.nmse())
}

func (e *Estimate) allow(g *group, size float64) (maxError, meanError float64) {
	f := slack(g.elements)
	maxError = f*g.grow*e.limits.MaxFactor*max(g.most, oracle.HalfUnit(e.limits.Stored, size)) + e.limits.MaxFloor
	meanError = f*e.limits.MeanFactor*g.sum/float64(max(g.elements, 1)) + e.limits.MeanFloor
	return maxError, meanError
}
