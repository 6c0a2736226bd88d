package problem

import (
	"fmt"

	"vkattn/internal/enum"
)

// Causal is attention.Causal, whose comment documents it.
type Causal uint8

// Masks. The zero value attends to every key.
const (
	CausalNone  Causal = iota
	TopLeft            // col <= row: row 0 sees key 0
	BottomRight        // col <= row + Sk - Sq: the last row sees the last key
)

var causalNames = []string{"none", "top-left", "bottom-right"}

// Valid reports whether c is one of the named masks.
func (c Causal) Valid() bool { return int(c) < len(causalNames) }

// Visible is the number of keys that query row may attend to. They are always
// a prefix, keys 0..Visible-1; 0 when the row attends to nothing, which
// happens with BottomRight and Sq > Sk.
func (c Causal) Visible(row, sq, sk int) int {
	n := sk
	switch c {
	case TopLeft:
		n = min(row+1, sk)
	case BottomRight:
		// sk - sq first: row + sk could pass the range of a 32-bit int.
		n = min(row+(sk-sq)+1, sk)
	}
	return max(n, 0)
}

// String is "none", "top-left" or "bottom-right".
func (c Causal) String() string { return enum.Name("Causal", causalNames, uint8(c)) }

// ParseCausal is attention.ParseCausal.
func ParseCausal(s string) (Causal, error) { return enum.Parse[Causal]("causal mask", causalNames, s) }

// Set makes *Causal a flag.Value.
func (c *Causal) Set(s string) error { return enum.Set(c, s, ParseCausal) }

// Type names the flag's kind, for flag packages that ask.
func (c Causal) Type() string { return "causal" }

// MarshalText writes String.
func (c Causal) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText is Set.
func (c *Causal) UnmarshalText(text []byte) error { return c.Set(string(text)) }

// The sliding window of a Config.

// Window is attention.Window, whose comment documents it.
type Window struct {
	set         bool
	left, right int32 // -1: unlimited
}

// WindowOf is attention.WindowOf.
func WindowOf(left, right int) Window {
	return Window{true, windowSide(left), windowSide(right)}
}

func windowSide(n int) int32 {
	if n < 0 {
		return -1
	}
	return int32(min(n, MaxLength))
}

// Given reports whether w limits a side.
func (w Window) Given() bool { return w.set && (w.left >= 0 || w.right >= 0) }

// Left is how many keys before its own position a row attends to; -1: all.
func (w Window) Left() int {
	if !w.set {
		return -1
	}
	return int(w.left)
}

// Right is how many keys after its own position a row attends to; -1: all.
func (w Window) Right() int {
	if !w.set {
		return -1
	}
	return int(w.right)
}

// String is "none" or such as "128,0".
func (w Window) String() string {
	if !w.Given() {
		return "none"
	}
	return fmt.Sprintf("%d,%d", w.left, w.right)
}
