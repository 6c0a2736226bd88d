package bench

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"vkattn/attention"
)

// Lengths are those of each sequence of a batch, as ROWS/KEYS, a number in front
// of sequences alike: "600*1/1024,5*2048/2048". It is a string so that a Problem
// is comparable; [ParseLengths] makes it. Empty: all sequences are as long as the
// Shape says.
type Lengths string

// maxSequences bounds a batch; one of more is a slip of the pen.
const maxSequences = 1 << 16

// ParseLengths reads a comma list of KEYS or ROWS/KEYS, with "N*" in front of an
// item that stands for N sequences. Without ROWS a sequence has rows of them, or
// as many as keys where rows is 0. A length may be 0, not every one.
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
		one := fmt.Sprintf("%d/%d", r, keys)
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

// lists are the rows and the keys of each sequence.
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

// bound makes the shape that of the sequences.
func (l Lengths) bound(s *attention.Shape) {
	rows, keys := l.lists()
	s.B, s.Sq, s.Sk = len(rows), 1, 1
	for i := range rows {
		s.Sq, s.Sk = max(s.Sq, rows[i]), max(s.Sk, keys[i])
	}
}
