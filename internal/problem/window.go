package problem

import "fmt"

// The sliding window of a Config.

// Window limits each row to the keys near its own position: with Left and Right keys to
// either side, the row at position i attends to keys i-Left to i+Right that the causal mask
// and the length allow. The zero value is no window; [WindowOf] makes one. [Config].Causal
// aligns rows with keys, or Config.Align without a causal mask.
type Window struct {
	set         bool
	left, right int32 // -1: unlimited
}

// WindowOf is a Window of left keys before and right keys after a row's position; a
// negative number means no limit on that side.
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
