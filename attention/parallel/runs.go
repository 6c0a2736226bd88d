package parallel

import (
	"math"

	"vkattn/attention"
)

// A rank's rows see some of the keys that another rank holds. Which ones follows from the
// causal mask and the window. Since spans are ascending, each row sees a range of the other
// rank's keys, and from row to row either end of the range stays or moves by one. So the rows
// divide into runs, each of which is an ordinary call: dense, causal or with a window.

// sequence is the range of rows and keys of one sequence of a call.
type sequence struct{ row, rows, key, keys int }

// shape says how the keys of a run depend on the row.
type shape uint8

const (
	full  shape = iota // every row sees every key
	lower              // row i sees keys up to i + keys - rows: causal, bottom-right
	upper              // row i sees keys from i on
	band               // row i sees keys i to i + width - 1
)

// run is a call for some consecutive rows of this rank and keys of another one, as numbers of
// rows in the tensors of either.
type run struct {
	row, rows int
	key, keys int
	shape     shape
	width     int // of a band
}

// cells is the number of pairs of a row and a key that it sees.
func (r *run) cells() uint64 {
	rows, keys := uint64(r.rows), uint64(r.keys)
	switch r.shape {
	case lower:
		return attention.Shape{Sq: r.rows, Sk: r.keys}.Cells(attention.BottomRight)
	case upper: // row i sees keys - i
		if n := min(rows, keys); n > 0 {
			return n*keys - n*(n-1)/2
		}
		return 0
	case band:
		return rows * uint64(r.width)
	}
	return rows * keys
}

// shortest is the number of keys that the row with the fewest keys sees.
func (r *run) shortest() int {
	switch r.shape {
	case lower, upper:
		return r.keys - r.rows + 1
	case band:
		return r.width
	}
	return r.keys
}

// part is the part of a run with rows first to first+n-1 of this rank; ok is false if they see no key.
func (r run) part(first, n int) (p run, ok bool) {
	skip := first - r.row
	p = run{row: first, rows: n, key: r.key, keys: r.keys, shape: r.shape, width: r.width}
	switch r.shape {
	case lower:
		p.keys = r.keys - (r.rows - skip - n)
	case upper:
		p.key, p.keys = r.key+skip, r.keys-skip
	case band:
		p.key, p.keys = r.key+skip, n+r.width-1
	}
	return p, p.keys > 0
}

// config is the Config of a call that computes a run.
func (r *run) config(cfg attention.Config) attention.Config {
	cfg.Causal, cfg.Align, cfg.Window = attention.CausalNone, attention.CausalNone, attention.Window{}
	switch r.shape {
	case lower:
		cfg.Causal = attention.BottomRight
	case upper:
		cfg.Align, cfg.Window = attention.TopLeft, attention.WindowOf(0, -1)
	case band:
		cfg.Align, cfg.Window = attention.TopLeft, attention.WindowOf(0, r.width-1)
	}
	return cfg
}

// sight is how far a row at a position sees among the keys of its sequence.
type sight struct {
	align       attention.Causal
	left, right int // keys before and after the position; -1: all
}

func sightOf(cfg *attention.Config) sight {
	s := sight{cfg.Causal, -1, -1}
	if s.align == attention.CausalNone {
		s.align = cfg.Align
	}
	if cfg.Window.Given() {
		s.left, s.right = cfg.Window.Left(), cfg.Window.Right()
	}
	if cfg.Causal != attention.CausalNone {
		s.right = 0
	}
	return s
}

// spanAt is a span of one sequence, with its first row in the tensor.
type spanAt struct {
	Span
	at int
}

// cursor finds the spans of sequences, which ascend as they do.
type cursor struct {
	spans []Span
	i, at int // the next span, and its first row in the tensor
	list  []spanAt
}

// within lists the spans of rows first to end-1. The list is good until the next call.
func (c *cursor) within(first, end int) []spanAt {
	c.list = c.list[:0]
	for c.i < len(c.spans) && c.spans[c.i].First < end {
		s := c.spans[c.i]
		if lo, hi := max(s.First, first), min(s.End(), end); lo < hi {
			c.list = append(c.list, spanAt{Span{lo, hi - lo}, c.at + lo - s.First})
		}
		if s.End() > end { // it goes on in the next sequence
			break
		}
		c.at += s.N
		c.i++
	}
	return c.list
}

// edge finds positions, which ascend, among keys.
type edge struct {
	keys []spanAt
	i    int
}

// find returns the row of the tensor at which the keys from number x on begin. That of number x+1 is step more,
// and so on for n numbers, x the first.
func (e *edge) find(x int) (at, step, n int) {
	for e.i < len(e.keys)-1 && x >= e.keys[e.i].End() {
		e.i++
	}
	switch s := &e.keys[e.i]; {
	case x < s.First:
		return s.at, 0, s.First - x + 1
	case x < s.End():
		return s.at + x - s.First, 1, s.End() - x + 1
	default:
		return s.at + s.N, 0, math.MaxInt
	}
}

// sweep is consecutive rows of a tensor that see keys lo to hi-1 of another one. From row to row either end
// moves by its step, 0 or 1; those of a single row are not known.
type sweep struct {
	row, rows      int
	lo, hi         int // of the first row
	loStep, hiStep int
}

// extend adds a sweep that follows, if both are one.
func (s *sweep) extend(next *sweep) bool {
	lo, hi := next.lo-s.lo-(s.rows-1)*s.loStep, next.hi-s.hi-(s.rows-1)*s.hiStep // from this last row to the next one
	if next.row != s.row+s.rows || lo != lo&1 || hi != hi&1 || s.rows > 1 && (lo != s.loStep || hi != s.hiStep) ||
		next.rows > 1 && (lo != next.loStep || hi != next.hiStep) {
		return false
	}
	s.rows, s.loStep, s.hiStep = s.rows+next.rows, lo, hi
	return true
}

// run is the run of a sweep; ok is false if its rows see no key.
func (s *sweep) run() (r run, ok bool) {
	r = run{row: s.row, rows: s.rows, key: s.lo, keys: s.hi + (s.rows-1)*s.hiStep - s.lo}
	switch {
	case s.rows == 1 || s.loStep == 0 && s.hiStep == 0:
	case s.loStep == 0:
		r.shape = lower
	case s.hiStep == 0:
		r.shape = upper
	default:
		r.shape, r.width = band, s.hi-s.lo
	}
	return r, r.keys > 0 && (r.shape != band || r.width > 0)
}

// runsOf lists the runs of a rank's rows over the keys of another rank, ascending by row.
// Each row is in at most one of them. It takes time for each span.
func runsOf(see sight, sequences []sequence, rows, keys []Span) (runs []run) {
	allRows, allKeys := cursor{spans: rows}, cursor{spans: keys}
	for i := range sequences {
		q := &sequences[i]
		mine, theirs := allRows.within(q.row, q.row+q.rows), allKeys.within(q.key, q.key+q.keys)
		if len(theirs) > 0 {
			runs = appendRuns(runs, see, q, mine, theirs)
		}
	}
	return runs
}

// appendRuns adds the runs of rows of one sequence.
func appendRuns(runs []run, see sight, q *sequence, rows, keys []spanAt) []run {
	// Row r sees keys from r+from to r+to-1.
	position := q.key - q.row
	if see.align == attention.BottomRight {
		position += q.keys - q.rows
	}
	from, to := position-see.left, position+see.right+1
	var current sweep
	end := func() {
		if r, ok := current.run(); ok && current.rows > 0 {
			runs = append(runs, r)
		}
	}
	last := keys[len(keys)-1]
	low, high := edge{keys: keys}, edge{keys: keys}
	for _, s := range rows {
		for r := s.First; r < s.End(); {
			next := sweep{row: s.at + r - s.First, rows: s.End() - r, lo: keys[0].at, hi: last.at + last.N}
			var n int
			if see.left >= 0 {
				next.lo, next.loStep, n = low.find(r + from)
				next.rows = min(next.rows, n)
			}
			if see.right >= 0 {
				next.hi, next.hiStep, n = high.find(r + to)
				next.rows = min(next.rows, n)
			}
			if r += next.rows; current.rows == 0 || !current.extend(&next) {
				end()
				current = next
			}
		}
	}
	end()
	return runs
}

// cutAt divides runs at rows of the tensor. Both are ascending.
func cutAt(runs []run, rows []int) (list []run) {
	i := 0
	for _, r := range runs {
		first, end := r.row, r.row+r.rows
		for ; i < len(rows) && rows[i] < end; i++ {
			if rows[i] <= first {
				continue
			}
			if p, ok := r.part(first, rows[i]-first); ok {
				list = append(list, p)
			}
			first = rows[i]
		}
		if p, ok := r.part(first, end-first); ok {
			list = append(list, p)
		}
	}
	return list
}
