package plan

import (
	"fmt"
	"math"
	"slices"

	"vkattn/internal/arith"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// f32Tile is a tile of the float32 forward kernel on cooperative matrices
// (forward_coopmat_f32.comp). Each subgroup computes MFrags fragments of query rows of its
// own; with a DimSplit of 2 a pair of subgroups does, each with half of the head dim. K, V and
// Q are there as three terms of 16 bits.
type f32Tile struct {
	fragment
	Subgroups   uint32 `json:"subgroups" try:"4 8 12 16"`
	MFrags      uint32 `json:"m_frags" const:"M_FRAGS" try:"1 2"`               // fragments of M rows per subgroup
	KVTile      uint32 `json:"kv_tile" const:"KV_TILE" try:"16 32 48 64"`       // keys in shared memory at a time
	KVStep      uint32 `json:"kv_step" const:"KV_STEP" try:"16 32"`             // keys of a KV tile multiplied at a time
	QSmemChunks uint32 `json:"q_smem_chunks" const:"Q_SMEM_CHUNKS" try:"0 1 2"` // chunks of Q, of K columns each, in shared memory; the others are in registers
	Fences      uint32 `json:"fences" const:"FENCES" try:"0 1"`                 // 1: loads of K and V are not hoisted over chunks
	Group       uint32 `json:"group" const:"GROUP" try:"1 2 4"`                 // fragments of K or V that a subgroup multiplies at the same time
	Order       uint32 `json:"order" const:"ORDER"`                             // 1: longest row tiles of all heads first
	Unchecked   uint32 `json:"unchecked"`                                       // 1: unmasked tiles are loaded without comparing keys with Sk
	PairTile    uint32 `json:"pair_tile" const:"PAIR_TILE"`                     // keys per KV tile of the loop with pairs of float16; 0: no such loop
	PairGroup   uint32 `json:"pair_group" const:"PAIR_GROUP"`                   // as Group, in that loop
	PairFences  uint32 `json:"pair_fences" const:"PAIR_FENCES"`                 // as Fences, in that loop
	DvSlice     uint32 `json:"dv_slice" const:"DV_SLICE"`                       // columns of O that a workgroup computes
	DimSplit    uint32 `json:"dim_split" const:"DIM_SPLIT"`                     // subgroups that split the head dim of the same rows: 1 or 2
	AliasKV     uint32 `json:"alias_kv" const:"ALIAS_KV"`                       // with DimSplit 2: V overwrites K in shared memory, sum of 1 as terms, 2 as pairs
}

// terms is the number of 16-bit terms of a float32.
const terms = 3

// maxF32Dim is the largest head dim of the kernels of float32.
const maxF32Dim = 256

func (t f32Tile) LocalSize() uint32    { return t.Subgroups * t.Subgroup }
func (t f32Tile) SubgroupSize() uint32 { return t.Subgroup }
func (t f32Tile) Rows() uint32         { return t.Subgroups / max(t.DimSplit, 1) * t.MFrags * t.M }
func (t f32Tile) keys() uint32         { return t.KVTile }
func (t f32Tile) columns() uint32      { return t.DvSlice }
func (t f32Tile) Splits() int          { return 1 }

func (t f32Tile) computes(headDim, headDimV uint32) bool {
	switch t.DimSplit {
	case 1:
		if t.AliasKV != 0 {
			return false
		}
	case 2: // partial scores are exchanged once per KV tile, four elements of a lane at a time
		if t.Subgroups%2 != 0 || t.M*t.N%(4*max(t.Subgroup, 1)) != 0 || t.KVStep != t.KVTile || t.PairTile > t.KVTile || t.AliasKV > 3 {
			return false
		}
	default:
		return false
	}
	return t.DvSlice >= headDimV && t.KVTile%t.KVStep == 0 && t.KVStep%t.N == 0 && t.QSmemChunks <= t.chunks(headDim) &&
		t.PairTile%t.KVTile == 0 && (t.PairTile == 0 || t.PairGroup > 0)
}

// chunks returns the number of fragments along the head dim that a subgroup has.
func (t f32Tile) chunks(headDim uint32) uint32 { return arith.CeilDiv32(headDim, t.K*t.DimSplit) }

// outs returns the number of fragments of O along its columns that a subgroup has.
func (t f32Tile) outs() uint32 { return arith.CeilDiv32(t.DvSlice, t.N*t.DimSplit) }

// String is like coopmatTile.String, with g for groups, f for fences, u for unchecked and o
// for the order of row tiles; p32g4f is a loop with pairs of float16, tiles of 32 keys, groups
// of 4, with fences; d2 splits the head dim, and a1 has AliasKV 1.
func (t f32Tile) String() string {
	s := fmt.Sprintf("%dx%d/%d %dx%d %dsg%d g%d", t.Rows(), t.KVTile, t.KVStep, t.M, t.N, t.Subgroups, t.MFrags, t.Group)
	if t.QSmemChunks > 0 {
		s += fmt.Sprintf(" q%d", t.QSmemChunks)
	}
	if t.Fences != 0 {
		s += " f"
	}
	if t.Unchecked != 0 {
		s += " u"
	}
	if t.Order != 0 {
		s += " o"
	}
	if t.PairTile != 0 {
		s += fmt.Sprintf(" p%dg%d", t.PairTile, t.PairGroup)
		if t.PairFences != 0 {
			s += "f"
		}
	}
	if t.DimSplit > 1 {
		s += fmt.Sprintf(" d%d", t.DimSplit)
	}
	if t.AliasKV != 0 {
		s += fmt.Sprintf(" a%d", t.AliasKV)
	}
	return s
}

func (t f32Tile) describe() string { return t.String() }

// f32Table lists tiles by the larger head dim; tiles of calls under a causal mask come before
// those of all calls. TFLOP/s (batch 4, 8 heads, length 4096; docs/log/vulkan.md, 57), full and causal.
// On an H100:
//
//	 64: 8x1x32/16 g2 56.2, 47.8; 8x1x32/32 g2 54.4, 48.2; g2 u 55.4, 49.6; g2 u o -, 56.2
//	128: 8x1x16/16 g4 f u 54.3, 48.9; g2 q1 f u -, 49.2; g2 q1 f u o -, 54.9; g2 f u -, 45.1; g4 f 53.9, 45.3; g2 q1 f 53.3, 47.8
//
// With a loop with pairs (docs/log/vulkan.md, 62), on an H100:
//
//	 64: p64g2 99.6, 82.8; p64g4 99.2, -; p32g2 87.2, -; 8x2x32/16 g1 f p64g1 84.0, 68.0
//	128: p32g2f 86.8, -; p32g4f 86.1, 82.0; p32g2 85.7, 78.9; p16g2 77.7, -
//
// On an H200, without that loop, none of them unchecked:
//
//	 64: 8x1x32/16 g2 55.6, 47.3; 8x1x32/32 g2 53.9, 48.0; 8x2x32/16 g1 f 52.6, 38.6; 4x2x16/16 g2 51.7, 42.9;
//	     8x1x48/16 g2 50.2; 12x1x32/16 g2 47.9
//	128: 8x1x16/16 g4 f 53.3, 44.8; g2 q1 f 52.5, 46.8; g2 f 51.7, 44.9; g4 q1 f 51.6, 46.5; g2 45.7;
//	     12x1x16/16 g1 30.9; 4x1x16/16 g2 29.8
//
// Above 128, with that loop, full, on an H200 (docs/log/vulkan.md, 77), tiles of 8x1x16/16 g2 f u:
//
//	160: p16g2f 75.5; 8x2 g1 p16g1f d2 71.9; p32g2f 67.1; 8x1x32/32 p32g2f d2 a3 64.0; 12x1 p16g2f d2 63.0; p16g2f d2 60.8
//	192: p16g2f 67.4; p16g2f d2 60.7; p16g3f d2 59.7; p16g2 d2 56.8
//	256: q1 p16g2f d2 a1 64.7; p16g2f d2 a1 64.3; p16g4f d2 a1 62.8; p16g2 d2 a1 60.5; p16g2f d2 a3 58.8; 12x1 40.4
var f32Table = []struct {
	maxDim uint32
	causal bool
	tile   f32Tile
	whole  bool // without its loop with pairs or all of its subgroups the next row is better
}{
	{64, true, f32Tile{Subgroups: 8, MFrags: 1, KVTile: 32, KVStep: 32, Group: 2, Unchecked: 1, Order: 1, PairTile: 64, PairGroup: 2, DimSplit: 1}, false},
	{64, false, f32Tile{Subgroups: 8, MFrags: 1, KVTile: 32, KVStep: 16, Group: 2, PairTile: 64, PairGroup: 2, DimSplit: 1}, false},
	{128, true, f32Tile{Subgroups: 8, MFrags: 1, KVTile: 16, KVStep: 16, QSmemChunks: 1, Fences: 1, Group: 2, Unchecked: 1, Order: 1, PairTile: 32, PairGroup: 4, PairFences: 1, DimSplit: 1}, false},
	{128, false, f32Tile{Subgroups: 8, MFrags: 1, KVTile: 16, KVStep: 16, Fences: 1, Group: 4, Unchecked: 1, PairTile: 32, PairGroup: 2, PairFences: 1, DimSplit: 1}, false},
	{192, true, f32Tile{Subgroups: 8, MFrags: 1, KVTile: 16, KVStep: 16, Fences: 1, Group: 2, Unchecked: 1, Order: 1, PairTile: 16, PairGroup: 2, PairFences: 1, DimSplit: 1}, true},
	{192, false, f32Tile{Subgroups: 8, MFrags: 1, KVTile: 16, KVStep: 16, Fences: 1, Group: 2, Unchecked: 1, PairTile: 16, PairGroup: 2, PairFences: 1, DimSplit: 1}, true},
	{256, true, f32Tile{Subgroups: 8, MFrags: 1, KVTile: 16, KVStep: 16, Fences: 1, Group: 2, Unchecked: 1, Order: 1, PairTile: 16, PairGroup: 2, PairFences: 1, DimSplit: 2}, false},
	{256, false, f32Tile{Subgroups: 8, MFrags: 1, KVTile: 16, KVStep: 16, Fences: 1, Group: 2, Unchecked: 1, PairTile: 16, PairGroup: 2, PairFences: 1, DimSplit: 2}, false},
}

// f32Refusal says why a call of float32 does not run on cooperative matrices, or "".
func f32Refusal(cfg *problem.Config, v *Variant, r *Request) string {
	switch {
	case v.Options.Any(), cfg.FixedSplit > 0:
		return "f32 on cooperative matrices takes no options"
	case max(v.headDim, v.headDimV) > maxF32Dim:
		return fmt.Sprintf("f32 on cooperative matrices takes head dims up to %d", maxF32Dim)
	case r.Experiment.Variant != 0:
		return "the kernel of f32 has no variants"
	}
	return ""
}

// pickTerms tests a device for the products of 16-bit terms of float32, as pickFragment does.
func pickTerms(caps *vk.Caps, tier problem.Tier, half bool) (fragment, string) {
	if half {
		return pickFragment(caps, tier, problem.F16)
	}
	if why := caps.Without(tierNeeds(tier, problem.F32)...); why != "" {
		return fragment{}, why
	}
	return pickFragment(caps, tier, problem.BF16)
}

// termType is the storage type of the terms.
func termType(half bool) problem.DType {
	if half {
		return problem.F16
	}
	return problem.BF16
}

// termsName is the part of a module's name that tells the terms.
func termsName(half bool) string {
	if half {
		return "_f16_terms"
	}
	return ""
}

// termsNote is the note of plans with products of terms.
func termsNote(of problem.DType) string {
	return fmt.Sprintf("float32 is three terms of %v, and six products of terms make one of float32", of)
}

// hasPairs reports whether a device multiplies pairs of float16 in fragments of the size of f.
func hasPairs(caps *vk.Caps, tier problem.Tier, f fragment) bool {
	of, reason := pickFragment(caps, tier, problem.F16)
	return reason == "" && of.M == f.M && of.N == f.N && of.K == f.K && of.Subgroup == f.Subgroup
}

// f32Tiles lists tiles, best first: that of the table, then smaller ones for devices and tiers
// with less shared memory, or the next row of the table. Calls with few rows get few subgroups. pairs tells whether the device
// has the fragments of a loop with pairs of float16; without all subgroups of the table an
// invocation would hold too much of its tile.
func f32Tiles(f fragment, v *Variant, rows, maxInvocations uint32, pairs bool) []tile {
	var list []tile
	for _, row := range f32Table {
		if max(v.headDim, v.headDimV) > row.maxDim || row.causal != v.causal {
			continue
		}
		list = append(list, row.tile.sizes(f, v, rows, maxInvocations, pairs, row.whole)...)
		if !row.whole {
			break
		}
	}
	return list
}

// sizes lists t and smaller tiles, or, with whole, those that have all of its subgroups and its
// loop with pairs.
func (best f32Tile) sizes(f fragment, v *Variant, rows, maxInvocations uint32, pairs, whole bool) (list []tile) {
	for frags := best.MFrags; frags >= 1; frags-- {
		if frags > 1 && rows <= f.M {
			continue
		}
		most := best.Subgroups
		for most > best.DimSplit && (most*f.Subgroup > maxInvocations || most/2/best.DimSplit*frags*f.M >= rows) {
			most /= 2
		}
		for subgroups := most; subgroups >= best.DimSplit; subgroups /= 2 {
			for keys := best.KVTile; keys >= f.N; keys /= 2 {
				t := best
				t.fragment, t.Subgroups, t.MFrags, t.KVTile = f, subgroups, frags, keys
				t.KVStep, t.DvSlice = min(best.KVStep, keys), arith.CeilDiv32(v.headDimV, f.N)*f.N
				if !t.computes(v.headDim, v.headDimV) {
					continue
				}
				if !pairs || subgroups != best.Subgroups || keys != best.KVTile {
					t.PairTile = 0
				}
				if t.PairTile > 0 || !whole {
					list = t.appendLighter(list)
				}
			}
		}
	}
	if whole {
		list = slices.DeleteFunc(list, func(t tile) bool { return t.(f32Tile).PairTile == 0 })
	}
	return list
}

// appendLighter appends t and tiles that need less shared memory for the same rows and keys: V
// over K, a shorter loop with pairs, none, and Q in registers. Tier coopmat, whose scratch does
// not overlay the KV tiles, needs them.
func (t f32Tile) appendLighter(list []tile) []tile {
	pairTile := t.PairTile
	alias := []uint32{0, 1, 3}
	if t.DimSplit == 1 {
		alias = alias[:1]
	}
	for {
		for t.PairTile = pairTile; t.PairTile >= t.KVTile; t.PairTile /= 2 {
			for _, t.AliasKV = range alias {
				list = append(list, t)
			}
		}
		t.PairTile = 0
		for _, t.AliasKV = range alias[:min(len(alias), 2)] {
			list = append(list, t)
		}
		if t.QSmemChunks == 0 {
			return list
		}
		t.QSmemChunks = 0
	}
}

func (t f32Tile) mostExcess() float64 { return 1.2 }

func (t f32Tile) division() [2]uint32 { return [2]uint32{t.LocalSize(), t.MFrags} }

// registers counts the fragments, a vector of eight elements of K and of V per tile and
// what else the kernel holds.
func (t f32Tile) registers(v *Variant) int {
	sums, operand := arith.CeilDiv32(t.M*t.N, t.Subgroup), arith.CeilDiv32(t.M*t.K, 2*t.Subgroup)
	keys, outs := t.KVStep/t.N, t.outs()
	scores := keys * sums
	if t.KVStep < t.KVTile {
		scores *= 2
	}
	const rest = 36 // a fragment of K or V, addresses, loop counters
	vectors := arith.CeilDiv32(t.KVTile*t.DimSplit*t.chunks(v.headDim)*t.K/8, t.LocalSize()) + arith.CeilDiv32(t.KVTile*t.DimSplit*outs*t.N/8, t.LocalSize())
	return int(t.MFrags*(outs*sums+terms*(t.chunks(v.headDim)-t.QSmemChunks)*operand+scores+terms*operand+(1+t.Group)*sums+2) + 8*vectors + rest)
}

func (t f32Tile) leastShared(v *Variant) uint32 {
	ofK, ofV := t.DimSplit*t.chunks(v.headDim)*t.K, t.DvSlice
	columns := ofK + ofV
	if t.AliasKV != 0 {
		columns = max(ofK, ofV)
	}
	return 2 * terms * (t.KVTile*columns + t.DimSplit*t.Rows()*t.QSmemChunks*t.K)
}

// blockTime returns clocks, by the rates of coopmatTile.blockTime: six products per
// product, reads of three terms, and the split of each element of K and V. With DimSplit 2 each
// subgroup reads half of the columns, and both of a pair compute P.
func (t f32Tile) blockTime(v *Variant, _ *vk.Caps, _ problem.Shape, keys float64) float64 {
	f := func(n uint32) float64 { return float64(n) }
	columns := f(t.DimSplit * (t.chunks(v.headDim)*t.K + t.outs()*t.N))
	products := 6 * f(2*t.Rows()*t.KVTile) * columns / flopsEach
	reads := f(t.Subgroups/t.DimSplit*2*terms*t.KVTile) * columns / sharedEach
	weights := f(t.DimSplit*t.Rows()*t.KVTile) / expEach
	const splitEach = 10.0 / 128 // clocks per element
	tile := ofProducts*products + ofShared*reads + ofWeights*weights + splitEach*f(t.KVTile)*columns + 2*drain + refill
	tile *= math.Max(1, math.Pow(busySubgroup/f(t.Subgroups), 0.7)) * (1 + max(0, excess(t, t.registers(v))-1)/2)
	return keys/f(t.KVTile)*tile + starting
}
