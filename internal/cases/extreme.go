package cases

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"

	"vkattn/internal/problem"
)

// Extremes are numbers at the ends of their ranges. The zero value keeps the ordinary
// numbers of a case.
type Extremes struct {
	// Sinks and Slopes of the query heads, repeated if there are more heads; nil: ordinary
	// ones.
	Sinks, Slopes []float32

	// Bias values. A quarter of the rows have one of them at every key, a quarter have one
	// drawn for each key, a quarter have them at one key in eight, and a quarter have
	// ordinary numbers.
	Bias []float32

	// KScales and VScales are scales of keys, of Scaled types. Every key has one of them; NaN
	// stands for an ordinary scale, and ScaleNaN for NaN.
	KScales, VScales []float32

	Q, K, V float32 // factors on the numbers of Q, K and V; 0: 1

	// NonFinite makes up to three numbers of Q, K and V of a sequence Inf or NaN; those of
	// float8 e4m3 NaN, and none of int8 and of blocks.
	NonFinite bool
	// FiniteScores leaves Inf out of Q and K: a score of -Inf has weight 0, and whether 0 times
	// that Inf reaches a gradient is not defined.
	FiniteScores bool
}

// ScaleNaN is a NaN among the scales of an Extremes.
var ScaleNaN = math.Float32frombits(scaleNaNBits)

const scaleNaNBits = 0x7fc00bad

// plantNonFinite makes some numbers of a sequence Inf or NaN.
func (c *Case) plantNonFinite(id int, q, k, v []float32) {
	if !c.Extremes.NonFinite {
		return
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	r := rand.New(rand.NewPCG(c.mix(mixNonFinite, id), 0))
	for i, x := range [][]float32{q, k, v} {
		of := []float32{nan, inf, -inf}
		switch {
		case i == 1 && c.KeyType == problem.KVFP8, i == 2 && c.valueType() == problem.KVFP8, i < 2 && c.Extremes.FiniteScores:
			of = of[:1]
		case i == 1 && (c.KeyType == problem.KVInt8 || c.KeyType.Blocked()), i == 2 && (c.valueType() == problem.KVInt8 || c.valueType().Blocked()):
			continue
		}
		for n := r.IntN(4); n > 0 && len(x) > 0; n-- {
			x[r.IntN(len(x))] = of[r.IntN(len(of))]
		}
	}
}

// multiply applies the factors to the numbers of Q, K and V.
func (e *Extremes) multiply(q, k, v []float32) {
	for _, f := range []struct {
		x      []float32
		factor float32
	}{{q, e.Q}, {k, e.K}, {v, e.V}} {
		if f.factor != 0 {
			multiply(f.x, f.factor)
		}
	}
}

// extremeBias is the bias of a slot; ok is false if the slot has an ordinary one.
func (c *Case) extremeBias(id, h, row, t int) (x float32, ok bool) {
	list := c.Extremes.Bias
	if list == nil {
		return 0, false
	}
	kind := c.mix(mixExtremeBias, id, h, row)
	which := kind >> 8
	each := c.mix(mixExtremeBias, id, h, row, t)
	switch kind % 4 {
	case 0:
		return 0, false
	case 1:
	case 2:
		which = each
	case 3:
		if each%8 > 0 {
			return 0, false
		}
		which = each >> 8
	}
	return storable(list[which%uint64(len(list))], c.Bias.DType), true
}

// storable is x rounded to a storage type, with finite numbers clamped to its range.
func storable(x float32, dtype problem.DType) float32 {
	most := map[problem.DType]float32{problem.F16: 65504, problem.BF16: 0x1.fep127, problem.F32: math.MaxFloat32}[dtype]
	if !math.IsInf(float64(x), 0) {
		x = max(-most, min(most, x))
	}
	return decodeFloats(encodeFloats([]float32{x}, dtype), dtype)[0]
}

// extremeScale is the scale of a key; ok is false if the key has an ordinary one.
func (c *Case) extremeScale(stream, id, kv, t int) (x float32, ok bool) {
	list := c.Extremes.KScales
	if stream == mixVScale {
		list = c.Extremes.VScales
	}
	if list == nil {
		return 0, false
	}
	x = list[c.mix(mixExtremeScale, stream, id, kv, t)%uint64(len(list))]
	return x, x == x || math.Float32bits(x) == scaleNaNBits
}

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
