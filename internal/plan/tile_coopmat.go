package plan

import (
	"fmt"
	"slices"

	"vkattn/attention/score"
	"vkattn/internal/arith"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// coopmatTile is a tile of the cooperative-matrix forward kernels, dense and general
// (forward_coopmat.comp, forward_coopmat_general.comp). Each subgroup computes MFrags
// fragments of query rows of its own. With SplitKV all subgroups have the same rows.
type coopmatTile struct {
	fragment
	Subgroups   uint32 `json:"subgroups" try:"1 2 4 8 12 16"`
	MFrags      uint32 `json:"m_frags" const:"M_FRAGS" try:"1 2 4"`                         // fragments of M rows per subgroup
	KVTile      uint32 `json:"kv_tile" const:"KV_TILE" try:"8 16 32 48 64 80 96 128"`       // keys in shared memory at a time
	KVStep      uint32 `json:"kv_step" const:"KV_STEP" try:"8 16 32 64"`                    // keys of a KV tile multiplied at a time
	QSmemChunks uint32 `json:"q_smem_chunks" const:"Q_SMEM_CHUNKS" try:"0 1 2 3 4 5 6 7 8"` // chunks of Q, of K columns each, in shared memory; the others are in registers
	DvSlice     uint32 `json:"dv_slice" const:"DV_SLICE" try:"slices"`                      // columns of O that a workgroup computes
	SplitKV     bool   `json:"split_kv" const:"SPLIT_KV"`                                   // subgroups split the KV tile; general kernel only
	AliasKV     bool   `json:"alias_kv" const:"ALIAS_KV"`                                   // V overwrites K in shared memory; general kernel only
	Contiguous  bool   `json:"contiguous"`                                                  // each subgroup loads contiguous keys if it can: see keysPerSubgroup
}

func (t coopmatTile) LocalSize() uint32    { return t.Subgroups * t.Subgroup }
func (t coopmatTile) SubgroupSize() uint32 { return t.Subgroup }
func (t coopmatTile) keys() uint32         { return t.KVTile }
func (t coopmatTile) columns() uint32      { return t.DvSlice }

func (t coopmatTile) Rows() uint32 {
	if t.SplitKV {
		return t.MFrags * t.M
	}
	return t.Subgroups * t.MFrags * t.M
}

func (t coopmatTile) Splits() int {
	if t.SplitKV {
		return int(t.Subgroups)
	}
	return 1
}

func (t coopmatTile) computes(headDim, headDimV uint32) bool {
	return (t.DvSlice >= headDimV || t.DvSlice%8 == 0 && t.DvSlice%t.N == 0) &&
		t.KVTile%t.KVStep == 0 && t.KVStep%t.N == 0 && t.KVTile >= t.M && t.QSmemChunks <= t.chunks(headDim)
}

// chunks returns the number of fragments along the head dim.
func (t coopmatTile) chunks(headDim uint32) uint32 { return arith.CeilDiv32(headDim, t.K) }

// vectors returns the number of 16-byte vectors of a K and a V tile that an invocation
// holds between global and shared memory.
func (t coopmatTile) vectors(headDim uint32) uint32 {
	n := t.LocalSize()
	return arith.CeilDiv32(t.KVTile*t.chunks(headDim)*t.K/8, n) + arith.CeilDiv32(t.KVTile*arith.CeilDiv32(t.DvSlice, t.N)*t.N/8, n)
}

// keysPerSubgroup returns how many contiguous keys of a KV tile each subgroup loads; 0 if
// its lanes load vectors of any keys. If a KV tile spans several pages, each subgroup loads
// a run of keys that fits in one page, if the sizes allow: an invocation then reads one
// entry of the block table per tile. Otherwise t.Contiguous decides.
func (t coopmatTile) keysPerSubgroup(v *Variant) uint32 {
	n := t.KVTile / t.Subgroups
	vectors := func(columns, of uint32) uint32 { return n * arith.CeilDiv32(columns, of) * of / 8 }
	if t.KVTile%t.Subgroups != 0 || vectors(v.headDim, t.K)%t.Subgroup != 0 || vectors(t.DvSlice, t.N)%t.Subgroup != 0 {
		return 0
	}
	contiguous := t.Contiguous
	if page := v.Options.pageSize; page%t.KVTile != 0 {
		contiguous = page%n == 0
	}
	if !contiguous {
		return 0
	}
	return n
}

// String returns rows x KV tile / KV step, the fragment, subgroups and M fragments of each,
// and the other options that are set: "256x128/16 16x16 8sg2 q2".
func (t coopmatTile) String() string {
	s := fmt.Sprintf("%dx%d/%d %dx%d %dsg%d", t.Rows(), t.KVTile, t.KVStep, t.M, t.N, t.Subgroups, t.MFrags)
	if t.QSmemChunks > 0 {
		s += fmt.Sprintf(" q%d", t.QSmemChunks)
	}
	if t.SplitKV {
		s += " split-kv"
	}
	if t.Contiguous {
		s += " contiguous"
	}
	return s
}

func (t coopmatTile) describe() string { return t.String() }

// tableTile is a tile of the tables below. It holds for head dims up to maxDim, the larger
// of Dqk and Dv. It has no fragment. Its QSmemChunks are chunks of 16 columns; a DvSlice of
// 0 stands for all columns.
type tableTile struct {
	maxDim uint32
	coopmatTile
}

// coopmat2Table is for the coopmat2 kernel. It was measured on an H200: f16, no mask unless
// noted, 16x16 fragments, subgroups of 32; docs/log/vulkan.md has the runs. A tile below is
// subgroups x M fragments x KV tile / KV step, with q: chunks of Q in shared memory.
// TFLOP/s at length 4096:
//
//	 32: 16x2x128/16 272; 16x2x96/16 261; 4x2x64/16 258
//	 64: 8x2x96/16 340; 8x2x64/16 333; 8x2x128/16 319; 16x1x128/16 317; 4x2x64/16 308;
//	     with contiguous keys (another run) 8x2x128/16 346, 8x2x96/16 335, 8x2x64/16 328, 8x2x96/16 without 339
//	 96: 8x2x64/32 q2 346; 8x2x48/16 q1 319; 8x2x48/16 q2 319
//	128: 8x2x32/16 q2 346, q3 324; 8x2x32/32 q3 303
//	160: 8x1x64/32 270; 8x1x48/16 q1 237 (at 2500)
//	192: 8x1x48/16 q1 281; 8x1x48/16 280; 8x1x32/16 267; 8x1x32/32 257
//	256: 8x1x16/16 q7 231, q6 216, q5 210; 8x1x32/16 170 under a causal mask at 2048, where q7 is 195
//
// All workgroups of a multiprocessor share about 48 KiB of shared memory there, so two
// workgroups of four subgroups are resident only below 24 KiB each.
var coopmat2Table = []tableTile{
	{32, coopmatTile{Subgroups: 16, MFrags: 2, KVTile: 128, KVStep: 16}},
	{64, coopmatTile{Subgroups: 8, MFrags: 2, KVTile: 128, KVStep: 16, Contiguous: true}},
	{96, coopmatTile{Subgroups: 8, MFrags: 2, KVTile: 64, KVStep: 32, QSmemChunks: 2}},
	{128, coopmatTile{Subgroups: 8, MFrags: 2, KVTile: 32, KVStep: 16, QSmemChunks: 2}},
	{160, coopmatTile{Subgroups: 8, MFrags: 1, KVTile: 64, KVStep: 32}},
	{192, coopmatTile{Subgroups: 8, MFrags: 1, KVTile: 48, KVStep: 16, QSmemChunks: 1}},
	{256, coopmatTile{Subgroups: 8, MFrags: 1, KVTile: 16, KVStep: 16, QSmemChunks: 7}},
	{576, coopmatTile{Subgroups: 8, MFrags: 1, KVTile: 16, KVStep: 16, DvSlice: 256}},
}

// coopmatTable is for the coopmat kernel, where P goes through scratch in shared memory.
// TFLOP/s as above: head dim 128 runs at 196 with 8x1x64/16, 194 with 8x1x64/32, 191 with
// 8x2x32/16 q1; head dim 64 at 189 with 8x2x64/16 and with 4x2x64/32, 168 with 8x2x64/32.
var coopmatTable = []tableTile{
	{32, coopmatTile{Subgroups: 4, MFrags: 2, KVTile: 64, KVStep: 16}},
	{64, coopmatTile{Subgroups: 8, MFrags: 2, KVTile: 64, KVStep: 16}},
	{128, coopmatTile{Subgroups: 8, MFrags: 1, KVTile: 64, KVStep: 16}},
	{192, coopmatTile{Subgroups: 8, MFrags: 1, KVTile: 32, KVStep: 32}},
	{256, coopmatTile{Subgroups: 8, MFrags: 1, KVTile: 32, KVStep: 32, DvSlice: 128}},
	{576, coopmatTile{Subgroups: 8, MFrags: 1, KVTile: 16, KVStep: 16, DvSlice: 128}},
}

// rdna3Table is coopmatTable for RDNA 3 and 3.5: the tiles whose registers its compiler does not spill. None was measured
// (docs/log/vulkan.md, 71).
var rdna3Table = []tableTile{
	{64, coopmatTile{Subgroups: 4, MFrags: 2, KVTile: 32, KVStep: 32}},
	{192, coopmatTile{Subgroups: 4, MFrags: 1, KVTile: 32, KVStep: 32}},
	{256, coopmatTile{Subgroups: 4, MFrags: 1, KVTile: 32, KVStep: 32, DvSlice: 128}},
	{576, coopmatTile{Subgroups: 4, MFrags: 1, KVTile: 16, KVStep: 16, DvSlice: 128}},
}

// isRDNA3 says that both halves of a subgroup hold the operands of a product, as on RDNA 3 and 3.5: they take twice the
// registers that they take elsewhere. No property of a device says so. Subgroups of 64 with matrices of float16 and none of
// bfloat16 are theirs.
func isRDNA3(caps *vk.Caps) bool { return caps.SubgroupSize == 64 && !caps.BFloat16CoopMat }

// ladderTile is the tile of the ladder's first steps, for every head dim.
var ladderTile = coopmatTile{Subgroups: 4, MFrags: 1, KVTile: 32, KVStep: 32, DvSlice: 128}

// coopmat2Cases replace tiles of coopmat2Table if they hold. If several hold, the last wins.
var coopmat2Cases = []struct {
	holds func(v *Variant, best coopmatTile, r *Request, cfg *problem.Config, few bool) bool
	rows  []tableTile
}{
	// A causal mask. TFLOP/s:
	//
	//	 32: blocks of 512 rows are too few at 4096 with 32 heads: 152, and 274 without the mask
	//	 64: 8x2x128/16 248 at 2048 and 290 at 4096; 4x2x64/16 244, 278; 8x2x96/16 234, 289
	//	128: 8x2x32/16 q3 246, 296; q2 238, 288; 12x1x48/16 234, 270; 8x1x64/32 233, 262
	{func(v *Variant, _ coopmatTile, _ *Request, _ *problem.Config, _ bool) bool { return v.causal }, []tableTile{
		{32, coopmatTile{Subgroups: 4, MFrags: 2, KVTile: 64, KVStep: 16}},
		{64, coopmatTile{Subgroups: 8, MFrags: 2, KVTile: 128, KVStep: 16}},
		{128, coopmatTile{Subgroups: 8, MFrags: 2, KVTile: 32, KVStep: 16, QSmemChunks: 3}},
	}},
	// A causal mask, a window or chunks in which a query sees at most shortKeys keys on average: row blocks of 256 rows
	// are then mostly diagonal. And a mask of tables, as that of documents: it excludes most tiles, and smaller ones follow it
	// more closely; one that excludes half of them takes 10 % longer. TFLOP/s at length 1024, and ms of a window of 256 keys and
	// of 16 documents at length 16384 (docs/log/vulkan.md, 78):
	//
	//	 64: 4x2x64/16 186, 0.150, 0.563; 8x1x64/16 184; 16x1x128/16 179; 8x2x128/16 176, 0.205, 0.609
	//	128: 8x1x64/32 189, 0.304, 1.175; 8x2x32/16 q3 176; q2 0.392, 1.201
	{func(v *Variant, _ coopmatTile, r *Request, cfg *problem.Config, _ bool) bool {
		return r.shortRows(cfg, v.causal) || v.Options.maskMod && hasTables(v.modifiers.Mask)
	}, []tableTile{
		{64, coopmatTile{Subgroups: 4, MFrags: 2, KVTile: 64, KVStep: 16}},
		{128, coopmatTile{Subgroups: 8, MFrags: 1, KVTile: 64, KVStep: 32}},
	}},
	// Pages smaller than a KV tile, without a causal mask: finding the keys takes registers
	// (docs/log/vulkan.md, 47).
	{func(v *Variant, best coopmatTile, _ *Request, _ *problem.Config, _ bool) bool {
		return v.Options.pageSize%best.KVTile != 0 && !v.causal
	}, []tableTile{
		{128, coopmatTile{Subgroups: 8, MFrags: 2, KVTile: 32, KVStep: 16, QSmemChunks: 3}},
	}},
	// Few row blocks: smaller ones occupy more cores. A key takes a workgroup of 256 rows 55 ns and one of 128 rows 31
	// ns at head dim 128, 26 and 21 at 64 (docs/log/vulkan.md, 67). 96 takes
	// the tile of 128, which was not measured there.
	{func(_ *Variant, _ coopmatTile, _ *Request, _ *problem.Config, few bool) bool { return few }, []tableTile{
		{64, coopmatTile{Subgroups: 4, MFrags: 2, KVTile: 64, KVStep: 16}},
		{96, coopmatTile{Subgroups: 8, MFrags: 1, KVTile: 64, KVStep: 32}},
		{128, coopmatTile{Subgroups: 8, MFrags: 1, KVTile: 64, KVStep: 32}},
	}},
	// Quantized K and V with scales, whose sums take registers too: on an H200 8x1x64/32 and
	// 12x1x48/16 take 1.34 ms, 8x2x32/16 1.55 (batch 2, 32 heads over 8, length 4096, int8).
	{func(v *Variant, _ coopmatTile, _ *Request, _ *problem.Config, _ bool) bool {
		return v.Options.KV.Scaled()
	}, []tableTile{
		{128, coopmatTile{Subgroups: 8, MFrags: 1, KVTile: 64, KVStep: 32}},
	}},
}

const shortKeys = 640

func hasTables(e score.Expr) bool {
	tables, err := score.TablesOf(e)
	return err == nil && len(tables) > 0
}

// chooseCoopmatTile picks a tile from the tables. few: every workgroup of blockRows rows has a core of its own.
func chooseCoopmatTile(caps *vk.Caps, tier problem.Tier, v *Variant, r *Request, cfg *problem.Config, few bool) coopmatTile {
	dim := max(v.headDim, v.headDimV)
	row := func(table []tableTile) tableTile {
		return table[slices.IndexFunc(table, func(t tableTile) bool { return dim <= t.maxDim })]
	}
	switch {
	case !Includes(v.Experiment, stepTiles):
		return ladderTile
	case tier == problem.TierCoopMat && isRDNA3(caps):
		return row(rdna3Table).coopmatTile
	case tier == problem.TierCoopMat:
		return row(coopmatTable).coopmatTile
	}
	standard := row(coopmat2Table)
	best := standard
	for _, c := range coopmat2Cases {
		i := slices.IndexFunc(c.rows, func(t tableTile) bool { return t.maxDim == standard.maxDim })
		if i >= 0 && c.holds(v, standard.coopmatTile, r, cfg, few) {
			best = c.rows[i]
		}
	}
	return best.coopmatTile
}

// coopmatTiles lists tiles, best first: the preferred one, then smaller ones with fewer
// keys, rows and subgroups, for devices with less shared memory. Calls with few rows get
// few subgroups.
func coopmatTiles(f fragment, best coopmatTile, v *Variant, rows, maxInvocations uint32) []tile {
	slice := v.headDimV
	if best.DvSlice != 0 && best.DvSlice < slice {
		slice = arith.CeilDiv32(best.DvSlice, f.N) * f.N
	}
	var list []tile
	for frags := best.MFrags; frags >= 1; frags-- {
		if frags > 1 && rows <= f.M {
			continue
		}
		subgroups := best.Subgroups
		for subgroups > 1 && (subgroups*f.Subgroup > maxInvocations || !best.SplitKV && subgroups/2*frags*f.M >= rows) {
			subgroups /= 2
		}
		for keys := best.KVTile; keys >= 8; keys /= 2 {
			if best.SplitKV && keys != subgroups*best.KVStep {
				continue // each subgroup has one KV step
			}
			t := best
			t.fragment, t.Subgroups, t.MFrags, t.KVTile, t.DvSlice = f, subgroups, frags, keys, slice
			t.KVStep = uint32(arith.GCD(uint64(best.KVStep), uint64(keys)))
			t.QSmemChunks = min(best.QSmemChunks*16/f.K, t.chunks(v.headDim))
			if !t.computes(v.headDim, v.headDimV) {
				continue
			}
			// A single subgroup would hold a whole K and V tile in its registers.
			if t.vectors(v.headDim) > 16 && keys/2 >= f.M && keys/2%f.N == 0 {
				continue
			}
			list = append(list, t)
			if t.QSmemChunks > 0 {
				t.QSmemChunks = 0
				list = append(list, t)
			}
		}
	}
	return list
}

// maxFastScale is the scale at which a product of 16 reaches MaxFastScore.
const maxFastScale = problem.MaxFastScore / 16
