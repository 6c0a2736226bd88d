package cases

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
)

// wildPieces are the vectors of integers that a call reads.
var wildPieces = []int{pieceCuQ, pieceCuK, pieceUsedQ, pieceUsedK, pieceTable, pieceOffsets, pieceTokens}

// Wild is the memory with arbitrary numbers in every vector of integers: negative, huge,
// out of order, and some correct ones. A call must survive them and write only O and LSE:
// see [Problem.TrespassTensors].
func (p *Problem) Wild(seed uint64) [][]byte {
	images := append([][]byte(nil), p.Image...)
	r := rand.New(rand.NewPCG(seed, 0x31d))
	limit := 2 * max(p.args.Sq, p.args.Sk, p.lengths.totalQ, p.lengths.totalK, p.lengths.pages)
	for _, which := range wildPieces {
		m := p.piece[which]
		if m < 0 {
			continue
		}
		images[m] = append([]byte(nil), images[m]...)
		keep := r.IntN(3) // so that wild numbers meet right ones
		for at := 0; at < len(images[m]); at += 4 {
			n := []int{-1, math.MinInt32, math.MaxInt32, math.MaxInt32 - 63, 1 << 30, -(1 << 20), 0, r.IntN(limit + 1), -r.IntN(limit + 1)}[r.IntN(9)]
			if r.IntN(3) >= keep {
				binary.LittleEndian.PutUint32(images[m][at:], uint32(int32(n)))
			}
		}
	}
	return images
}

// TrespassTensors is Trespass for calls that may write any row of O and LSE, including
// padding rows.
func (p *Problem) TrespassTensors(before, after [][]byte) error {
	batches, rows := p.queryExtent()
	size := int64(p.DType.Size())
	allowed := make([][]bool, len(before))
	allow := func(which int, at, n int64) {
		m := p.piece[which]
		if allowed[m] == nil {
			allowed[m] = make([]bool, len(before[m]))
		}
		for i := range n {
			allowed[m][at+i] = true
		}
	}
	for b := range batches {
		for h := range p.Hq {
			for row := range rows {
				allow(pieceO, size*p.element(&p.args.O, p.Hq, rows, p.Dv, b, h, row), size*int64(p.Dv))
				if p.LSE {
					allow(pieceLSE, 4*p.element(&p.args.LSE, p.Hq, rows, 1, b, h, row), 4)
				}
			}
		}
	}
	return p.trespass(before, after, allowed)
}
