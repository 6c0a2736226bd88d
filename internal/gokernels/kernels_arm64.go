package gokernels

import "unsafe"

// hasFast reports whether the CPU has the instructions of kernels_arm64.s: all have.
var hasFast = true

// vectorOf are the lanes of a vector of the functions below.
const vectorOf = 4

// Each works on vectorOf lanes of n keys, with a stride of Lanes scores.

//go:noescape
func weightsOf(s unsafe.Pointer, n int, least, fraction, m unsafe.Pointer)

//go:noescape
func weightsSumOf(s unsafe.Pointer, n int, least, fraction, m, sum, carry unsafe.Pointer)

//go:noescape
func largestOf(s unsafe.Pointer, n int, largest unsafe.Pointer)
