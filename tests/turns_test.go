package tests

import (
	"hash/fnv"
	"slices"

	"vkattn/attention"
	"vkattn/attention/cases"
)

// What a driver on the CPU spends its time on is compiling. Where targets share the
// source of their kernels they take turns there, and together cover a table; at the full
// level each does all of it.

// onMatrices reports whether a tier's kernels are those with cooperative matrices.
func onMatrices(tt cases.Target) bool {
	return tt.Tier == attention.TierCoopMat || tt.Tier == attention.TierCoopMat2
}

// slowToCompile reports whether the tier's kernels take the driver seconds to compile:
// those with matrices, and some drivers all of them.
func slowToCompile(tt cases.Target) bool {
	return onMatrices(tt) || tt.Tier == attention.TierScalar && slices.Contains([]string{"swiftshader", "lavapipe-old"}, driverUnderTest().name)
}

// pipelineTurn is a part of a table: every n-th of its pipelines, with all of their
// cases. The scalar kernel is one module for the three types, which differ in how elements
// are read and written: each has a third, and the three CPU drivers that execute it another
// third each.
func pipelineTurn[C interface{ Pipeline() string }](all []C, which, n int) []C {
	number := map[string]int{}
	var some []C
	for _, c := range all {
		i, known := number[c.Pipeline()]
		if !known {
			i = len(number)
			number[c.Pipeline()] = i
		}
		if i%n == which%n {
			some = append(some, c)
		}
	}
	return some
}

// compileTurn is the part of a table that a driver compiles which executes nothing. Three
// of them have the scalar tier, two the one with matrices.
func compileTurn[C interface{ Pipeline() string }](s *session, tt cases.Target, all []C) []C {
	switch {
	case full():
		return all
	case tt.Tier == attention.TierScalar:
		return pipelineTurn(all, int(tt.DType)+s.turn, 3)
	}
	return pipelineTurn(all, s.turn, 2)
}

// propertyTurn reports whether a target runs a property of dense calls. The three CPU drivers
// execute the same scalar kernel in three storage types: for each property each driver takes
// another type. A device of the machine runs all.
func (s *session) propertyTurn(property string, tt cases.Target) bool {
	if full() || s.open || s.dev == nil || tt.Tier != attention.TierScalar {
		return true
	}
	h := fnv.New32a()
	h.Write([]byte(property))
	return (int(h.Sum32()%3)+s.turn)%3 == int(tt.DType)
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
