package bench

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"vkattn/attention"
)

// Lengths are the lengths of the sequences of a batch as text: ROWS/KEYS for each
// sequence, or N*ROWS/KEYS for N equal ones, as in "600*1/1024,5*2048/2048". It is a
// string so that a Problem is comparable; [ParseLengths] returns it. If it is empty, all
// sequences have the lengths of the Shape.
type Lengths string

// maxSequences bounds a batch. A larger one is a mistake in the list.
const maxSequences = 1 << 16

// ParseLengths parses a comma list of KEYS, ROWS/KEYS or N*ROWS/KEYS, where N is a number
// of equal sequences. A sequence without ROWS has the given rows, or as many as keys if
// rows is 0. Some lengths may be 0, but not all.
func ParseLengths(s string, rows int) (Lengths, error) {
	var out []string
	sequences, longest := 0, 0
	for _, item := range strings.Split(s, ",") {
		n, lengths := 1, strings.TrimSpace(item)
		if times, rest, ok := strings.Cut(lengths, "*"); ok {
			var err error
			if n, err = length(times, item); err != nil {
				return "", err
			}
			lengths = rest
		}
		sequences += n
		if n == 0 || sequences > maxSequences {
			return "", fmt.Errorf("%q: want 1 to %d sequences", s, maxSequences)
		}
		first, second, both := strings.Cut(lengths, "/")
		if !both {
			second = first
		}
		keys, err := length(second, item)
		if err != nil {
			return "", err
		}
		r := rows
		switch {
		case both:
			if r, err = length(first, item); err != nil {
				return "", err
			}
		case rows == 0:
			r = keys
		}
		longest = max(longest, min(keys, r))
		one := sequence(r, keys)
		if n > 1 {
			one = fmt.Sprintf("%d*%s", n, one)
		}
		out = append(out, one)
	}
	if longest == 0 {
		return "", fmt.Errorf("%q: no sequence has rows and keys", s)
	}
	return Lengths(strings.Join(out, ",")), nil
}

// sequence is an item of Lengths.
func sequence(rows, keys int) string { return fmt.Sprintf("%d/%d", rows, keys) }

func length(s, item string) (int, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 31)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%q: %s is over %d", item, strings.TrimSpace(s), attention.MaxLength)
	}
	if err != nil {
		return 0, fmt.Errorf("%q: want KEYS, ROWS/KEYS or N*ROWS/KEYS", item)
	}
	return int(n), nil
}

// lists returns the rows and keys of each sequence.
func (l Lengths) lists() (rows, keys []int) {
	for _, item := range strings.Split(string(l), ",") {
		n := 1
		if times, rest, ok := strings.Cut(item, "*"); ok {
			n, _ = strconv.Atoi(times)
			item = rest
		}
		r, k, _ := strings.Cut(item, "/")
		nr, _ := strconv.Atoi(r)
		nk, _ := strconv.Atoi(k)
		rows, keys = append(rows, slices.Repeat([]int{nr}, n)...), append(keys, slices.Repeat([]int{nk}, n)...)
	}
	return rows, keys
}

// bound sets batch and lengths of a shape to the number of sequences and their largest
// lengths.
func (l Lengths) bound(s *attention.Shape) {
	rows, keys := l.lists()
	s.B, s.Sq, s.Sk = len(rows), 1, 1
	for i := range rows {
		s.Sq, s.Sk = max(s.Sq, rows[i]), max(s.Sk, keys[i])
	}
}
