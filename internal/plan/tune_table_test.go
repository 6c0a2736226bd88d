package plan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// tuneProblem returns a variant with the heuristic's tile, and its request.
func tuneProblem(t testing.TB, caps *vk.Caps, cfg problem.Config, tier problem.Tier, s problem.Shape) (Variant, Request) {
	t.Helper()
	s.Hkv = s.KVHeads()
	r := Request{Shape: s, Access: problem.AccessDescriptors, Align: [4]uint32{8, 8, 8, 8}}
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
	testlevel.OnceOnly(t)
	for name, caps := range tuneDevices {
		for _, tier := range []problem.Tier{problem.TierCoopMat, problem.TierScalar} {
			if _, reason := pickFragment(caps, tier, problem.F16); tier != problem.TierScalar && reason != "" {
				continue
			}
			for _, d := range [][2]int{{64, 64}, {128, 128}, {192, 128}, {111, 111}, {256, 256}, {576, 512}, {1, 1}} {
				for _, s := range []problem.Shape{large, {B: 1, Hq: 1, Sq: 1, Sk: 1}} {
					v, _ := tuneProblem(t, caps, problem.Config{HeadDim: d[0], HeadDimV: d[1]}, tier, s)
					list := Tilings(v)
					require.Equal(t, v.Tile, list[0], "the heuristic's tile comes first")
					keys := map[tileKey]bool{}
					for _, x := range list {
						require.False(t, keys[KeyOf(x)], "%s: %v twice", name, x)
						keys[KeyOf(x)] = true
						w := v
						w.Tile = x
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
	testlevel.OnceOnly(t)
	pruned := 0
	for name, caps := range tuneDevices {
		for _, tier := range []problem.Tier{problem.TierCoopMat, problem.TierScalar} {
			if _, reason := pickFragment(caps, tier, problem.F16); tier != problem.TierScalar && reason != "" {
				continue
			}
			for _, d := range []int{64, 128, 256} {
				v, r := tuneProblem(t, caps, problem.Config{HeadDim: d}, tier, large)
				for _, o := range Prune(caps, v, r, 1000) {
					shared, err := o.V.sharedBytes()
					require.NoError(t, err)
					over := shared > uint64(caps.Limits.MaxSharedBytes) || o.V.Tile.LocalSize() > caps.Limits.MaxInvocations
					if over {
						require.NotEmpty(t, o.Out, "%s: %v", name, o.V.Tile)
						pruned++
					}
				}
			}
		}
	}
	require.Greater(t, pruned, 100)
}

func tried(options []Option) (names []string) {
	for _, o := range options {
		if o.Out == "" {
			names = append(names, o.V.Describe())
		}
	}
	return names
}

func TestSmallShapesTakeSmallTiles(t *testing.T) {
	v, r := tuneProblem(t, h200Caps(), problem.Config{HeadDim: 64}, problem.TierCoopMat2, problem.Shape{B: 1, Hq: 8, Sq: 20, Sk: 30})
	for _, o := range Prune(h200Caps(), v, r, 100) {
		if o.Out == "" {
			require.Less(t, o.V.Tile.Rows(), uint32(64), "%v", o.V.Tile)
			require.Less(t, o.V.Tile.keys(), uint32(64), "%v", o.V.Tile)
		}
	}
	v, r = tuneProblem(t, h200Caps(), problem.Config{HeadDim: 64}, problem.TierCoopMat2, large)
	require.Len(t, tried(Prune(h200Caps(), v, r, 5)), 5)
	require.Len(t, tried(Prune(h200Caps(), v, r, 1)), 1, "the heuristic's")
}

func TestKeysNameOneTile(t *testing.T) {
	caps := h200Caps()
	v, r := tuneProblem(t, caps, problem.Config{HeadDim: 64}, problem.TierCoopMat2, large)
	for i, x := range Tilings(v) {
		back, ok := tileOf(v.Tile, KeyOf(x))
		require.True(t, ok)
		require.Equal(t, x, back, "a field of the tile is not in its key")
		if i%17 > 0 {
			continue
		}
		w := v
		w.Tile = x
		got, reason := tiling(caps, v, KeyOf(x))
		require.Equal(t, x, got)
		if _, over := Fits(caps, w, r.Shape); over != "" {
			require.NotEmpty(t, reason, "over a limit: %v", x)
		} else {
			require.Empty(t, reason)
		}
	}
	own := string(KeyOf(v.Tile))
	for _, key := range []string{"", "x", "null", "{}", own + " ", own + "1", strings.Replace(own, `"kv_tile":128`, `"kv_tile":72`, 1),
		strings.Replace(own, "{", `{"invocations":64,`, 1), strings.Replace(own, `"alias_kv":false,`, "", 1), string(KeyOf(scalarTable[0]))} {
		_, reason := tiling(caps, v, tileKey(key))
		require.Contains(t, reason, "not in the table")
	}
}

func TestClassesOfShapes(t *testing.T) {
	caps := h200Caps()
	class := func(cfg problem.Config, s problem.Shape) string {
		v, r := tuneProblem(t, caps, cfg, problem.TierCoopMat2, s)
		return ClassOf(v, cfg, r.Shape)
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
	require.NotEqual(t, ClassOf(v, cfg, r.Shape), ClassOf(w, cfg, r.Shape))
	w = v
	w.align[2] = 1
	require.NotEqual(t, ClassOf(v, cfg, r.Shape), ClassOf(w, cfg, r.Shape))

	for _, s := range []problem.Shape{{B: 16, Hq: 8, Sq: 16384, Sk: 16384}, {B: 3, Hq: 8, Sq: 100, Sk: 100}, {B: 7, Hq: 64, Sq: 4096, Sk: 64}} {
		less := ShrunkBatch(s)
		require.Equal(t, class(cfg, s), class(cfg, less))
		require.LessOrEqual(t, less.B, s.B)
	}
	require.Equal(t, 2, ShrunkBatch(problem.Shape{B: 16, Hq: 8, Sq: 16384, Sk: 16384}).B)
}
