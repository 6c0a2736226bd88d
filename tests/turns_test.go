package tests

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testlevel"
)

// A driver on the CPU spends most of its time compiling. Targets whose kernels have the
// same source take turns there and together cover a table. At the full level each target
// computes the whole table.

// onMatrices reports whether a tier's kernels use cooperative matrices.
func onMatrices(tt cases.Target) bool {
	return tt.Tier == attention.TierCoopMat || tt.Tier == attention.TierCoopMat2
}

// slowToCompile reports whether the driver takes seconds to compile the tier's kernels:
// those with cooperative matrices, on some drivers all of them.
func slowToCompile(tt cases.Target) bool {
	return onMatrices(tt) || tt.Tier == attention.TierScalar && slices.Contains([]string{"swiftshader", "lavapipe-old"}, driverUnderTest().name)
}

// pipelineTurn is a share of a table: every n-th pipeline, with all of its cases. The
// scalar kernel is one module for three types, which differ only in how elements are read
// and written: each type has a third of the table, and each of the three CPU drivers that
// execute the kernel another third.
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

// compileTurn is the share of a table that a null device compiles. The three RADV devices of
// make test take turns, two of them in a tier with cooperative matrices. So do the three of NVK,
// which compiles a pipeline for 1 to 4 s.
func compileTurn[C interface{ Pipeline() string }](s *session, tt cases.Target, all []C) []C {
	switch {
	case full() || s.turns < 2:
		return all
	case tt.Tier == attention.TierScalar:
		return pipelineTurn(all, int(tt.DType)+s.turn, 3)
	case strings.HasPrefix(s.name, "radv-"):
		return pipelineTurn(all, s.turn, 2)
	}
	return pipelineTurn(all, s.turn, s.turns)
}

// propertyTurn reports whether a target runs a property of dense calls. The three CPU drivers
// execute the same scalar kernel in three storage types: for each property each driver takes
// another type. Below level all the tiers with cooperative matrices take turns too. A device of
// the machine runs all.
func (s *session) propertyTurn(property string, tt cases.Target) bool {
	if full() || s.open || s.dev == nil || tt.Tier != attention.TierScalar && !onMatrices(tt) {
		return true
	}
	h := fnv.New32a()
	h.Write([]byte(property))
	if onMatrices(tt) {
		which, tiers := s.matrixTier(tt)
		return testlevel.Get() == testlevel.All || int(h.Sum32()/3)%tiers == which
	}
	return (int(h.Sum32()%3)+s.turn)%3 == int(tt.DType)
}

// firstShare says which pipelines of the first share of a table a target computes in make
// test: every of-th, from the pipeline which. make test-full has the others. lavapipe-old
// compiles the scalar kernels fastest and computes the whole share. SwiftShader computes a
// third, and lavapipe, which alone has cooperative matrices, a sixth. Their tiers take turns.
func (s *session) firstShare(tt cases.Target) (which, of int) {
	switch {
	case onMatrices(tt):
		return s.matrixTier(tt)
	case tt.Tier == attention.TierScalar && s.name == "lavapipe":
		return s.turn, 6
	case tt.Tier == attention.TierScalar && s.name == "swiftshader":
		return s.turn, 3
	}
	return 0, 1
}

// matrixTier says which of the available tiers with cooperative matrices for a storage
// type tt is, and how many there are.
func (s *session) matrixTier(tt cases.Target) (which, tiers int) {
	for _, other := range s.dense() {
		if other == tt {
			which = tiers
		}
		if onMatrices(other) && other.DType == tt.DType {
			tiers++
		}
	}
	return which, tiers
}

// restTurn leaves out, of the pipelines outside the first share, those that are another
// driver's turn: each runs on one of the three drivers on the CPU that execute the scalar
// kernel, in one storage type.
func (s *session) restTurn(some, all []cases.Case, first []string) []cases.Case {
	if s.open || s.dev == nil {
		return some
	}
	number := map[string]int{}
	for _, c := range all {
		if _, known := number[c.Pipeline()]; !known {
			number[c.Pipeline()] = len(number)
		}
	}
	return slices.DeleteFunc(slices.Clone(some), func(c cases.Case) bool {
		return !slices.Contains(first, c.Pipeline()) && number[c.Pipeline()]/3%3 != s.turn
	})
}

// matrixDims are the pipelines of the dense table that drivers on the CPU compile for tiers with
// cooperative matrices: they show every facet and every pair of head dimensions. Tier scalar
// computes the others, and GPUs do on both tiers.
func matrixDims(all []cases.Case) []string {
	return firstPipelines(all, func(c cases.Case) []string {
		return append(caseFacets(c), fmt.Sprint("head dimensions ", c.D, ", ", c.Dv))
	})
}

// halfTermsShare is the share of a table for float32 on cooperative matrices with terms of
// float16, which only drivers on the CPU compute: 15 to 20 s for a pipeline. The tiers, from
// one source, take turns in the first share, which shows every facet and every tile, all in
// make test-full. A GPU at level all computes the whole table, with terms of bfloat16.
func (s *session) halfTermsShare(tt cases.Target, all []cases.Case) []cases.Case {
	which, tiers := s.matrixTier(tt)
	number := map[string]int{}
	for i, p := range firstPipelines(all, func(c cases.Case) []string {
		return append(caseFacets(c), fmt.Sprint("head dimensions over 64 ", max(c.D, c.Dv) > 64, ", masked ", c.Causal != attention.CausalNone))
	}) {
		number[p] = i
	}
	var some []cases.Case
	for _, c := range all {
		if i, mine := number[c.Pipeline()]; mine && i%tiers == which && testlevel.Share(false) {
			some = append(some, c)
		}
	}
	return some
}
