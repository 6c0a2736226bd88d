package attention

import (
	"math"
	"strings"
	"testing"

	"vkattn/attention/problem"
	"vkattn/vk"

	"github.com/stretchr/testify/require"
)

// tuneProblem returns a variant with the heuristic's tile, and its request.
func tuneProblem(t testing.TB, caps *vk.Caps, cfg problem.Config, tier problem.Tier, s problem.Shape) (variant, request) {
	t.Helper()
	s.Hkv = s.KVHeads()
	r := request{shape: s, access: problem.AccessDescriptors, align: [4]uint32{8, 8, 8, 8}}
	v, _, reason := chooseVariant(caps, cfg, tier, r)
	require.Empty(t, reason)
	return v, r
}

var tuneDevices = map[string]*vk.Caps{
	"16x16x16, 32 invocations, 48 KiB": h200Caps(),
	"16x16x16, 64 invocations, 64 KiB": coopmatCaps(16, 16, 16, 64, 64<<10),
	"8x8x8, 8 invocations, 32 KiB":     coopmatCaps(8, 8, 8, 8, 32<<10),
	"16x8x8, 32 invocations, 48 KiB":   coopmatCaps(16, 8, 8, 32, 48<<10),
	"Vulkan 1.1 minimum":               minimalCaps(),
}

var large = problem.Shape{B: 4, Hq: 32, Sq: 4096, Sk: 4096}

func TestCandidatesAreWhatTheKernelsCompute(t *testing.T) {
	OnceOnly(t)
	for name, caps := range tuneDevices {
		for _, tier := range []problem.Tier{problem.TierCoopMat, problem.TierScalar} {
			if _, reason := pickFragment(caps, tier, problem.F16); tier != problem.TierScalar && reason != "" {
				continue
			}
			for _, d := range [][2]int{{64, 64}, {128, 128}, {192, 128}, {111, 111}, {256, 256}, {576, 512}, {1, 1}} {
				for _, s := range []problem.Shape{large, {B: 1, Hq: 1, Sq: 1, Sk: 1}} {
					v, _ := tuneProblem(t, caps, problem.Config{HeadDim: d[0], HeadDimV: d[1]}, tier, s)
					list := tilings(v)
					require.Equal(t, v.tile, list[0], "the heuristic's tile comes first")
					keys := map[tileKey]bool{}
					for _, x := range list {
						require.False(t, keys[keyOf(x)], "%s: %v twice", name, x)
						keys[keyOf(x)] = true
						w := v
						w.tile = x
						checkTile(t, w)
					}
					require.Greater(t, len(list), 20, "%s %v %v", name, tier, d)
				}
			}
		}
	}
}

// A tile over a limit never survives pruning: some drivers lose the device over it.
func TestNothingOverALimitIsTried(t *testing.T) {
	OnceOnly(t)
	pruned := 0
	for name, caps := range tuneDevices {
		for _, tier := range []problem.Tier{problem.TierCoopMat, problem.TierScalar} {
			if _, reason := pickFragment(caps, tier, problem.F16); tier != problem.TierScalar && reason != "" {
				continue
			}
			for _, d := range []int{64, 128, 256} {
				v, r := tuneProblem(t, caps, problem.Config{HeadDim: d}, tier, large)
				for _, o := range prune(caps, v, r, 1000) {
					shared, err := o.v.sharedBytes()
					require.NoError(t, err)
					over := shared > uint64(caps.Limits.MaxSharedBytes) || o.v.tile.invocations() > caps.Limits.MaxInvocations
					if over {
						require.NotEmpty(t, o.out, "%s: %v", name, o.v.tile)
						pruned++
					}
				}
			}
		}
	}
	require.Greater(t, pruned, 100)
}

func tried(options []option) (names []string) {
	for _, o := range options {
		if o.out == "" {
			names = append(names, o.v.describe())
		}
	}
	return names
}

func TestSmallShapesTakeSmallTiles(t *testing.T) {
	v, r := tuneProblem(t, h200Caps(), problem.Config{HeadDim: 64}, problem.TierCoopMat2, problem.Shape{B: 1, Hq: 8, Sq: 20, Sk: 30})
	for _, o := range prune(h200Caps(), v, r, 100) {
		if o.out == "" {
			require.Less(t, o.v.tile.rows(), uint32(64), "%v", o.v.tile)
			require.Less(t, o.v.tile.keys(), uint32(64), "%v", o.v.tile)
		}
	}
	v, r = tuneProblem(t, h200Caps(), problem.Config{HeadDim: 64}, problem.TierCoopMat2, large)
	require.Len(t, tried(prune(h200Caps(), v, r, 5)), 5)
	require.Len(t, tried(prune(h200Caps(), v, r, 1)), 1, "the heuristic's")
}

func TestKeysNameOneTile(t *testing.T) {
	caps := h200Caps()
	v, r := tuneProblem(t, caps, problem.Config{HeadDim: 64}, problem.TierCoopMat2, large)
	for i, x := range tilings(v) {
		back, ok := tileOf(&v, keyOf(x))
		require.True(t, ok)
		require.Equal(t, x, back, "a field of the tile is not in its key")
		if i%17 > 0 {
			continue
		}
		w := v
		w.tile = x
		got, reason := tiling(caps, v, keyOf(x), r.shape)
		require.Equal(t, x, got)
		if _, over := fits(caps, w, r.shape); over != "" {
			require.NotEmpty(t, reason, "over a limit: %v", x)
		} else {
			require.Empty(t, reason)
		}
	}
	own := string(keyOf(v.tile))
	for _, key := range []string{"", "x", "null", "{}", own + " ", own + "1", strings.Replace(own, `"kv_tile":128`, `"kv_tile":72`, 1),
		strings.Replace(own, "{", `{"invocations":64,`, 1), strings.Replace(own, `"alias_kv":false,`, "", 1), string(keyOf(scalarTable[0]))} {
		_, reason := tiling(caps, v, tileKey(key), r.shape)
		require.Contains(t, reason, "not in the table")
	}
}

func TestClassesOfShapes(t *testing.T) {
	caps := h200Caps()
	class := func(cfg problem.Config, s problem.Shape) string {
		v, r := tuneProblem(t, caps, cfg, problem.TierCoopMat2, s)
		return classOf(v, cfg, r.shape)
	}
	cfg := problem.Config{HeadDim: 128}
	base := class(cfg, problem.Shape{B: 1, Hq: 32, Sq: 4096, Sk: 4096})
	require.Equal(t, "coopmat2_f16_ssbo f16 d128/128 none align8,8,8,8 q4096 k4096 rows131072 group1", base)
	require.Equal(t, base, class(cfg, problem.Shape{B: 1, Hq: 31, Sq: 4095, Sk: 2049}))
	require.Equal(t, class(cfg, problem.Shape{B: 4, Hq: 32, Sq: 8192, Sk: 8192}), class(cfg, problem.Shape{B: 64, Hq: 40, Sq: 20000, Sk: 100000}))
	square := problem.Shape{B: 1, Hq: 32, Sq: 4096, Sk: 4096}
	seen := map[string]bool{base: true}
	for name, other := range map[string]string{
		"fewer rows": class(cfg, problem.Shape{B: 1, Hq: 16, Sq: 4096, Sk: 4096}),
		"keys":       class(cfg, problem.Shape{B: 1, Hq: 32, Sq: 4096, Sk: 1024}),
		"queries":    class(cfg, problem.Shape{B: 4, Hq: 32, Sq: 1024, Sk: 4096}),
		"GQA":        class(cfg, problem.Shape{B: 1, Hq: 32, Hkv: 8, Sq: 4096, Sk: 4096}),
		"causal":     class(problem.Config{HeadDim: 128, Causal: problem.TopLeft}, square),
		"type":       class(problem.Config{HeadDim: 128, DType: problem.BF16}, square),
		"head dim":   class(problem.Config{HeadDim: 128, HeadDimV: 64}, square),
	} {
		require.False(t, seen[other], "%s: %s", name, other)
		seen[other] = true
	}
	require.Equal(t, class(problem.Config{HeadDim: 128, Causal: problem.TopLeft}, square), class(problem.Config{HeadDim: 128, Causal: problem.BottomRight}, square), "one mask")
	wide := problem.Shape{B: 1, Hq: 32, Sq: 1024, Sk: 4096}
	require.NotEqual(t, class(problem.Config{HeadDim: 128, Causal: problem.TopLeft}, wide), class(problem.Config{HeadDim: 128, Causal: problem.BottomRight}, wide))

	v, r := tuneProblem(t, caps, cfg, problem.TierCoopMat2, square)
	w := v
	w.lse = true
	require.NotEqual(t, classOf(v, cfg, r.shape), classOf(w, cfg, r.shape))
	w = v
	w.align[2] = 1
	require.NotEqual(t, classOf(v, cfg, r.shape), classOf(w, cfg, r.shape))

	for _, s := range []problem.Shape{{B: 16, Hq: 8, Sq: 16384, Sk: 16384}, {B: 3, Hq: 8, Sq: 100, Sk: 100}, {B: 7, Hq: 64, Sq: 4096, Sk: 64}} {
		less := shrunkBatch(s)
		require.Equal(t, class(cfg, s), class(cfg, less))
		require.LessOrEqual(t, less.B, s.B)
	}
	require.Equal(t, 2, shrunkBatch(problem.Shape{B: 16, Hq: 8, Sq: 16384, Sk: 16384}).B)
}

func TestStatisticsOfDrivers(t *testing.T) {
	for name, c := range map[string]struct {
		list []vk.Statistic
		want compilerStats
	}{
		"nothing": {nil, compilerStats{}},
		// As driver 580.159 reports a kernel that declares 38928 bytes of shared memory, and one that spills nothing.
		"NVIDIA": {[]vk.Statistic{{Name: "Register Count", Value: 255}, {Name: "Binary Size", Value: 117504}, {Name: "Stack Size", Value: 0},
			{Name: "Local Memory Size", Value: 0x1000000000 + 192}, {Name: "Shared Memory Size", Value: 48144}},
			compilerStats{registers: 255, spills: 192 + 36, inShared: 36}},
		"NVIDIA, no spills": {[]vk.Statistic{{Name: "Register Count", Value: 225}, {Name: "Binary Size", Value: 91264}, {Name: "Stack Size", Value: 0},
			{Name: "Local Memory Size", Value: 0x1000000000}, {Name: "Shared Memory Size", Value: 38928}},
			compilerStats{registers: 225}},
		"NVIDIA, an older driver": {[]vk.Statistic{{Name: "Register Count", Value: 255}, {Name: "Local Memory Size", Value: 208}},
			compilerStats{registers: 255, spills: 208}},
		"RADV": {[]vk.Statistic{{Name: "SGPRs", Value: 108}, {Name: "VGPRs", Value: 192}, {Name: "Spilled SGPRs", Value: 3},
			{Name: "Spilled VGPRs", Value: 252, Description: "Number of VGPR registers spilled per subgroup"},
			{Name: "LDS size", Value: 32768}, {Name: "Scratch size", Value: 64640, Description: "Private memory in bytes per subgroup"}, {Name: "Subgroups per SIMD", Value: 4}},
			compilerStats{registers: 192, spills: 1010}},
		"ANV": {[]vk.Statistic{{Name: "Instruction Count", Value: 900}, {Name: "Spill count", Value: 0}, {Name: "Fill count", Value: 0}, {Name: "Scratch Memory Size", Value: 0}},
			compilerStats{}},
	} {
		require.Equal(t, c.want, readStats(c.list, 38928, 256, 64), name)
	}
}

func TestSpillsAreDroppedWhereOthersHaveNone(t *testing.T) {
	make := func(registers, spills int) *candidate {
		return &candidate{stats: compilerStats{registers: registers, spills: spills}}
	}
	heuristic, clean, few, many, silent := make(255, 4000), make(200, 0), make(255, spillSlack), make(255, spillSlack+4), make(0, 0)
	out := dropSpills([]*candidate{heuristic, clean, few, many, silent})
	require.Len(t, out, 1)
	require.Contains(t, out[many], "260 bytes")
	require.Empty(t, dropSpills([]*candidate{heuristic, few, many, silent}), "no candidate is known to spill less")
}

func TestResultsOfTwoTilesAgree(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		t    problem.DType
		x, y float32
		same bool
	}{
		{problem.F32, 1, 1.0001, true}, {problem.F32, 1, 1.01, false}, {problem.F16, 1, 1.01, true}, {problem.F16, 1, 0.9, false}, {problem.F16, 100, 101, true},
		{problem.BF16, 0, 0.05, true}, {problem.BF16, 0, -0.1, false}, {problem.F16, 0, nan, false}, {problem.F16, nan, 0, false}, {problem.F16, nan, nan, false},
	} {
		err := agree(c.t, []float32{0, c.x}, []float32{0, c.y})
		if c.same {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "element 1", "%v", c)
		}
	}
}
