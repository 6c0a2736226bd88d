package verify

import (
	"fmt"
	"math"
	"sync"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/accuracy"
	"vkattn/internal/par"
)

// blockRows is the number of rows of a head that are judged together.
const blockRows = 64

// comparison compares every element of one tensor, O or LSE, of two results.
type comparison struct {
	name     string
	shape    attention.Shape
	causal   attention.Causal
	width    int
	estimate *accuracy.Estimate
	blocks   bool           // judge every block of rows
	empty    float64        // an element of a row with nothing to attend to
	own      accuracy.Stats // the error of the reference on the sampled rows
}

// count counts elements and keeps the first.
type count struct{ n, first int64 }

func (c *count) join(o count) {
	if o.n > 0 && (c.n == 0 || o.first < c.first) {
		c.first = o.first
	}
	c.n += o.n
}

// tally sums up the differences of one result from another.
type tally struct {
	n             int64
	max           float64
	at            int64 // element of the largest difference
	sum, sq, ref2 float64
	size          float64 // largest element
	wrong         count   // elements that are NaN or Inf on one side only
	notEmpty      count   // wrong elements of rows with nothing to attend to
	blocks        int64   // judged
	failed        int64   // blocks that failed
	failedAt      int64   // first row of the worst block
	failedBy      float64
	failedWhy     string
}

// join adds a tally. Of equally bad elements it keeps the first, so that the outcome does
// not depend on the order of blocks.
func (t *tally) join(o *tally) {
	if o.max > t.max || o.max == t.max && o.n > 0 && (t.n == 0 || o.at < t.at) {
		t.max, t.at = o.max, o.at
	}
	if o.failed > 0 && (t.failed == 0 || o.failedBy > t.failedBy || o.failedBy == t.failedBy && o.failedAt < t.failedAt) {
		t.failedAt, t.failedBy, t.failedWhy = o.failedAt, o.failedBy, o.failedWhy
	}
	t.wrong.join(o.wrong)
	t.notEmpty.join(o.notEmpty)
	t.n += o.n
	t.sum += o.sum
	t.sq += o.sq
	t.ref2 += o.ref2
	t.size = max(t.size, o.size)
	t.blocks += o.blocks
	t.failed += o.failed
}

func (t *tally) mean() float64 { return t.sum / float64(max(t.n, 1)) }

func (t *tally) nmse() float64 {
	if t.sq == 0 {
		return 0
	}
	return t.sq / t.ref2
}

// run compares a result with the reference, or with another implementation if pair is set. Without either (nil) it
// looks at rows with nothing to attend to alone.
func (c *comparison) run(x, ref *attention.HostView, pair bool) *tally {
	perHead := (c.shape.Sq + blockRows - 1) / blockRows
	all := &tally{}
	var mu sync.Mutex
	par.Each(int64(c.shape.B)*int64(c.shape.Hq)*int64(perHead), func() func(int64) {
		got, want := make([]float32, blockRows*c.width), make([]float32, blockRows*c.width)
		return func(i int64) {
			head, lo := int(i)/perHead, int(i)%perHead*blockRows
			rows := min(blockRows, c.shape.Sq-lo)
			row := int64(head)*int64(c.shape.Sq) + int64(lo)
			x.ReadRows(got, head/c.shape.Hq, head%c.shape.Hq, lo, rows)
			var one tally
			if ref != nil {
				ref.ReadRows(want, head/c.shape.Hq, head%c.shape.Hq, lo, rows)
				one.diff(got[:rows*c.width], want, row*int64(c.width))
				c.judge(&one, lo, rows, row, pair)
			}
			if !pair {
				c.findNotEmpty(&one, got, lo, rows, row*int64(c.width))
			}
			mu.Lock()
			defer mu.Unlock()
			all.join(&one)
		}
	})
	return all
}

// findNotEmpty looks at the rows of a block with nothing to attend to, which are its first.
func (c *comparison) findNotEmpty(t *tally, got []float32, lo, rows int, at int64) {
	for row := 0; row < rows && c.causal.Visible(lo+row, c.shape.Sq, c.shape.Sk) == 0; row++ {
		for i, v := range got[row*c.width:][:c.width] {
			if float64(v) != c.empty {
				t.notEmpty.join(count{1, at + int64(row*c.width+i)})
			}
		}
	}
}

// diff compares consecutive elements, the first of which is element at of the tensor.
func (t *tally) diff(x, ref []float32, at int64) {
	for i, v := range x {
		want, got := float64(ref[i]), float64(v)
		err := math.Abs(got - want)
		if !(err <= math.MaxFloat64) { // NaN or Inf on either side
			if got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
				t.wrong.join(count{1, at + int64(i)})
			}
			continue
		}
		if err > t.max {
			t.max, t.at = err, at+int64(i)
		}
		t.sum += err
		t.sq += err * err
		t.ref2 += want * want
		t.size = max(t.size, math.Abs(want))
	}
	t.n = int64(len(x))
}

// judge applies rules 1 and 2 to a block of rows from lo on, the first of which is a row of the tensor.
func (c *comparison) judge(t *tally, lo, rows int, row int64, pair bool) {
	if !c.blocks {
		return
	}
	t.blocks = 1
	limMax, limMean := c.estimate.Block(c.causal.Visible(lo, c.shape.Sq, c.shape.Sk),
		c.causal.Visible(lo+rows-1, c.shape.Sq, c.shape.Sk), t.size)
	if pair {
		limMax, limMean = 2*limMax, 2*limMean
	} else {
		limMax, limMean = limMax+c.own.Max, limMean+c.own.Mean
	}
	// diff leaves NaN and Inf out of the sums.
	by := max(t.max/limMax, t.mean()/limMean)
	if by <= 1 {
		return
	}
	t.failed, t.failedAt, t.failedBy = 1, row, by
	t.failedWhy = fmt.Sprintf("max %.3g of %.3g, mean %.3g of %.3g", t.max, limMax, t.mean(), limMean)
}

// limits are those of the whole tensor versus the reference. Two implementations may differ by twice the first; the
// others are not judged.
func (c *comparison) limits(t *tally, pair bool) (limMax, limMean, limNMSE float64) {
	limMax, limMean, limNMSE = c.estimate.Whole(t.size)
	if pair {
		return 2 * limMax, math.Inf(1), math.Inf(1)
	}
	root := math.Sqrt(limNMSE) + math.Sqrt(c.own.NMSE)
	return limMax + c.own.Max, limMean + c.own.Mean, root * root
}

// row converts a tally versus the reference.
func (c *comparison) row(t *tally) Diff {
	limit, _, _ := c.limits(t, false)
	return Diff{Max: bench.Number(t.max), Mean: bench.Number(t.mean()), NMSE: bench.Number(t.nmse()),
		Limit: bench.Number(limit), Wrong: t.wrong.n, Blocks: t.blocks, FailedBlocks: t.failed}
}

// reasons lists the rules that a result breaks.
func (c *comparison) reasons(t *tally, pair bool) (why []string) {
	limMax, limMean, limNMSE := c.limits(t, pair)
	for _, rule := range []struct {
		broken bool
		format string
		args   []any
	}{
		{t.notEmpty.n > 0, "%d elements of rows with nothing to attend to are not %v, the first at %s",
			[]any{t.notEmpty.n, c.empty, c.position(t.notEmpty.first)}},
		{t.wrong.n > 0, "%d elements are NaN or Inf in one of the two, the first at %s", []any{t.wrong.n, c.position(t.wrong.first)}},
		{t.max > limMax, "max difference %.3g over %.3g at %s", []any{t.max, limMax, c.position(t.at)}},
		{t.mean() > limMean, "mean difference %.3g over %.3g", []any{t.mean(), limMean}},
		{t.nmse() > limNMSE && t.ref2 > 0, "NMSE %.3g over %.3g", []any{t.nmse(), limNMSE}},
		{t.failed > 0, "%d of %d row blocks are over the limit, the worst starts at %s: %s",
			[]any{t.failed, t.blocks, c.place(t.failedAt), t.failedWhy}},
	} {
		if rule.broken {
			why = append(why, fmt.Sprintf(rule.format, rule.args...))
		}
	}
	return why
}

// place names a row of the tensor, position an element.
func (c *comparison) place(row int64) string {
	head := int(row / int64(c.shape.Sq))
	return fmt.Sprintf("batch %d, head %d, row %d", head/c.shape.Hq, head%c.shape.Hq, row%int64(c.shape.Sq))
}

func (c *comparison) position(element int64) string {
	where := c.place(element / int64(c.width))
	if c.width > 1 {
		where += fmt.Sprintf(", column %d", element%int64(c.width))
	}
	return where
}
