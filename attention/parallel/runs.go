package parallel

import (
	"slices"

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

// keySpan is a span of keys of one sequence, with its first row in the tensor.
type keySpan struct {
	Span
	at int
}

// before is the number of the tensor's row at which keys of number x and later begin.
func before(spans []keySpan, x int) int {
	at := spans[0].at
	for _, s := range spans {
		at = s.at + min(max(x-s.First, 0), s.N)
		if x < s.End() {
			break
		}
	}
	return at
}

// runsOf lists the runs of a rank's rows over the keys of another rank, ascending by row.
// Each row is in at most one of them.
func runsOf(see sight, sequences []sequence, rows, keys []Span) (runs []run) {
	var mine []keySpan
	at := 0
	for _, r := range rows {
		for i := range sequences {
			q := &sequences[i]
			first, end := max(r.First, q.row), min(r.End(), q.row+q.rows)
			if first >= end {
				continue
			}
			mine = mine[:0]
			keyAt := 0
			for _, k := range keys {
				if lo, hi := max(k.First, q.key), min(k.End(), q.key+q.keys); lo < hi {
					mine = append(mine, keySpan{Span{lo, hi - lo}, keyAt + lo - k.First})
				}
				keyAt += k.N
			}
			if len(mine) > 0 {
				runs = appendRuns(runs, see, q, first, end, at+first-r.First, mine)
			}
		}
		at += r.N
	}
	return runs
}

// appendRuns adds the runs of rows first to end-1 of one sequence, which lie at row at of the
// tensor.
func appendRuns(runs []run, see sight, q *sequence, first, end, at int, keys []keySpan) []run {
	// Row r sees keys from r+from to r+to-1.
	position := q.key - q.row
	if see.align == attention.BottomRight {
		position += q.keys - q.rows
	}
	from, to := position-see.left, position+see.right+1
	cuts := []int{first, end}
	for _, k := range keys {
		for _, x := range [2]int{k.First, k.End()} {
			// The range's end moves while r+to is in (First, End], its start while r+from is.
			if see.right >= 0 {
				cuts = append(cuts, x+1-to)
			}
			if see.left >= 0 {
				cuts = append(cuts, x+1-from)
			}
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	last := keys[len(keys)-1]
	limits := func(r int) (lo, hi int) {
		lo, hi = keys[0].at, last.at+last.N
		if see.left >= 0 {
			lo = before(keys, r+from)
		}
		if see.right >= 0 {
			hi = before(keys, r+to)
		}
		return lo, hi
	}
	for i, c := range cuts[:len(cuts)-1] {
		if c < first || c >= end {
			continue
		}
		n := cuts[i+1] - c
		lo, hi := limits(c)
		lastLo, lastHi := limits(c + n - 1)
		r := run{row: at + c - first, rows: n, key: lo, keys: lastHi - lo}
		switch {
		case lastLo > lo && lastHi > hi:
			r.shape, r.width = band, hi-lo
		case lastLo > lo:
			r.shape = upper
		case lastHi > hi:
			r.shape = lower
		}
		if r.keys <= 0 || r.shape == band && r.width <= 0 {
			continue
		}
		if k := len(runs) - 1; k >= 0 && runs[k].continues(&r, hi-lo) {
			runs[k].rows, runs[k].keys = runs[k].rows+r.rows, r.keys
			continue
		}
		runs = append(runs, r)
	}
	return runs
}

// continues reports whether a run that follows, whose first row sees some keys, is more of
// the same one.
func (r *run) continues(next *run, keys int) bool {
	if next.row != r.row+r.rows || next.key != r.key || next.shape != r.shape {
		return false
	}
	return r.shape == full && next.keys == r.keys || r.shape == lower && keys == r.keys+1
}

// cutAt divides runs at rows of the tensor, which are ascending.
func cutAt(runs []run, rows []int) (list []run) {
	for _, r := range runs {
		first := r.row
		for _, cut := range append(slices.Clone(rows), r.row+r.rows) {
			if cut <= first || cut > r.row+r.rows {
				continue
			}
			if p, ok := r.part(first, cut-first); ok {
				list = append(list, p)
			}
			first = cut
		}
	}
	return list
}
