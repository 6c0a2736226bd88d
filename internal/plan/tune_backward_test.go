package plan

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/internal/testlevel"
)

// tunedKernels lists the kernels of a plan that tuning varies.
func tunedKernels(plan *chosenBackward) (list []BackwardKernel) {
	for _, k := range plan.Kernels {
		if k.Variant.Tunes() {
			list = append(list, k)
		}
	}
	return list
}

func backwardShape() problem.Shape {
	return problem.Shape{B: 4, Hq: 32, Hkv: 32, Sq: 4096, Sk: 4096}
}

func TestBackwardCandidatesFitTheirKernelAndDevice(t *testing.T) {
	testlevel.OnceOnly(t)
	pruned := 0
	for name, d := range tuneDevices {
		caps := *d
		caps.Limits.MaxStorageBuffers = BackwardBindings
		caps.MemoryHeaps = backwardCaps().MemoryHeaps
		for _, tier := range deviceTiers {
			for _, dim := range []int{16, 64, 111, 128, 256} {
				plan, reason := backwardProblem(t, &caps, problem.Config{HeadDim: dim}, tier, nil)
				if reason != "" {
					continue
				}
				require.NotEmpty(t, tunedKernels(&plan))
				for _, k := range tunedKernels(&plan) {
					own := k.Variant.tile()
					list := BackwardTilings(k.Variant)
					require.Equal(t, own, list[0], "the table's tile comes first")
					keys := map[tileKey]bool{}
					for _, x := range list {
						require.False(t, keys[KeyOf(x)], "%s: %v twice", name, x)
						keys[KeyOf(x)] = true
					}
					tried := 0
					for _, o := range PruneBackward(&caps, k.Variant, backwardShape(), 40) {
						_, over := o.V.fits(&caps.Limits)
						if over != "" {
							require.NotEmpty(t, o.Out, "%s: %v", name, o.V.tile())
							pruned++
						}
						if o.Out != "" {
							continue
						}
						tried++
						require.NotZero(t, o.Registers)
						c, ok := o.V.tile().(backwardCoopmatTile)
						if ok && k.Variant.Kernel == KernelDKDV {
							require.Zero(t, c.KVTile)
						} else if ok {
							require.Zero(t, c.RowTile)
							require.Zero(t, c.QSmemChunks)
						}
					}
					require.Greater(t, tried, 1, "%s %v d%d %s", name, tier, dim, k.Outputs)
					require.LessOrEqual(t, tried, 40)
				}
			}
		}
	}
	require.Greater(t, pruned, 100)
}

// The tiles that were measured within a tenth of the best on an H200 are among the
// candidates, see backwardCoopmatRowTiles.
func TestMeasuredBackwardTilesAreTried(t *testing.T) {
	caps := backwardCaps()
	for _, c := range []struct {
		d      int
		kernel backwardKernel
		tiles  []string
	}{
		{64, KernelDQ, []string{"256x64/32 16x16 8sg2", "256x64/16 16x16 8sg2"}},
		{64, KernelDKDV, []string{"256x64/16 16x16 8sg2 q2"}},
		{128, KernelDKDV, []string{"128x64/16 16x16 8sg1", "128x48/16 16x16 8sg1", "128x32/16 16x16 8sg1"}},
		{128, KernelDSK, []string{"128x64/16 16x16 4sg2", "256x64/16 16x16 8sg2"}},
	} {
		plan, reason := backwardProblem(t, caps, problem.Config{HeadDim: c.d}, problem.TierCoopMat2, nil)
		require.Empty(t, reason)
		var names []string
		for _, o := range PruneBackward(caps, plan.kernelOf(t, c.kernel).Variant, backwardShape(), TuneCandidates) {
			if o.Out == "" {
				names = append(names, o.V.Describe())
			}
		}
		require.Subset(t, names, c.tiles, "head dim %d", c.d)
	}
}

// storeTuned writes a file in which the kernel of dK and dV has its second candidate.
func storeTuned(t *testing.T) (path string, v BackwardVariant, class string, e TuningEntry) {
	t.Helper()
	caps, cfg, s := backwardCaps(), problem.Config{HeadDim: 64}, backwardShape()
	plan, reason := backwardProblem(t, caps, cfg, problem.TierCoopMat2, nil)
	require.Empty(t, reason)
	v = plan.kernelOf(t, KernelDKDV).Variant
	other := v
	for _, o := range PruneBackward(caps, v, s, 4)[1:] {
		if o.Out == "" {
			other = o.V
			break
		}
	}
	require.NotEqual(t, v.tile(), other.tile())
	path, class = filepath.Join(t.TempDir(), tuneDeviceInfo.File()), BackwardClassOf(&v, &cfg, &s)
	e = TuningEntry{SPIRV: v.SPIRV(), Tile: other.Key(), Name: other.Describe(), Ms: 1, HeuristicMs: 1.5, Shape: s.String()}
	require.NoError(t, freshStore(path, caps).Put(class, e))
	return path, v, class, e
}

func TestATunedBackwardTileIsUsed(t *testing.T) {
	path, v, class, e := storeTuned(t)
	caps := backwardCaps()
	plan, reason := backwardProblem(t, caps, problem.Config{HeadDim: 64}, problem.TierCoopMat2, freshStore(path, caps).PickBackward)
	require.Empty(t, reason)
	require.Empty(t, plan.Notes)
	k := plan.kernelOf(t, KernelDKDV)
	require.Equal(t, e.Tile, k.Variant.Key())
	require.Equal(t, problem.TileCached, k.Tuning)
	require.Equal(t, e.Name, k.Tile)
	require.Equal(t, k.Workgroups, uint64(4096)/uint64(k.Variant.OwnedRows())*32*4)
	require.Equal(t, problem.TileHeuristic, plan.kernelOf(t, KernelDQ).Tuning, "another class")
	require.Equal(t, "backward_coopmat2_f16_kv_ssbo f16 d64/64 none align8,8,8,8,0,8,8 q4096 k4096 rows262144 group1 bwd1", class)
	require.False(t, Stale(class, e))

	// Options have no tuned tiles, and other classes of calls have their own.
	v.Options.window = windowLeft
	require.False(t, v.Tunes())
	v.Options = Options{packRows: 4}
	require.True(t, v.Tunes())
	s := backwardShape()
	seen := map[string]bool{}
	for _, change := range []func(w *BackwardVariant, cfg *problem.Config, s *problem.Shape){
		func(*BackwardVariant, *problem.Config, *problem.Shape) {},
		func(w *BackwardVariant, _ *problem.Config, _ *problem.Shape) { w.accumulate = true },
		func(w *BackwardVariant, _ *problem.Config, _ *problem.Shape) { w.dK = false },
		func(w *BackwardVariant, _ *problem.Config, _ *problem.Shape) { w.dV = false },
		func(w *BackwardVariant, _ *problem.Config, _ *problem.Shape) { w.storeDS = true },
		func(w *BackwardVariant, _ *problem.Config, _ *problem.Shape) { w.dtype = problem.BF16 },
		func(w *BackwardVariant, _ *problem.Config, _ *problem.Shape) { w.align[tensors.BackwardDO] = 1 },
		func(w *BackwardVariant, _ *problem.Config, _ *problem.Shape) { w.headDimV = 32 },
		func(_ *BackwardVariant, cfg *problem.Config, _ *problem.Shape) { cfg.Causal = problem.TopLeft },
		func(_ *BackwardVariant, _ *problem.Config, s *problem.Shape) { s.Sk = 100 },
		func(_ *BackwardVariant, _ *problem.Config, s *problem.Shape) { s.Hkv = 8 },
	} {
		w, cfg, shape := v, problem.Config{HeadDim: 64}, s
		change(&w, &cfg, &shape)
		class := BackwardClassOf(&w, &cfg, &shape)
		require.False(t, seen[class], class)
		seen[class] = true
	}
}

// Builds that did not tune gradients wrote the same format: their files stay valid, and tiles
// of both passes live in one file.
func TestOldCachesKeepTheirForwardTiles(t *testing.T) {
	path, caps, v, cfg, r, entry := tuned(t)
	_, bv, class, e := storeTuned(t)
	got, source, notes := freshStore(path, caps).Pick(v, cfg, r)
	require.Equal(t, entry.Tile, KeyOf(got))
	require.Equal(t, problem.TileCached, source)
	require.Empty(t, notes)
	require.Empty(t, freshStore(path, backwardCaps()).PickBackward(bv, &problem.Config{HeadDim: 64}, &BackwardRequest{Shape: backwardShape()}))
	require.NoError(t, freshStore(path, caps).Put(class, e))
	classes, note := LoadTuning(path, tuneDeviceInfo)
	require.Empty(t, note)
	require.Len(t, classes, 2)
	_, source, _ = freshStore(path, caps).Pick(v, cfg, r)
	require.Equal(t, problem.TileCached, source)
}

// A bad entry costs the tuned tile: the table's runs, and one note says why.
func TestABadBackwardEntryIsIgnoredWithANote(t *testing.T) {
	for name, c := range map[string]struct {
		change func(e *TuningEntry)
		note   string
	}{
		"other SPIR-V":     {func(e *TuningEntry) { e.SPIRV = "00" }, "other SPIR-V"},
		"a tile of nobody": {func(e *TuningEntry) { e.Tile = `{"subgroups":1}` }, "not in the table"},
		"no tile":          {func(e *TuningEntry) { e.Tile = "" }, "not in the table"},
		"a forward tile":   {func(e *TuningEntry) { e.Tile = KeyOf(scalarTable[0]) }, "not in the table"},
		"another kernel's": {func(e *TuningEntry) {
			e.Tile = tileKey(strings.Replace(string(e.Tile), `"kv_tile":0`, `"kv_tile":64`, 1))
		}, "not in the table"},
		"huge": {func(e *TuningEntry) {
			e.Tile = tileKey(strings.Replace(string(e.Tile), `"subgroups":`, `"subgroups":4294967`, 1))
		}, "not in the table"},
	} {
		path, _, _, _ := storeTuned(t)
		editEntry(t, path, c.change)
		caps := backwardCaps()
		plan, reason := backwardProblem(t, caps, problem.Config{HeadDim: 64}, problem.TierCoopMat2, freshStore(path, caps).PickBackward)
		require.Empty(t, reason, name)
		require.Len(t, plan.Notes, 1, name)
		require.Contains(t, plan.Notes[0], c.note, name)
		require.Equal(t, problem.TileHeuristic, plan.kernelOf(t, KernelDKDV).Tuning, name)
	}
	// A note on the file stands once in the plan, not for each kernel.
	path, _, _, _ := storeTuned(t)
	edit(t, path, func(f *tuningFile) { f.Format = 3 })
	caps := backwardCaps()
	plan, reason := backwardProblem(t, caps, problem.Config{HeadDim: 64}, problem.TierCoopMat2, freshStore(path, caps).PickBackward)
	require.Empty(t, reason)
	require.Len(t, plan.Notes, 1)
	require.Contains(t, plan.Notes[0], "format 3")

	// A tile that the device's limits do not allow never reaches the driver.
	path, v, _, _ := storeTuned(t)
	editEntry(t, path, func(e *TuningEntry) { e.Tile = v.Key() })
	caps.Limits.MaxInvocations = 128
	p := freshStore(path, caps).PickBackward(v, &problem.Config{HeadDim: 64}, &BackwardRequest{Shape: backwardShape()})
	require.Empty(t, p.Source)
	require.Len(t, p.Notes, 1)
	require.Contains(t, p.Notes[0], "256 invocations, the device has 128")
}
