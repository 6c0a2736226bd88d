package attention_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevices"
)

// The kernels of dQ and of dK and dV are tuned each of its own, stored and used.
func TestTuneBackwardTimesStoresAndIsUsed(t *testing.T) {
	dev := tuneDevice(t)
	shape := attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 40, Sk: 50}
	op := testdevices.Op(t, attention.On(dev), scalarF32)
	before, err := op.PlanBackward(shape)
	require.NoError(t, err)

	dry, err := op.TuneBackward(context.Background(), shape, attention.TuneOptions{DryRun: true, Candidates: 3})
	require.NoError(t, err)
	require.Len(t, dry, 2)
	require.Empty(t, dry[0].Stored)
	require.Zero(t, dry[0].Gain)

	reports, err := op.TuneBackward(context.Background(), shape, attention.TuneOptions{Candidates: 2, Budget: tuneTime})
	require.NoError(t, err)
	require.Len(t, reports, 2)
	winners := map[string]string{}
	for i, outputs := range []string{"dQ", "dK dV"} {
		r := reports[i]
		require.Equal(t, outputs, r.Outputs)
		require.FileExists(t, r.Stored, "%+v", r)
		require.Equal(t, attention.TileTuned, r.Source)
		require.True(t, r.Candidates[0].Winner)
		timed := 0
		for _, c := range r.Candidates {
			if c.Ms > 0 {
				timed++
				require.Positive(t, c.TFLOPs)
			} else {
				require.NotEmpty(t, c.Reason)
			}
		}
		require.Equal(t, 2, timed)
		winners[outputs] = r.Winner
	}
	require.Equal(t, reports[0].Stored, reports[1].Stored)

	after, err := op.PlanBackward(shape)
	require.NoError(t, err)
	require.Empty(t, after.Notes)
	require.Equal(t, before.ScratchBytes, after.ScratchBytes)
	for i, k := range after.Kernels {
		if w, ok := winners[k.Outputs]; ok {
			require.Equal(t, attention.TileHeuristic, before.Kernels[i].Tuning)
			require.Equal(t, attention.TileTuned, k.Tuning)
			require.True(t, strings.HasPrefix(w, k.Tile), "%s: %s, winner %s", k.Outputs, k.Tile, w)
		}
	}
	forward, err := op.Plan(shape)
	require.NoError(t, err)
	require.Equal(t, attention.TileHeuristic, forward.Tuning, "the forward pass is another class")

	off := scalarF32
	off.Tuning = attention.TuningOff
	strict := testdevices.Op(t, attention.On(dev), off)
	plan, err := strict.PlanBackward(shape)
	require.NoError(t, err)
	require.Equal(t, before, plan)

	cache, err := attention.ReadTuningCache(dev)
	require.NoError(t, err)
	require.Len(t, cache.Classes, 2)
	for _, c := range cache.Classes {
		require.False(t, c.Stale)
	}
}

func TestTuneBackwardRefuses(t *testing.T) {
	cpu, err := attention.New(nil, attention.Config{HeadDim: 16})
	require.NoError(t, err)
	_, err = cpu.TuneBackward(context.Background(), smallShape, smallTuning)
	require.ErrorIs(t, err, attention.ErrUnsupported)
	require.NoError(t, cpu.Close())
	_, err = cpu.TuneBackward(context.Background(), smallShape, smallTuning)
	require.Error(t, err)
	_, err = attention.NewExperiment(nil, attention.Config{HeadDim: 16}, attention.Experiment{BackwardTiles: "q.kv_tile=32"})
	require.ErrorIs(t, err, attention.ErrUnsupported)
	if name := os.Getenv("VKATTN_DRIVER"); name == "" || name == "none" {
		t.Skip("no Vulkan driver under test (VKATTN_DRIVER)")
	}
	dev := tuneDevice(t)
	_, err = attention.NewExperiment(attention.On(dev), scalarF32, attention.Experiment{BackwardTiles: "q.kv_tiles=32"})
	require.ErrorIs(t, err, attention.ErrInvalid)
	named, err := attention.NewExperiment(attention.On(dev), scalarF32, attention.Experiment{BackwardTiles: "q.kv_tile=64"})
	require.NoError(t, err)
	defer named.Close()
	_, err = named.TuneBackward(context.Background(), smallShape, smallTuning)
	require.ErrorIs(t, err, attention.ErrUnsupported)
	_, err = named.Tune(context.Background(), smallShape, smallTuning)
	require.ErrorIs(t, err, attention.ErrUnsupported)
	plan, err := named.PlanBackward(smallShape)
	require.NoError(t, err)
	found := false
	for _, k := range plan.Kernels {
		found = found || k.Outputs == "dQ" && k.Tuning == attention.TileNamed && strings.Contains(k.Tile, "x64 ")
	}
	require.True(t, found, "%+v", plan)

	plain := testdevices.Op(t, attention.On(dev), scalarF32)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = plain.TuneBackward(ctx, smallShape, smallTuning)
	require.ErrorIs(t, err, context.Canceled)
	_, err = plain.TuneBackward(context.Background(), attention.Shape{}, smallTuning)
	require.Error(t, err)
}
