package parallel

import (
	"fmt"
	"slices"

	"vkattn/attention"
)

// Span is a range of consecutive rows or keys.
type Span struct{ First, N int }

// End is the row after the last one.
func (s Span) End() int { return s.First + s.N }

// Split says which rows, or keys, of a sequence each rank holds. A rank's tensors have its
// spans one after the other. For packed sequences it splits the rows of all sequences.
type Split [][]Span

// Contiguous gives rank r the r-th of equal chunks. Lengths differ by at most one. It returns nil if n is
// not 0 to attention.MaxLength, or ranks not 1 to MaxRanks.
func Contiguous(n, ranks int) Split {
	return splitOf(n, ranks, func(s Split, r int) { s.add(r, chunk(n, ranks, r)) })
}

// Zigzag cuts the sequence into two chunks a rank and gives rank r chunk r and, counted from
// the end, chunk r. Under a causal mask every rank then has the same work. It returns nil as Contiguous
// does.
func Zigzag(n, ranks int) Split {
	return splitOf(n, ranks, func(s Split, r int) {
		s.add(r, chunk(n, 2*ranks, r))
		s.add(r, chunk(n, 2*ranks, 2*ranks-1-r))
	})
}

// MaxStriped is the most rows of a striped split. A span takes 16 bytes of host memory in each of its copies.
const MaxStriped = 1 << 24

// Striped deals rows to the ranks in turn, as Striped Attention does: row i belongs to rank i mod ranks. It returns
// nil as Contiguous does, and if n is above MaxStriped. Modes refuse it where it would take thousands of calls of
// attention.
func Striped(n, ranks int) Split {
	if n > MaxStriped {
		return nil
	}
	return splitOf(n, ranks, func(s Split, r int) {
		for i := r; i < n; i += ranks {
			s.add(r, Span{i, 1})
		}
	})
}

// splitOf is a split of n rows to which add adds the spans of each rank; nil if it cannot be.
func splitOf(n, ranks int, add func(s Split, r int)) Split {
	if n < 0 || n > attention.MaxLength || ranks < 1 || ranks > MaxRanks {
		return nil
	}
	s := make(Split, ranks)
	for r := range s {
		add(s, r)
	}
	return s
}

// chunk is one of the equal chunks of n rows.
func chunk(n, chunks, i int) Span {
	at := func(i int) int { return int(int64(n) * int64(i) / int64(chunks)) }
	return Span{at(i), at(i+1) - at(i)}
}

// add appends a span to those of a rank, or extends the last one.
func (s Split) add(rank int, x Span) {
	if x.N == 0 {
		return
	}
	if list := s[rank]; len(list) > 0 && list[len(list)-1].End() == x.First {
		list[len(list)-1].N += x.N
		return
	}
	s[rank] = append(s[rank], x)
}

// Count is the number of rows that a rank holds.
func (s Split) Count(rank int) (n int) {
	if rank < 0 || rank >= len(s) {
		return 0
	}
	return countOf(s[rank])
}

func countOf(spans []Span) (n int) {
	for _, x := range spans {
		n += x.N
	}
	return n
}

func (s Split) clone() Split {
	c := slices.Clone(s)
	for i := range c {
		c[i] = slices.Clone(c[i])
	}
	return c
}

// encode appends all spans to b. A missing split and an empty one differ.
func (s Split) encode(b []byte) []byte {
	b = encodeLength(b, len(s), s == nil)
	for _, spans := range s {
		b = encodeLength(b, len(spans), false)
		for _, x := range spans {
			b = appendInts(b, x.First, x.N)
		}
	}
	return b
}

// check reports a split that does not hold each of n rows exactly once, ascending in each
// rank.
func (s Split) check(field string, n, ranks int) error {
	if len(s) != ranks {
		return &attention.ShapeError{Field: field, Got: fmt.Sprintf("spans of %d ranks", len(s)), Want: fmt.Sprintf("those of %d", ranks)}
	}
	var all []Span
	for r, list := range s {
		end := 0
		for _, x := range list {
			if x.N < 1 || x.First < end || x.First > n-x.N {
				return &attention.ShapeError{Field: fmt.Sprintf("%s[%d]", field, r), Got: list,
					Want: fmt.Sprintf("ascending spans of 0 to %d", n)}
			}
			end = x.End()
		}
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b Span) int { return a.First - b.First })
	end := 0
	for _, x := range all {
		if x.First != end {
			return &attention.ShapeError{Field: field, Got: fmt.Sprintf("%v after row %d", x, end), Want: "every row in one rank"}
		}
		end = x.End()
	}
	if end != n {
		return &attention.ShapeError{Field: field, Got: fmt.Sprintf("%d rows", end), Want: n}
	}
	return nil
}

// joined returns the spans of consecutive ranks in ascending order.
func (s Split) joined(first, ranks int) []Span {
	var all []Span
	for _, list := range s[first : first+ranks] {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b Span) int { return a.First - b.First })
	one := Split{nil}
	for _, x := range all {
		one.add(0, x)
	}
	return one[0]
}

// by joins the spans of every n consecutive ranks.
func (s Split) by(n int) Split {
	joined := make(Split, len(s)/n)
	for i := range joined {
		joined[i] = s.joined(i*n, n)
	}
	return joined
}

// place is a piece of a rank's spans: n rows from row at of the rank's tensor are rows from
// to of another list of spans that holds them.
type place struct{ at, to, n int }

// places says where the rows of spans lie in the tensor of all, which holds them too.
func places(spans, all []Span) (list []place) {
	at, to, i := 0, 0, 0
	for _, x := range spans {
		for i < len(all) && all[i].First < x.End() {
			y := all[i]
			if first, end := max(x.First, y.First), min(x.End(), y.End()); first < end {
				list = append(list, place{at + first - x.First, to + first - y.First, end - first})
			}
			if y.End() > x.End() { // it goes on with the next span
				break
			}
			to += y.N
			i++
		}
		at += x.N
	}
	return list
}

// progression is count places of the same length at constant distances. In the rank's tensor they follow one another.
type progression struct {
	place
	count int
	step  int // rows from a place to the next in the other tensor
}

// progressions merges equally spaced places into one strided run. A striped order, in which the ranks have
// tokens in turn, is one run, whatever its length.
func progressions(list []place) (joined []progression) {
	for _, p := range list {
		if n := len(joined) - 1; n >= 0 && joined[n].n == p.n {
			last := &joined[n]
			if last.count == 1 {
				last.step = p.to - last.to
			}
			if p.to == last.to+last.count*last.step {
				last.count++
				continue
			}
		}
		joined = append(joined, progression{place: p, count: 1})
	}
	return joined
}
