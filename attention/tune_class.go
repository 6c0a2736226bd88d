package attention

import (
	"fmt"
	"math/bits"
)

// Sizes beyond these are one class: by then the grid is many times the device and
// the walk over the keys long, whatever the tile.
const (
	classLength = 8192
	classRows   = 1 << 18
	classGroup  = 8
)

// classOf is the class of shapes that share a tuned tile, as text: everything but
// the tile that picks a pipeline (module, which names tier and access, type, head
// dims, mask, LSE, alignments), and of the shape
//
//	q     Sq rounded up to a power of two, at most 8192: how full a row block is
//	k     Sk likewise: how long the walk over the keys is
//	rows  B*Hq*Sq likewise, at most 2^18: how many workgroups there are
//	group Hq/Hkv likewise, at most 8: how often K and V are read again
func classOf(v variant, cfg Config, s Shape) string {
	causal := cfg.Causal
	if causal == BottomRight && s.Sq == s.Sk {
		causal = TopLeft // the same mask
	}
	lse := ""
	if v.lse {
		lse = " lse"
	}
	return fmt.Sprintf("%s %v d%d/%d %v%s align%d,%d,%d,%d q%d k%d rows%d group%d",
		v.module, v.dtype, v.headDim, v.headDimV, causal, lse, v.align[0], v.align[1], v.align[2], v.align[3],
		bucket(int64(s.Sq), classLength), bucket(int64(s.Sk), classLength), bucket(s.Rows(), classRows), bucket(int64(s.Group()), classGroup))
}

// bucket rounds n up to a power of two, at most most.
func bucket(n, most int64) int64 {
	if n >= most {
		return most
	}
	return 1 << bits.Len64(uint64(n-1))
}

// smallest is s with as few batches as leave it among the largest of its class:
// what is timed in its place.
func shrunkBatch(s Shape) Shape {
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
