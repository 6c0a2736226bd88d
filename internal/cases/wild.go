package cases

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"

	"vkattn/internal/problem"
)

// wildPieces are the vectors of integers that a call reads.
var wildPieces = []string{"CuQ", "CuK", "UsedQ", "UsedK", "Table", "Offsets", "Tokens"}

// Wild is the memory with arbitrary numbers in every vector of integers: negative, huge,
// out of order, and some correct ones. A call must survive them and write only O and LSE:
// see [Problem.TrespassTensors].
func (p *Problem) Wild(seed uint64) [][]byte {
	images := slices.Clone(p.Image)
	r := rand.New(rand.NewPCG(seed, 0x31d))
	limit := 2 * max(p.args.Sq, p.args.Sk, p.lengths.totalQ, p.lengths.totalK, p.lengths.pages)
	for _, name := range wildPieces {
		m, there := p.pieces[name]
		if !there {
			continue
		}
		images[m] = bytes.Clone(images[m])
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
	return p.trespass(before, after, func(allow allowRow) {
		for _, t := range p.outputs() {
			t.each(func(batch, h, at int) { allow(t, batch, h, at) })
		}
	})
}

// WrongNumbers are numbers out of their ranges in a case, and numbers that devices take in their place.
type WrongNumbers struct {
	Name        string
	Field       string // the first that a call in host memory refuses; "": it takes them too
	Of          Case
	Wrong, Same func(a *problem.Args)
}

// OutOfRange has each kind of number out of its range.
func OutOfRange() []WrongNumbers {
	small := func(seqs ...Seq) Case {
		return Case{
			Name: "out of range", D: 32, Dv: 40, Shape: problem.Shape{Hq: 6, Hkv: 2}, LSE: true, Causal: problem.BottomRight,
			Seqs: seqs, Seed: 7, Layout: Packed,
		}
	}
	base := small(Seq{0, 37, 150}, Seq{1, 37, 150}, Seq{2, 37, 150})
	paged, sparse, padded := base, base, base
	paged.PageSize = 16
	sparse.SparseRatio = 0.3
	padded.LooseQ, padded.LooseK = true, true
	packed := small(Seq{0, 37, 1}, Seq{1, 0, 30}, Seq{2, 9, 150})
	packed.PackedQ, packed.PackedK = true, true
	set := func(v problem.Vector, i, x int) {
		binary.LittleEndian.PutUint32(v.Host[4*(int(v.Offset)+i):], uint32(int32(x)))
	}
	return []WrongNumbers{
		{"lengths beyond the bound", "UsedQ[1]", padded,
			func(a *problem.Args) { set(a.Varlen.UsedQ, 1, a.Sq+1); set(a.Varlen.UsedK, 2, math.MaxInt32) },
			func(a *problem.Args) { set(a.Varlen.UsedQ, 1, a.Sq); set(a.Varlen.UsedK, 2, a.Sk) }},
		{"lengths below 0", "UsedQ[1]", padded,
			func(a *problem.Args) { set(a.Varlen.UsedQ, 1, -1); set(a.Varlen.UsedK, 2, math.MinInt32) },
			func(a *problem.Args) { set(a.Varlen.UsedQ, 1, 0); set(a.Varlen.UsedK, 2, 0) }},
		{"starts below 0", "CuQ[0]", packed,
			func(a *problem.Args) { set(a.Varlen.CuQ, 0, -5); set(a.Varlen.CuK, 0, math.MinInt32) },
			func(a *problem.Args) { set(a.Varlen.CuQ, 0, 0); set(a.Varlen.CuK, 0, 0) }},
		{"ends beyond the tensor", "CuQ[3]", packed,
			func(a *problem.Args) { set(a.Varlen.CuQ, 3, math.MaxInt32); set(a.Varlen.CuK, 3, math.MaxInt32) },
			func(a *problem.Args) { set(a.Varlen.CuQ, 3, a.Varlen.TotalQ); set(a.Varlen.CuK, 3, a.Varlen.TotalK) }},
		{"ends before starts", "CuK[2]", packed,
			func(a *problem.Args) { set(a.Varlen.CuK, 2, math.MinInt32) },
			func(a *problem.Args) { set(a.Varlen.CuK, 2, 0) }},
		{"pages that are none", "Pages.Table[0]", paged,
			func(a *problem.Args) { set(a.Pages.Table, 0, -1); set(a.Pages.Table, 3, a.Pages.Count) },
			func(a *problem.Args) { set(a.Pages.Table, 0, 0); set(a.Pages.Table, 3, 0) }},
		{"lists beyond the tokens", "SparseTokens.Offsets[0]", sparse,
			func(a *problem.Args) {
				set(a.SparseTokens.Offsets, 0, -9)
				set(a.SparseTokens.Offsets, 6, math.MaxInt32)
			},
			func(a *problem.Args) {
				set(a.SparseTokens.Offsets, 0, 0)
				set(a.SparseTokens.Offsets, 6, a.SparseTokens.Total)
			}},
		{"tokens below 0", "", sparse,
			func(a *problem.Args) {
				set(a.SparseTokens.Tokens, 5, -1)
				set(a.SparseTokens.Tokens, 9, math.MinInt32)
			},
			func(a *problem.Args) {
				set(a.SparseTokens.Tokens, 5, 150)
				set(a.SparseTokens.Tokens, 9, math.MaxInt32)
			}},
	}
}

// Changed is the memory with arguments changed.
func (p *Problem) Changed(change func(a *problem.Args)) [][]byte {
	images := make([][]byte, len(p.Image))
	for i, b := range p.Image {
		images[i] = bytes.Clone(b)
	}
	a := p.HostArgs(images)
	change(&a)
	return images
}
