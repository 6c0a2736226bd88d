package problem

import "fmt"

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
