package verify

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/accuracy"
)

// blockRows is the number of rows of a head that are judged together.
const blockRows = 64

// comparison compares every element of one tensor, O or LSE, of several results with the
// reference and with one another.
type comparison struct {
	shape     attention.Shape
	causal    attention.Causal
	width     int
	results   []attention.HostView
	reference *attention.HostView // nil: only with one another
	estimate  *accuracy.Estimate
	blocks    bool    // judge every block of rows
	empty     float64 // an element of a row with nothing to attend to
	// The error of the reference on the sampled rows.
	ownMax, ownMean, ownNMSE float64
}

// tally sums up the differences of one result from another.
type tally struct {
	n             int64
	max           float64
	at            int64 // element of the largest difference
	sum, sq, ref2 float64
	wrong         int64 // elements that are NaN or Inf on one side only
	wrongAt       int64
	size          float64 // largest element
	blocks        int64   // judged
	failed        int64   // blocks that failed
	failedAt      int64   // first row of the worst block
	failedBy      float64
	failedWhy     string
	notEmpty      int64 // wrong elements of rows with nothing to attend to
	notEmptyAt    int64
}

// found is the outcome of a comparison: a tally of each result versus the reference, and
// of each pair of results i < j.
type found struct {
	versusReference []tally
	pairs           map[[2]int]*tally
}

func (c *comparison) run() *found {
	perHead := (c.shape.Sq + blockRows - 1) / blockRows
	total := int64(c.shape.B) * int64(c.shape.Hq) * int64(perHead)
	all := c.newFound()
	var mu sync.Mutex
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(int64(runtime.GOMAXPROCS(0)), total) {
		wg.Go(func() {
			w := &worker{comparison: c, found: c.newFound(), buffers: make([][]float32, len(c.results)+1)}
			for i := range w.buffers {
				w.buffers[i] = make([]float32, blockRows*c.width)
			}
			for i := next.Add(1) - 1; i < total; i = next.Add(1) - 1 {
				head, block := int(i)/perHead, int(i)%perHead
				w.block(head/c.shape.Hq, head%c.shape.Hq, block*blockRows)
			}
			mu.Lock()
			defer mu.Unlock()
			all.join(w.found)
		})
	}
	wg.Wait()
	return all
}

func (c *comparison) newFound() *found {
	f := &found{versusReference: make([]tally, len(c.results)), pairs: map[[2]int]*tally{}}
	for j := range c.results {
		for i := range j {
			f.pairs[[2]int{i, j}] = &tally{}
		}
	}
	return f
}

func (f *found) join(o *found) {
	for i := range f.versusReference {
		f.versusReference[i].join(&o.versusReference[i])
	}
	for k, t := range f.pairs {
		t.join(o.pairs[k])
	}
}

// join adds a tally. Of equally bad elements it keeps the first, so that the outcome does
// not depend on which worker compared which block.
func (t *tally) join(o *tally) {
	if o.max > t.max || o.max == t.max && o.n > 0 && (t.n == 0 || o.at < t.at) {
		t.max, t.at = o.max, o.at
	}
	if o.wrong > 0 && (t.wrong == 0 || o.wrongAt < t.wrongAt) {
		t.wrongAt = o.wrongAt
	}
	if o.notEmpty > 0 && (t.notEmpty == 0 || o.notEmptyAt < t.notEmptyAt) {
		t.notEmptyAt = o.notEmptyAt
	}
	if o.failed > 0 && (t.failed == 0 || o.failedBy > t.failedBy || o.failedBy == t.failedBy && o.failedAt < t.failedAt) {
		t.failedAt, t.failedBy, t.failedWhy = o.failedAt, o.failedBy, o.failedWhy
	}
	t.n += o.n
	t.sum += o.sum
	t.sq += o.sq
	t.ref2 += o.ref2
	t.wrong += o.wrong
	t.size = max(t.size, o.size)
	t.blocks += o.blocks
	t.failed += o.failed
	t.notEmpty += o.notEmpty
}

// worker compares blocks of rows with its own tallies and buffers.
type worker struct {
	*comparison
	*found
	buffers [][]float32 // one for each result, and one for the reference
}

func (w *worker) block(b, h, lo int) {
	rows := min(blockRows, w.shape.Sq-lo)
	n := rows * w.width
	first := (int64(b*w.shape.Hq+h)*int64(w.shape.Sq) + int64(lo))
	at := first * int64(w.width)
	for i := range w.results {
		w.results[i].ReadRows(w.buffers[i], b, h, lo, rows)
	}
	least, most := w.causal.Visible(lo, w.shape.Sq, w.shape.Sk), w.causal.Visible(lo+rows-1, w.shape.Sq, w.shape.Sk)
	var blank int // rows with nothing to attend to; they are the first of the block
	for blank < rows && w.causal.Visible(lo+blank, w.shape.Sq, w.shape.Sk) == 0 {
		blank++
	}
	ref := w.buffers[len(w.results)][:n]
	if w.reference != nil {
		w.reference.ReadRows(ref, b, h, lo, rows)
	}
	for i := range w.results {
		x, t := w.buffers[i][:n], &w.versusReference[i]
		for j, v := range x[:blank*w.width] {
			if float64(v) != w.empty {
				if t.notEmpty == 0 {
					t.notEmptyAt = at + int64(j)
				}
				t.notEmpty++
			}
		}
		if w.reference == nil {
			t.size = max(t.size, largest(x))
			continue
		}
		one := diff(x, ref, at)
		if w.blocks {
			w.judge(&one, 1, least, most, first)
		}
		t.join(&one)
	}
	for k, t := range w.pairs {
		one := diff(w.buffers[k[1]][:n], w.buffers[k[0]][:n], at)
		if w.blocks {
			w.judge(&one, 2, least, most, first)
		}
		t.join(&one)
	}
}

// diff compares consecutive elements, the first of which is element at of the tensor.
func diff(x, ref []float32, at int64) (t tally) {
	for i, r := range ref {
		want, got := float64(r), float64(x[i])
		err := math.Abs(got - want)
		if !(err <= math.MaxFloat64) { // NaN or Inf on either side
			if kind(want) != kind(got) {
				if t.wrong == 0 {
					t.wrongAt = at + int64(i)
				}
				t.wrong++
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
	t.n = int64(len(ref))
	return t
}

func largest(x []float32) (most float64) {
	for _, v := range x {
		if a := math.Abs(float64(v)); a > most && a <= math.MaxFloat64 {
			most = a
		}
	}
	return most
}

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

// judge applies rules 1 and 2 to a block. sides is 1 for an implementation versus the
// reference and 2 for two implementations.
func (w *worker) judge(t *tally, sides float64, least, most int, row int64) {
	t.blocks = 1
	limMax, limMean := w.estimate.Block(least, most, t.size)
	limMax, limMean = sides*limMax, sides*limMean
	if sides == 1 {
		limMax, limMean = limMax+w.ownMax, limMean+w.ownMean
	}
	mean := t.sum / float64(max(t.n, 1))
	// diff leaves NaN and Inf out of the sums.
	by := max(t.max/limMax, mean/limMean)
	if by <= 1 {
		return
	}
	t.failed, t.failedAt, t.failedBy = 1, row, by
	t.failedWhy = fmt.Sprintf("max %.3g of %.3g, mean %.3g of %.3g", t.max, limMax, mean, limMean)
}

// whole returns the limits for the tensor versus the reference.
func (c *comparison) whole(t *tally) (limMax, limMean, limNMSE float64) {
	limMax, limMean, limNMSE = c.estimate.Whole(t.size)
	root := math.Sqrt(limNMSE) + math.Sqrt(c.ownNMSE)
	return limMax + c.ownMax, limMean + c.ownMean, root * root
}

// diff converts a tally for the row.
func (c *comparison) diff(t *tally) Diff {
	limit, _, _ := c.whole(t)
	return Diff{Max: bench.Number(t.max), Mean: bench.Number(t.sum / float64(max(t.n, 1))), NMSE: bench.Number(t.nmse()),
		Limit: bench.Number(limit), Wrong: t.wrong, Blocks: t.blocks, FailedBlocks: t.failed}
}

func (t *tally) nmse() float64 {
	if t.sq == 0 {
		return 0
	}
	return t.sq / t.ref2
}

// verdict lists the rules that a result breaks versus the reference.
func (c *comparison) verdict(t *tally) (why []string) {
	if t.notEmpty > 0 {
		why = append(why, fmt.Sprintf("%d elements of rows with nothing to attend to are not %v, the first at %s",
			t.notEmpty, c.empty, c.position(t.notEmptyAt)))
	}
	if c.reference == nil {
		return why
	}
	if t.wrong > 0 {
		why = append(why, fmt.Sprintf("%d elements are NaN or Inf where the reference is finite, or the other way round, the first at %s", t.wrong, c.position(t.wrongAt)))
	}
	limMax, limMean, limNMSE := c.whole(t)
	if t.max > limMax {
		why = append(why, fmt.Sprintf("max difference %.3g over %.3g at %s", t.max, limMax, c.position(t.at)))
	}
	if mean := t.sum / float64(max(t.n, 1)); mean > limMean {
		why = append(why, fmt.Sprintf("mean difference %.3g over %.3g", mean, limMean))
	}
	if x := t.nmse(); x > limNMSE && t.ref2 > 0 {
		why = append(why, fmt.Sprintf("NMSE %.3g over %.3g", x, limNMSE))
	}
	return append(why, c.failedBlocks(t)...)
}

func (c *comparison) failedBlocks(t *tally) []string {
	if t.failed == 0 {
		return nil
	}
	b, h, row, _ := c.index(t.failedAt * int64(c.width))
	return []string{fmt.Sprintf("%d of %d row blocks are over the limit, the worst starts at batch %d, head %d, row %d: %s", t.failed, t.blocks, b, h, row, t.failedWhy)}
}

// pairVerdict lists the rules that two implementations break: they may differ by twice
// the limit of one.
func (c *comparison) pairVerdict(t *tally) (why []string) {
	if t.wrong > 0 {
		why = append(why, fmt.Sprintf("%d elements are NaN or Inf in one of the two, the first at %s", t.wrong, c.position(t.wrongAt)))
	}
	if limit, _, _ := c.estimate.Whole(t.size); t.max > 2*limit {
		why = append(why, fmt.Sprintf("max difference %.3g over %.3g at %s", t.max, 2*limit, c.position(t.at)))
	}
	return append(why, c.failedBlocks(t)...)
}

func (c *comparison) index(element int64) (b, h, row, column int) {
	column = int(element % int64(c.width))
	r := element / int64(c.width)
	row = int(r % int64(c.shape.Sq))
	head := int(r / int64(c.shape.Sq))
	return head / c.shape.Hq, head % c.shape.Hq, row, column
}

func (c *comparison) position(element int64) string {
	b, h, row, column := c.index(element)
	if c.width == 1 {
		return fmt.Sprintf("batch %d, head %d, row %d", b, h, row)
	}
	return fmt.Sprintf("batch %d, head %d, row %d, column %d", b, h, row, column)
}
