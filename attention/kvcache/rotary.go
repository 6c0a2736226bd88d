package kvcache

import (
	"fmt"
	"math"

	"vkattn/internal/enum"
	"vkattn/internal/problem"
)

// RotaryStyle says which elements of a row form the pairs of a rotary embedding.
type RotaryStyle uint8

// Styles. Permuting the columns of the projections of Q and K turns one into the other.
// Weights are made for one of them.
const (
	RotaryInterleaved RotaryStyle = iota // elements 2i and 2i+1 (GPT-J, the RoFormer paper, "norm" in local inference)
	RotaryHalfSplit                      // elements i and i + Dim/2 (GPT-NeoX, LLaMA as Hugging Face has it)
)

var rotaryNames = []string{"interleaved", "half-split"}

// Valid reports whether s is one of the named styles.
func (s RotaryStyle) Valid() bool { return int(s) < len(rotaryNames) }

// String is "interleaved" or "half-split".
func (s RotaryStyle) String() string { return enum.Name("RotaryStyle", rotaryNames, uint8(s)) }

// ParseRotaryStyle reads what String writes, in any case. Another word is an error that
// lists the names and matches [attention.ErrInvalid].
func ParseRotaryStyle(s string) (RotaryStyle, error) {
	return enum.Parse[RotaryStyle]("rotary style", rotaryNames, s)
}

// Set makes *RotaryStyle a flag.Value.
func (s *RotaryStyle) Set(text string) error { return enum.Set(s, text, ParseRotaryStyle) }

// Type names the flag's kind, for flag packages that ask.
func (s RotaryStyle) Type() string { return "rotary-style" }

// Rotary is a rotary position embedding (Su et al., "RoFormer", 2021). Pair i of a row
// at position t is rotated by its own angle,
//
//	x' = x cos[t, i] - y sin[t, i]    y' = y cos[t, i] + x sin[t, i]
//
// The caller gives the cosines and sines and so chooses the angles. The zero value
// rotates nothing.
type Rotary struct {
	Dim   int // elements rotated, an even number; 0: none
	First int // index of the first rotated element; elements before and after stay unchanged
	Style RotaryStyle
}

// check reports what is wrong with r for rows of headDim elements.
func (r Rotary) check(headDim int) error {
	switch {
	case r.Dim < 0 || r.Dim%2 != 0:
		return &problem.ShapeError{Field: "Rotary.Dim", Got: r.Dim, Want: "an even number, or 0 for none"}
	case r.First < 0 || r.First > headDim:
		return &problem.ShapeError{Field: "Rotary.First", Got: r.First, Want: problem.Phrase(fmt.Sprintf("0 to ${HeadDim} (%d)", headDim))}
	case r.Dim > headDim-r.First:
		return &problem.ShapeError{Field: "Rotary.Dim", Got: r.Dim, Want: problem.Phrase(fmt.Sprintf("at most %d, ${HeadDim} less ${First}", headDim-r.First))}
	case !r.Style.Valid():
		return &problem.ShapeError{Field: "Rotary.Style", Got: r.Style, Want: "interleaved or half-split"}
	}
	return nil
}

// pair returns the elements of pair i.
func (r Rotary) pair(i int) (x, y int) {
	if r.Style == RotaryHalfSplit {
		return r.First + i, r.First + i + r.Dim/2
	}
	return r.First + 2*i, r.First + 2*i + 1
}

// Tables returns cosines and sines of the usual angles, t * base^(-2i/Dim), for positions
// 0 to positions-1: [positions, Dim/2] each, computed in float64. base is 10000 in the
// paper and larger in models with long contexts. Tables returns nil without positions or
// if Dim is below 2.
func (r Rotary) Tables(positions int, base float64) (cos, sin []float32) {
	pairs := r.Dim / 2
	if pairs < 1 || positions < 1 {
		return nil, nil
	}
	cos, sin = make([]float32, positions*pairs), make([]float32, positions*pairs)
	for i := range pairs {
		step := math.Pow(base, -2*float64(i)/float64(r.Dim))
		for t := range positions {
			s, c := math.Sincos(float64(t) * step)
			cos[t*pairs+i], sin[t*pairs+i] = float32(c), float32(s)
		}
	}
	return cos, sin
}
