package plan

import (
	"fmt"
	"math/bits"

	"vkattn/internal/problem"
)

// A tuned tile holds for a class of shapes, not only for the shape that was timed. Sizes
// from these on are one class: the grid is then many times the device, and the KV loop is
// long with every tile.
const (
	classLength = 8192
	classRows   = 1 << 18
	classGroup  = 8
)

// ClassOf returns the class of shapes that share a tuned tile, as text. It has everything
// that picks a pipeline except the tile: module (which names tier and access), type, head
// dims, mask, LSE and alignments. Of the shape it has
//
//	q     Sq rounded up to a power of two, at most 8192: how full a row block is
//	k     Sk likewise: how long the KV loop is
//	rows  B*Hq*Sq likewise, at most 2^18: how many workgroups there are
//	group Hq/Hkv likewise, at most 8: how often K and V are read again
func ClassOf(v Variant, cfg problem.Config, s problem.Shape) string {
	causal := cfg.Causal
	if causal == problem.BottomRight && s.Sq == s.Sk {
		causal = problem.TopLeft // the same mask
	}
	lse := ""
	if v.lse {
		lse = " lse"
	}
	return fmt.Sprintf("%s %v d%d/%d %v%s align%d,%d,%d,%d q%d k%d rows%d group%d",
		v.module, v.dtype, v.headDim, v.headDimV, causal, lse, v.align[0], v.align[1], v.align[2], v.align[3],
		bucket(int64(s.Sq), classLength), bucket(int64(s.Sk), classLength), bucket(s.Rows(), classRows), bucket(int64(s.Group()), classGroup))
}

// seeClass notes that a plan depends on the class of Sk.
func (r *Request) seeClass(causal problem.Causal) {
	k := int(bucket(int64(r.Shape.Sk), classLength))
	r.skAtLeast(k/2 + 1)
	if k < classLength {
		r.skAtLeast(k + 1)
	}
	if causal == problem.BottomRight && r.skAtLeast(r.Shape.Sq) {
		r.skAtLeast(r.Shape.Sq + 1)
	}
}

// bucket rounds n up to a power of two, at most most.
func bucket(n, most int64) int64 {
	if n >= most {
		return most
	}
	return 1 << bits.Len64(uint64(n-1))
}

// ShrunkBatch returns s with fewer batches, to be timed in its place: it halves B while
// at least classRows rows are left, the size from which all shapes are one class.
func ShrunkBatch(s problem.Shape) problem.Shape {
	for s.B > 1 {
		less := s
		less.B = (s.B + 1) / 2
		if less.Rows() < classRows {
			break
		}
		s = less
	}
	return s
}
