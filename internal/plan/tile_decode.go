package plan

import (
	"fmt"

	"vkattn/internal/arith"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// decodeTile is a tile of decode_coopmat.comp, for few query rows over many keys. Each
// subgroup has its own KV loop, without a barrier. K and V go from global memory into
// fragments, through registers or shared memory.
type decodeTile struct {
	fragment                   // SumN is the number of query rows
	Subgroups   uint32         `json:"subgroups"`
	KVTile      uint32         `json:"kv_tile" const:"KV_TILE"`             // keys that a subgroup multiplies at a time
	QSmemChunks uint32         `json:"q_smem_chunks" const:"Q_SMEM_CHUNKS"` // chunks of Q, of K columns each, in shared memory
	DvSlice     uint32         `json:"dv_slice" const:"DV_SLICE"`           // columns of O that a workgroup computes
	DimSplit    uint32         `json:"dim_split" const:"DIM_SPLIT"`         // subgroups that have the same keys and split the head dim; 1: each has the whole head dim
	Prefetch    uint32         `json:"prefetch" const:"PREFETCH"`           // what is loaded of the next KV tile while one is multiplied: 1: V, 2: K and V
	Operands    decodeOperands `json:"operands"`
}

// decodeOperands says how decode_coopmat.comp turns loaded data into matrix operands.
type decodeOperands uint8

const (
	noDecodeKernel      decodeOperands = iota
	operandsInRegisters                // in registers; the device orders a fragment's elements as the kernel assumes
	operandsInSmem                     // through shared memory; works for every order
)

func (t decodeTile) LocalSize() uint32    { return t.Subgroups * t.Subgroup }
func (t decodeTile) SubgroupSize() uint32 { return t.Subgroup }
func (t decodeTile) Rows() uint32         { return t.SumN }
func (t decodeTile) keys() uint32         { return t.KVTile }
func (t decodeTile) columns() uint32      { return t.DvSlice }
func (t decodeTile) Splits() int          { return 1 }

func (t decodeTile) computes(headDim, headDimV uint32) bool {
	return (t.DvSlice >= headDimV || t.DvSlice%8 == 0 && t.DvSlice%t.N == 0) &&
		t.KVTile%t.N == 0 && t.KVTile >= t.M && t.QSmemChunks <= arith.CeilDiv32(headDim, t.K)
}

// String returns rows x KV tile, the fragment, subgroups, and the other options that are
// set: "8x16 16x16 4sg decode q16 dim-split2 prefetch1".
func (t decodeTile) String() string {
	s := fmt.Sprintf("%dx%d %dx%d %dsg decode", t.SumN, t.KVTile, t.M, t.N, t.Subgroups)
	if t.QSmemChunks > 0 {
		s += fmt.Sprintf(" q%d", t.QSmemChunks)
	}
	if t.DimSplit > 1 {
		s += fmt.Sprintf(" dim-split%d", t.DimSplit)
	}
	if t.Prefetch > 0 {
		s += fmt.Sprintf(" prefetch%d", t.Prefetch)
	}
	return s
}

func (t decodeTile) describe() string { return t.String() }

// decodeSubgroups is the number of subgroups of the decode kernel that fit in the
// registers of a core, at 150 to 255 registers per invocation. On an H200 a third
// workgroup of four subgroups was no faster where 168 registers are enough (docs/log/vulkan.md,
// 33).
const decodeSubgroups = 8

// IsDecode reports whether the decode kernel computes v.
func (v *Variant) IsDecode() bool {
	_, ok := v.Tile.(decodeTile)
	return ok
}

// decodeTiles lists tiles of the decode kernel, best first; none if the device or the call
// excludes the kernel. f is the device's fragment. docs/log/vulkan.md (31) has the measurements on
// an H200.
func decodeTiles(caps *vk.Caps, f fragment, v *Variant, r *Request, fixed bool) []tile {
	if r.operands == noDecodeKernel {
		return nil
	}
	dim, rows := max(v.headDim, v.headDimV), r.decodeRows()
	t := decodeTile{fragment: r.operands.fragment(f, rows), Subgroups: 4, KVTile: 16, DimSplit: 1, Operands: r.operands}
	slice := v.headDimV
	if dim <= 64 || dim <= 128 && v.Options.KV != problem.KVSame && r.operands == operandsInRegisters {
		t.KVTile = 32
	}
	pairs := v.pairs(dim, t.SumN)
	switch {
	case dim > 256: // four subgroups split the head dim, each with up to 160 columns of K and 128 of V and O
		t.DimSplit, slice = t.Subgroups, evenSlice(v.headDimV, 512)
	case dim > 128: // registers hold K of a tile and O of a few rows, but not Q as well
		slice, t.QSmemChunks = evenSlice(v.headDimV, 256*8/t.SumN), arith.CeilDiv32(v.headDim, 16)
		if pairs {
			t.DimSplit, slice = 2, evenSlice(v.headDimV, 256)
		}
	}
	if round := decodeSubgroups / t.DimSplit * t.KVTile; (dim <= 128 || pairs) && !fixed && r.FillsCores(caps, arith.CeilDiv32(rows, t.SumN), round) {
		t.Subgroups = decodeSubgroups
	}
	t.Prefetch = prefetchOf(v, &t, dim)
	t.QSmemChunks = min(t.QSmemChunks*16/t.K, arith.CeilDiv32(v.headDim, t.K))
	for t.Subgroups > 1 && t.LocalSize() > caps.Limits.MaxInvocations {
		t.Subgroups /= 2
	}
	t.DvSlice = v.headDimV
	if slice < v.headDimV {
		t.DvSlice = arith.CeilDiv32(slice, t.N) * t.N
	}
	var list []tile
	for ; t.KVTile >= 8; t.KVTile /= 2 {
		if !t.computes(v.headDim, v.headDimV) {
			continue
		}
		list = append(list, t)
		if t.QSmemChunks > 0 {
			inRegisters := t
			inRegisters.QSmemChunks = 0
			list = append(list, inRegisters)
		}
	}
	return list
}

// splitKVTiles lists tiles of the general kernel for calls with few rows, best first: four
// subgroups that split the KV tile, or one subgroup if there are too few keys to split. No
// subgroup then waits for more than one KV tile, and a core holds two or more workgroups.
// On an H200 the kernel reads K and V of head dim 128 at 3.55 TB/s split (3.2 without
// AliasKV) and 3.5 with one subgroup, of head dim 64 at 3.2 with KV steps of 32 keys and
// 3.0 with 16 (docs/log/vulkan.md, 29).
func splitKVTiles(caps *vk.Caps, f fragment, v *Variant, r *Request, fixed bool) []tile {
	dim, rows := max(v.headDim, v.headDimV), r.decodeRows()
	alone := coopmatTile{Subgroups: 1, MFrags: fewRows, KVTile: 16, KVStep: 16, DvSlice: 128}
	switch {
	case dim <= 64:
		alone.KVTile, alone.KVStep = 32, 32
	case dim > 128 && isRDNA3(caps):
		alone.DvSlice = evenSlice(v.headDimV, 64)
	case dim > 128:
		alone.DvSlice = evenSlice(v.headDimV, 128)
	}
	var list []tile
	if !fixed && dim <= 128 && r.keysAtLeast(2*minSplitKeys) { // with a fixed split these subgroups would add splits of their own
		split := alone
		split.Subgroups, split.MFrags, split.SplitKV, split.AliasKV = 4, 1, true, true
		split.KVTile = split.Subgroups * split.KVStep
		list = coopmatTiles(f, split, v, rows, caps.Limits.MaxInvocations)
	}
	return append(list, coopmatTiles(f, alone, v, rows, caps.Limits.MaxInvocations)...)
}

// keyRun is the number of keys of a fragment. They are contiguous and share one address
// computation in the decode kernel.
const keyRun = 16

// keysRun reports whether keys are contiguous in multiples of keyRun.
func (v *Variant) keysRun() bool {
	o := &v.Options
	return o.KV == problem.KVSame && o.sparseTokens == 0 && o.pageSize%keyRun == 0
}

// pairs reports whether two subgroups of the decode kernel split the head dim, which leaves
// registers to prefetch V. On an H200 head dim 256 then takes 244 us instead of 250, with
// 16 rows 255 instead of 288, in bfloat16 307 instead of 316. Head dim 192 is slower (200
// instead of 186): its three blocks of columns have no half. Quantized keys, which take few
// registers, are slower too (int8: 206 instead of 184); they pair only with more than 8
// rows, which would otherwise be read twice.
func (v *Variant) pairs(dim, sumN uint32) bool {
	return dim > 192 && dim <= 256 && (v.Options.KV == problem.KVSame || sumN > 8)
}

// prefetchOf returns how much of the next KV tile a subgroup loads while it multiplies one:
// all of it, V alone or nothing, as the registers allow. On an H200 with head dim 128 and 8
// rows all of it takes 71.0 us instead of 72.2; with 16 rows V alone is 1 % faster than
// nothing, and all of it 2 % slower. Pages of 8 keys at head dim 128 take 73.9 us instead
// of 77.0. Head dim 64 takes 41.5 us instead of 43.6, but with pages of one key 49.0
// instead of 44.7.
func prefetchOf(v *Variant, t *decodeTile, dim uint32) uint32 {
	switch {
	case v.Options.KV.Scaled() && t.Operands == operandsInRegisters:
		return v.scaledPrefetch(dim, t.SumN)
	case v.Options.KV != problem.KVSame:
		return 0
	case t.DimSplit == 2 && v.dtype == problem.F16:
		return 1
	case dim > 128, dim <= 64 && !v.keysRun():
		return 0
	case v.Options.sparseTokens != 0, t.SumN > 8:
		return 1
	}
	return 2
}

// scaledPrefetch is prefetchOf for int8 and float8, which take half of the registers. On an
// H200 int8 with the prefetch, instead of without, takes at head dim 128 53.9 us instead of
// 59.0, but with 16 rows 66.3 instead of 62.9; at 64, in two cases, 37.0 instead of 42.1 and
// 39.1 instead of 43.9. V alone takes 144.7 instead of 138.0 at 192, 184 instead of 201 at
// 256.
func (v *Variant) scaledPrefetch(dim, sumN uint32) uint32 {
	switch {
	case dim <= 64, dim <= 128 && sumN <= 8:
		return 2
	case dim > 192 && dim <= 256:
		return 1
	}
	return 0
}

// FillsCores reports whether workgroups that occupy a core each, with one split of the
// keys of a row block, leave few cores idle and have at least one round of keys each. There
// are then half as many splits. On an H200, which has 132 cores, 8 blocks of 32768 keys
// take 43.2 us instead of 46.0, and 64 blocks of 8192 keys 40.3 instead of 41.0 at head dim
// 64 and the same at 128.
func (r *Request) FillsCores(caps *vk.Caps, rowBlocks, round uint32) bool {
	const idle = 16 // at most one core in 16 may be idle
	blocks := r.sequences() * uint64(r.Shape.KVHeads()) * uint64(rowBlocks)
	cores := uint64(caps.ShaderCores)
	splits := cores / blocks
	return splits > 1 && splits*blocks >= cores-cores/idle && r.keysAtLeast(int(splits)*int(round))
}

// evenSlice returns the widest slice of at most most columns that is a multiple of 16 and
// divides columns; if there is none, it returns columns.
func evenSlice(columns, most uint32) uint32 {
	for n := arith.CeilDiv32(columns, most); n <= arith.CeilDiv32(columns, 16); n++ {
		if columns%n == 0 && columns/n%16 == 0 {
			return columns / n
		}
	}
	return columns
}
