package problem

import (
	"fmt"
	"math"

	"vkattn/internal/arith"
)

// Shape is attention.Shape, whose comment documents it.
type Shape struct {
	B, Hq int
	Hkv   int
	Sq    int
	Sk    int
}

// MaxLength is attention.MaxLength.
const MaxLength = math.MaxInt32

// KVHeads is Hkv with its default, Hq, filled in.
func (s Shape) KVHeads() int {
	if s.Hkv == 0 {
		return s.Hq
	}
	return s.Hkv
}

// Group is the number of query heads that share a key head; 0 where there are no
// heads.
func (s Shape) Group() int {
	if s.KVHeads() < 1 {
		return 0
	}
	return s.Hq / s.KVHeads()
}

// Rows is B * Hq * Sq, the number of softmax rows.
func (s Shape) Rows() int64 { return int64(s.B) * int64(s.Hq) * int64(s.Sq) }

// Validate reports the first wrong size as a *ShapeError.
func (s Shape) Validate() error { return ValidateSizes(s, 1, 1) }

// ValidateSizes is Shape.Validate with the least batch and rows: a call may have no sequences, a
// merge no rows.
func ValidateSizes(s Shape, leastB, leastSq int) error {
	for _, f := range [...]struct {
		name     string
		n, least int
	}{{"B", s.B, leastB}, {"Hq", s.Hq, 1}, {"Hkv", s.KVHeads(), 1}, {"Sq", s.Sq, leastSq}, {"Sk", s.Sk, 1}} {
		if f.n < f.least || f.n > MaxLength {
			return &ShapeError{f.name, f.n, fmt.Sprintf("%d to %d", f.least, MaxLength)}
		}
	}
	if s.Hq%s.KVHeads() != 0 {
		return &ShapeError{"Hkv", s.Hkv, Phrase(fmt.Sprintf("a divisor of ${Hq} (%d)", s.Hq))}
	}
	if _, ok := arith.Product(s.B, s.Hq, s.Sq); !ok {
		return &ShapeError{"B*Hq*Sq", fmt.Sprintf("%d*%d*%d", s.B, s.Hq, s.Sq), "a product below 2^63"}
	}
	return nil
}

// Cells is the number of unmasked (row, col) pairs of one (batch, query head).
func (s Shape) Cells(c Causal) uint64 {
	sq, sk := uint64(s.Sq), uint64(s.Sk)
	// Row r sees clamp(r+first, 0, sk) keys.
	var first int64
	switch c {
	case TopLeft:
		first = 1
	case BottomRight:
		first = int64(s.Sk) - int64(s.Sq) + 1
	default:
		return sq * sk
	}
	var empty uint64 // rows that see nothing
	if first < 0 {
		empty = min(uint64(-first), sq)
		first = 0
	}
	// From there the counts grow by one a row, from lo, until they reach sk.
	rows := sq - empty
	lo := uint64(first)
	if lo >= sk {
		return rows * sk
	}
	ramp := min(rows, sk-lo)
	return ramp*lo + ramp*(ramp-1)/2 + (rows-ramp)*sk
}

// String is such as "B2 H8/2 S1024x4096", leaving out what repeats.
func (s Shape) String() string {
	heads := fmt.Sprint(s.Hq)
	if kv := s.KVHeads(); kv != s.Hq {
		heads += fmt.Sprintf("/%d", kv)
	}
	seq := fmt.Sprint(s.Sq)
	if s.Sk != s.Sq {
		seq += fmt.Sprintf("x%d", s.Sk)
	}
	return fmt.Sprintf("B%d H%s S%s", s.B, heads, seq)
}

// MaxStates is attention.MaxStates.
const MaxStates = 256
