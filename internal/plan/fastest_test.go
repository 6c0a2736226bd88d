package plan

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/arith"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// raceRow is a row of the race of all tiers.
type raceRow struct {
	Tier, Tile, Status string
	Batch, Heads       int
	HeadsKV            int `json:"heads_kv"`
	SeqlenQ            int `json:"seqlen_q"`
	SeqlenK            int `json:"seqlen_k"`
	D                  int `json:"headdim"`
	DV                 int `json:"headdim_v"`
	Causal             problem.Causal
	DType              problem.DType
	MS                 struct{ Median float64 }
	SPIRV              map[string]string `json:"spirv_sha256"`
	Splits             int
	PageSize           int     `json:"page_size"`
	KV                 string  `json:"kv_dtype"`
	SparseRatio        float64 `json:"sparse_ratio"`
}

// raceCell is a problem of the race with the time of each tier in us.
type raceCell struct {
	name  string
	cfg   problem.Config
	shape problem.Shape
	time  map[problem.Tier]float64
	tile  map[problem.Tier]string

	splits int    // of tier coopmat2
	module string // likewise
}

// heldOut reports whether a cell was left out when the table was made: 30 % of them, drawn by a hash of the seed 48 and
// the problem.
func (c *raceCell) heldOut() bool {
	h := fnv.New32a()
	fmt.Fprintf(h, "48 %s", c.name)
	return h.Sum32()%10 < 3
}

func readRace(t *testing.T, file string) (list []*raceCell) {
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	cells := map[string]*raceCell{}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var r raceRow
		require.NoError(t, json.Unmarshal(lines.Bytes(), &r))
		tier, err := problem.ParseTier(r.Tier)
		if r.Status != "ok" || err != nil || r.PageSize != 0 || r.KV != "" || r.SparseRatio != 1 {
			continue
		}
		name := fmt.Sprintf("B%d H%d/%d S%dx%d D%d/%d %v", r.Batch, r.Heads, r.HeadsKV, r.SeqlenQ, r.SeqlenK, r.D, r.DV, r.Causal)
		c := cells[name]
		if c == nil {
			c = &raceCell{name: name, time: map[problem.Tier]float64{}, tile: map[problem.Tier]string{},
				cfg:   problem.Config{DType: r.DType, HeadDim: r.D, HeadDimV: r.DV, Causal: r.Causal},
				shape: problem.Shape{B: r.Batch, Hq: r.Heads, Hkv: r.HeadsKV, Sq: r.SeqlenQ, Sk: r.SeqlenK}}
			cells[name] = c
			list = append(list, c)
		}
		c.splits = max(c.splits, r.Splits)
		for name := range r.SPIRV {
			c.module = name
		}
		// The row of auto precedes that of its tier. Of the two the lesser: calls of a few us sometimes wait for the host.
		if us := 1000 * r.MS.Median; c.time[tier] == 0 || us < c.time[tier] {
			c.time[tier] = us
		}
		c.tile[tier] = r.Tile
	}
	require.NoError(t, lines.Err())
	return list
}

// raceCaps are the capabilities of the device of the race.
func raceCaps() *vk.Caps {
	caps := h200Caps()
	caps.ShaderCores, caps.Limits.MaxPushConstantBytes = 132, 256
	caps.CoopMatShapes = append(caps.CoopMatShapes, vk.CoopMatShape{
		M: 16, N: 8, K: 16, A: vk.Float16, B: vk.Float16, C: vk.Float32, Result: vk.Float32, Scope: vk.ScopeSubgroup})
	return caps
}

// works are what the tiers of the race did, from the text of their tiles: "64x32/16 16x16 2sg2 q2" of tier coopmat2,
// "attn_fa3_f16_d64_full 192x128" of tier cuda, "256x48" of tier cubin.
func (c *raceCell) works(t *testing.T) (list []work) {
	s := c.shape
	for _, tier := range slices.Sorted(maps.Keys(c.time)) {
		w := work{tier: tier, splits: max(c.splits, 1)}
		words := strings.Fields(c.tile[tier])
		tile := words[len(words)-1]
		switch tier {
		case problem.TierCUDA:
			name := strings.Split(words[0], "_")
			w.family = name[1]
			if last := name[len(name)-1]; last != "full" && last != "causal" { // a smaller tile, with its rows
				w.family += " " + last
			}
		case problem.TierCoopMat2:
			tile = words[0]
			_, err := fmt.Sscanf(words[2], "%dsg", &w.subgroups)
			require.NoError(t, err, c.name)
		}
		_, err := fmt.Sscanf(tile, "%dx", &w.rows)
		require.NoError(t, err, c.name)
		w.blocks = uint64(arith.CeilDiv32(uint32(s.Sq), w.rows)) * uint64(s.Hq) * uint64(s.B)
		if tier == problem.TierCoopMat2 {
			switch {
			case strings.Contains(c.module, "_decode"):
				w.family = decodeFamily(w.rows)
			case strings.Contains(c.module, "_general"):
				w.family = "_general"
			}
		}
		if w.general() { // heads of a group are packed
			w.blocks = uint64(arith.CeilDiv32(uint32(s.Sq*s.Group()), w.rows)) * uint64(s.Hkv*s.B*w.splits)
		}
		list = append(list, w)
	}
	return list
}

// Auto is within 3 % of the fastest tier in 95 % of the cells of the race, and of those that the table was not made from.
func TestAutoIsTheFastest(t *testing.T) {
	cells := readRace(t, "../../docs/results/2026-11-29-h200/tiers-2.jsonl.gz")
	require.Greater(t, len(cells), 300)
	var good, all [2]int
	for _, c := range cells {
		set := 0
		if c.heldOut() {
			set = 1
		}
		all[set]++
		if c.autoIsGood(t) {
			good[set]++
		}
	}
	for set, name := range []string{"in the table", "held out"} {
		t.Logf("%s: %d of %d", name, good[set], all[set])
		require.GreaterOrEqual(t, 100*good[set], 95*all[set], name)
	}
	require.GreaterOrEqual(t, 100*(good[0]+good[1]), 95*(all[0]+all[1]))
	require.InDelta(t, 0.3*float64(len(cells)), all[1], 0.05*float64(len(cells)))
}

// The held-out cells once more, with the kernels of 1 December.
func TestAutoIsTheFastestOfHeldOutCells(t *testing.T) {
	cells, good := readRace(t, "../../docs/results/2026-11-30-h200/tiers-held-out.jsonl.gz"), 0
	require.Len(t, cells, 90)
	for _, c := range cells {
		require.True(t, c.heldOut(), c.name)
		if c.autoIsGood(t) {
			good++
		}
	}
	t.Logf("%d of %d", good, len(cells))
	require.GreaterOrEqual(t, 100*good, 95*len(cells))
}

// autoIsGood reports whether the tier that TierAuto takes for a cell is within 3 % of the fastest.
func (c *raceCell) autoIsGood(t *testing.T) bool {
	r := Request{Shape: c.shape, Access: problem.AccessAddresses, Align: [4]uint32{8, 8, 8, 8}}
	list := c.works(t)
	of := r.seeOctant()
	best, _ := fastestOf(list, &c.cfg, &of, uint64(raceCaps().ShaderCores))
	taken := list[best].tier
	loss := c.time[taken] / slices.Min(slices.Collect(maps.Values(c.time)))
	if loss > 1.03 {
		t.Logf("%.2f %s: %v of %v us", loss, c.name, taken, c.time)
	}
	return loss <= 1.03
}

// TierAuto takes quantized decode of tier cubin for one row, where it was timed to be the fastest.
func TestQuantizedDecodeOfCubins(t *testing.T) {
	for _, c := range []struct {
		dtype  problem.DType
		kv     problem.KVType
		dim    int
		rows   int
		paged  bool
		single bool // no scratch memory with counters
		want   bool
	}{
		{problem.BF16, problem.KVFP8, 128, 1, false, false, true},
		{problem.BF16, problem.KVInt8, 64, 1, false, false, true},
		{problem.BF16, problem.KVInt8, 64, 1, true, false, true},
		{problem.BF16, problem.KVInt8, 128, 1, false, false, false},
		{problem.BF16, problem.KVInt8, 256, 1, false, false, true},
		{problem.F16, problem.KVInt8, 64, 1, false, false, false},
		{problem.F16, problem.KVFP8, 128, 1, false, false, false},
		{problem.F16, problem.KVQ8_0, 128, 1, false, false, true},
		{problem.F16, problem.KVQ8_0, 256, 1, false, false, false},
		{problem.F16, problem.KVQ4_0, 256, 1, false, false, true},
		{problem.BF16, problem.KVQ8_0, 128, 2, false, false, false},
		{problem.BF16, problem.KVQ8_0, 128, 1, true, false, false},
		{problem.BF16, problem.KVQ8_0, 128, 1, false, true, false},
		{problem.BF16, problem.KVSame, 128, 1, false, false, false},
	} {
		r := Request{Shape: problem.Shape{B: 1, Hq: 8, Sq: c.rows, Sk: 4096}, SeparateCombine: c.single}
		if c.paged {
			r.Options.pageSize = 64
		}
		cfg := problem.Config{DType: c.dtype, HeadDim: c.dim, KeyType: c.kv, ValueType: c.kv}
		require.Equal(t, c.want, decodesFaster(&cfg, &r), "%+v", c)
	}
	cfg := problem.Config{DType: problem.BF16, HeadDim: 64, KeyType: problem.KVInt8, ValueType: problem.KVInt8}
	for _, s := range []problem.Shape{{B: 1 << 16, Hq: 1, Sq: 1, Sk: 8}, {B: 1, Hq: 1 << 16, Sq: 1, Sk: 8}, {B: 1, Hq: 1, Sq: 1, Sk: 1<<30 + 1}} {
		require.False(t, decodesFaster(&cfg, &Request{Shape: s}), "a launch that no grid holds: %v", s)
	}
}

// Latent attention takes the tier that was faster on an H200 (docs/results/2026-11-30-h200/latent-4.jsonl.gz), and its estimates are near the
// times.
func TestAutoOfLatentAttention(t *testing.T) {
	for _, c := range []struct {
		b, heads, rows, keys int
		us                   [2]float64 // of tiers cuda and coopmat2; 0: not timed
	}{
		{32, 128, 1, 8192, [2]float64{153.9, 935}},
		{32, 128, 2, 8192, [2]float64{281.2, 0}},
		{32, 16, 1, 8192, [2]float64{91.2, 161}},
		{32, 16, 2, 8192, [2]float64{93, 0}},
		{32, 16, 1, 32768, [2]float64{308, 638}},
		{8, 128, 1, 8192, [2]float64{53.4, 277}},
		{8, 16, 1, 8192, [2]float64{42.3, 51.6}},
		{8, 16, 1, 32768, [2]float64{96.9, 132}},
		{1, 128, 1, 32768, [2]float64{38.6, 122}},
		{1, 16, 1, 8192, [2]float64{21.7, 33.8}},
	} {
		cfg := problem.Config{DType: problem.BF16, HeadDim: 576, HeadDimV: 512, Causal: problem.BottomRight}
		r := Request{Shape: problem.Shape{B: c.b, Hq: c.heads, Hkv: 1, Sq: c.rows, Sk: c.keys}, Access: problem.AccessAddresses,
			Align: [4]uint32{8, 8, 8, 8}, VInK: true, operands: operandsInRegisters}
		f16 := cfg
		f16.DType = problem.F16
		v, shared, reason := chooseVariant(raceCaps(), f16, problem.TierCoopMat2, r)
		require.Empty(t, reason)
		vulkan := chosen{Plan: problem.Plan{Tier: problem.TierCoopMat2}, Variant: v, Splitting: splittingOf(raceCaps(), &cfg, &v, &r, shared)}
		list := []work{workOf(&vulkan, &r), {tier: problem.TierCUDA, family: latentFamily, rows: 64}}
		require.True(t, list[0].decodes())
		best, times := fastestOf(list, &cfg, &r, uint64(raceCaps().ShaderCores))
		require.Equal(t, 1, best, "%+v: %v", c, times)
		for i, us := range c.us {
			if us > 0 {
				assert.InEpsilon(t, us, times[1-i], 0.35, "%+v: %v", c, times)
			}
		}
	}
}

// Calls with lengths and windows take the tier that was faster on an H200 (docs/results/2026-11-30-h200, fa3-sequences.jsonl.gz and
// cubin-sequences.jsonl.gz). The mixed and
// padded ones have sequences of 77 to 8192 rows, of which a plan knows the longest.
func TestAutoOfSequences(t *testing.T) {
	for _, c := range []struct {
		name                                     string
		dim, tile, b, heads, kvHeads, rows, keys int
		causal                                   problem.Causal
		us                                       [2]float64 // of tiers cuda and coopmat2
		cubin                                    int        // rows of the tile of tier cubin; 0: it was not timed
		cubinUS                                  [2]float64 // of tiers cubin and coopmat2
	}{
		{"packed", 64, 192, 8, 16, 16, 4096, 4096, problem.CausalNone, [2]float64{945.8, 1638}, 256, [2]float64{1006.3, 1650.4}},
		{"packed", 64, 192, 8, 16, 16, 4096, 4096, problem.BottomRight, [2]float64{553.7, 965.9}, 256, [2]float64{568.9, 960.1}},
		{"packed", 128, 128, 8, 16, 16, 4096, 4096, problem.CausalNone, [2]float64{1532, 3365}, 192, [2]float64{1714.4, 3397}},
		{"packed", 128, 128, 8, 16, 16, 4096, 4096, problem.BottomRight, [2]float64{841.6, 1977}, 192, [2]float64{972, 1971.1}},
		{"mixed", 64, 192, 21, 32, 8, 8192, 8192, problem.CausalNone, [2]float64{1394, 2438}, 256, [2]float64{1491.1, 2428.8}},
		{"mixed", 64, 192, 21, 32, 8, 8192, 8192, problem.BottomRight, [2]float64{832.6, 1390}, 256, [2]float64{852.9, 1393.1}},
		{"mixed", 128, 128, 21, 32, 8, 8192, 8192, problem.CausalNone, [2]float64{2265, 5103}, 192, [2]float64{2455, 5136.8}},
		{"window16k", 64, 192, 1, 16, 16, 16384, 16384, problem.BottomRight, [2]float64{190.4, 342.1}, 256, [2]float64{200.4, 343.6}},
		{"window16k", 128, 128, 1, 16, 16, 16384, 16384, problem.BottomRight, [2]float64{263.8, 672.6}, 192, [2]float64{321.1, 675.4}},
		{"window4k", 64, 192, 4, 16, 16, 4096, 4096, problem.BottomRight, [2]float64{188.5, 315.1}, 0, [2]float64{}},
		{"window4k", 128, 128, 4, 16, 16, 4096, 4096, problem.BottomRight, [2]float64{234.9, 615.3}, 0, [2]float64{}},
		{"packed1k", 64, 128, 16, 16, 16, 1024, 1024, problem.BottomRight, [2]float64{111.7, 172.3}, 256, [2]float64{112.6, 173.3}},
		{"packed1k", 128, 128, 16, 16, 16, 1024, 1024, problem.BottomRight, [2]float64{147.1, 359.9}, 128, [2]float64{196.2, 358}},
		{"chunk", 128, 128, 8, 32, 8, 512, 8192, problem.BottomRight, [2]float64{746.4, 1673}, 0, [2]float64{}},
		{"short", 64, 128, 64, 32, 8, 128, 128, problem.BottomRight, [2]float64{55.23, 69.63}, 128, [2]float64{63.4, 69.7}},
		{"short", 128, 128, 64, 32, 8, 128, 128, problem.BottomRight, [2]float64{67.65, 132}, 128, [2]float64{90, 131.8}},
		{"one", 64, 128, 1, 32, 8, 512, 512, problem.BottomRight, [2]float64{14.72, 83.1}, 128, [2]float64{15.6, 88.4}},
		{"one", 128, 128, 1, 32, 8, 512, 512, problem.BottomRight, [2]float64{16.26, 23.78}, 128, [2]float64{17.7, 23.8}},
		{"padded", 128, 128, 21, 32, 8, 8192, 8192, problem.BottomRight, [2]float64{1234, 2738}, 0, [2]float64{}},
		{"rows16", 128, 64, 16, 32, 8, 16, 4096, problem.BottomRight, [2]float64{148.5, 166}, 128, [2]float64{232.2, 165}},
	} {
		cfg := problem.Config{DType: problem.F16, HeadDim: c.dim, Causal: c.causal}
		r := Request{Shape: problem.Shape{B: c.b, Hq: c.heads, Hkv: c.kvHeads, Sq: c.rows, Sk: c.keys}, Access: problem.AccessAddresses,
			Align: [4]uint32{8, 8, 8, 8}, operands: operandsInRegisters}
		if c.rows > 16 { // chooseOperands
			r.operands = noDecodeKernel
		}
		switch {
		case strings.HasPrefix(c.name, "window"):
			cfg.Window = problem.WindowOf(1024, 0)
			r.Options.window = windowLeft + windowRight
		case c.name == "mixed":
			r.Options.Lengths, r.TotalQ = LengthCuQ+lengthCuK, 25361
		case c.name == "padded":
			r.Options.Lengths = LengthUsedQ + lengthUsedK
		default:
			r.Options.Lengths, r.TotalQ = LengthCuQ+lengthCuK, c.b*c.rows
		}
		v, shared, reason := chooseVariant(raceCaps(), cfg, problem.TierCoopMat2, r)
		require.Empty(t, reason)
		vulkan := chosen{Plan: problem.Plan{Tier: problem.TierCoopMat2}, Variant: v, Splitting: splittingOf(raceCaps(), &cfg, &v, &r, shared)}
		family := fmt.Sprintf("fa3 %d", c.tile) // tileFamily of package cudapath
		if c.dim+c.tile == 256 {
			family = "fa3"
		}
		blocksOf := func(tile int) uint64 { // rowBlocks of package cudapath
			blocks := uint64(c.b*c.heads) * uint64((c.rows+tile-1)/tile)
			if r.TotalQ > 0 {
				blocks = min(blocks, uint64(r.TotalQ/tile+c.b)*uint64(c.heads))
			}
			return blocks
		}
		list := []work{workOf(&vulkan, &r), {tier: problem.TierCUDA, family: family, rows: uint32(c.tile), blocks: blocksOf(c.tile), splits: 1}}
		best, times := fastestOf(list, &cfg, &r, uint64(raceCaps().ShaderCores))
		assert.Equal(t, 1, best, "%+v: %v", c, times)
		if c.cubin == 0 {
			continue
		}
		list[1] = work{tier: problem.TierCubin, rows: uint32(c.cubin), blocks: blocksOf(c.cubin), splits: 1}
		if c.cubin == 128 {
			list[1].family = shortFamily
		}
		best, times = fastestOf(list, &cfg, &r, uint64(raceCaps().ShaderCores))
		if list[0].leavesFewRows(&r) {
			best = 0
		}
		assert.LessOrEqual(t, c.cubinUS[1-best], 1.1*slices.Min(c.cubinUS[:]), "%+v: %v", c, times)
	}
}

// Lists of one length have no offsets that a part of a grid could move.
func TestGradientsOfListsOfOneLengthAreNotDivided(t *testing.T) {
	r := BackwardRequest{}
	r.Shape = problem.Shape{B: 1 << 16, Hq: 1, Sq: 1, Sk: 16}
	for tokens, want := range map[uint32]bool{sparseLists: false, sparseLists + sparseTopK: true} {
		r.Options.sparseTokens = tokens
		k := BackwardKernel{Variant: BackwardVariant{Kernel: KernelDQ, Tile: backwardTile{QTile: 64}}}
		require.Equal(t, want, strings.Contains(k.setGrid(&minimalCaps().Limits, &r), OneTopK))
	}
}
