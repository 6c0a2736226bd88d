package tests

import (
	"slices"

	"vkattn/attention"
	"vkattn/attention/cases"
)

// What a driver on the CPU spends its time on is compiling. Where targets share the
// source of their kernels they take turns there, and together cover a table; at the full
// level each does all of it.

// turn is every third case. The scalar kernel is one module for the three types,
// which differ in how elements are read and written.
func turn[C any](all []C, which int) []C {
	var some []C
	for i, c := range all {
		if i%3 == which%3 {
			some = append(some, c)
		}
	}
	return some
}

// onMatrices reports whether a tier's kernels are those with cooperative matrices.
func onMatrices(tt cases.Target) bool {
	return tt.Tier == attention.TierCoopMat || tt.Tier == attention.TierCoopMat2
}

// slowToCompile reports whether the tier's kernels take the driver seconds to compile:
// those with matrices, and some drivers all of them.
func slowToCompile(tt cases.Target) bool {
	return onMatrices(tt) || tt.Tier == attention.TierScalar && slices.Contains([]string{"swiftshader", "lavapipe-old"}, driverUnderTest().name)
}

// matrixTurn is the part of a table that one of the tiers with cooperative matrices has
// on a driver that offers several: every other pipeline of two. They are one source.
func (s *session) matrixTurn(tt cases.Target, all []*checkedCase) []*checkedCase {
	which, tiers := s.matrixTier(tt)
	number := map[string]int{}
	var some []*checkedCase
	for _, c := range all {
		n, known := number[c.Pipeline()]
		if !known {
			n = len(number)
			number[c.Pipeline()] = n
		}
		if n%tiers == which {
			some = append(some, c)
		}
	}
	return some
}

// matrixTier says which of the available tiers with cooperative matrices for a storage
// type tt is, and how many there are.
func (s *session) matrixTier(tt cases.Target) (which, tiers int) {
	for _, other := range s.available() {
		if other == tt {
			which = tiers
		}
		if onMatrices(other) && other.DType == tt.DType {
			tiers++
		}
	}
	return which, tiers
}
