package attention_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/problem"
	"vkattn/internal/testdevice"
	"vkattn/internal/testdevices"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// mayLack skips a test if the device under test lacks the tier. lavapipe has every tier, so
// nothing is skipped there.
func mayLack(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, attention.ErrUnsupported) && os.Getenv("VKATTN_DRIVER") != "lavapipe" {
		t.Skip(err)
	}
}

// tuneDevice opens the driver under test with a cache folder of the test's own.
func tuneDevice(t *testing.T) *vk.Device {
	t.Helper()
	switch name := os.Getenv("VKATTN_DRIVER"); {
	case name == "", name == "none":
		t.Skip("no Vulkan driver under test (VKATTN_DRIVER)")
	case testdevice.Null():
		t.Skip("a null device times nothing")
	}
	t.Setenv(vk.CacheDirEnv, t.TempDir())
	dev, err := vk.Open(vk.Options{Stats: true, Validation: os.Getenv("VKATTN_VALIDATION") == "1"})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, dev.Close())
		require.Empty(t, dev.ValidationMessages())
	})
	return dev
}

// tuneTime is so much that the number of candidates alone ends a tuning, on a slow machine too.
const tuneTime = 10 * time.Hour

var (
	smallTuning = attention.TuneOptions{Candidates: 3, Budget: tuneTime}
	smallShape  = attention.Shape{B: 2, Hq: 2, Hkv: 1, Sq: 70, Sk: 90}
	scalarF32   = attention.Config{DType: attention.F32, HeadDim: 16, Tier: attention.TierScalar}
)

func TestTuneTimesStoresAndIsUsed(t *testing.T) {
	dev := tuneDevice(t)
	op := testdevices.Op(t, attention.On(dev), scalarF32)
	plan, err := op.Plan(smallShape)
	require.NoError(t, err)
	require.Equal(t, attention.TileHeuristic, plan.Tuning)

	var stages []string
	o := smallTuning
	o.Progress = func(p attention.TuneProgress) { stages = append(stages, p.Stage) }
	report, err := op.Tune(context.Background(), smallShape, o)
	require.NoError(t, err)
	require.Contains(t, stages, "compiling")
	require.Contains(t, stages, "timing, round 1")
	require.Equal(t, plan.Tile, strings.Join(strings.Fields(report.Heuristic)[:2], " "))
	timed := 0
	for _, c := range report.Candidates {
		if c.Ms > 0 {
			timed++
			require.Positive(t, c.TFLOPs)
			require.Positive(t, c.Runs)
		} else {
			require.NotEmpty(t, c.Reason)
		}
	}
	require.Equal(t, 3, timed)
	require.True(t, report.Candidates[0].Winner)
	require.Equal(t, report.Winner, report.Candidates[0].Tile)
	require.GreaterOrEqual(t, report.Gain, 1.0)
	require.Equal(t, attention.TileTuned, report.Source)
	require.FileExists(t, report.Stored)
	require.Equal(t, os.Getenv(vk.CacheDirEnv), filepath.Dir(filepath.Dir(report.Stored)))

	plan, err = op.Plan(smallShape)
	require.NoError(t, err)
	require.Equal(t, attention.TileTuned, plan.Tuning)
	require.True(t, strings.HasPrefix(report.Winner, plan.Tile))
	require.Empty(t, plan.Notes)
	off := scalarF32
	off.Tuning = attention.TuningOff
	strict := testdevices.Op(t, attention.On(dev), off)
	plan, err = strict.Plan(smallShape)
	require.NoError(t, err)
	require.Equal(t, attention.TileHeuristic, plan.Tuning)

	cache, err := attention.ReadTuningCache(dev)
	require.NoError(t, err)
	require.Equal(t, report.Stored, cache.Path)
	require.Len(t, cache.Classes, 1)
	require.Equal(t, report.Class, cache.Classes[0].Class)
	require.False(t, cache.Classes[0].Stale)
	path, err := attention.ClearTuningCache(dev)
	require.NoError(t, err)
	require.NoFileExists(t, path)
	_, err = attention.ClearTuningCache(dev)
	require.NoError(t, err, "a second call changes nothing")
}

// A kernel changed for a measurement is not tuned: all kernels would use its result.
func TestExperimentsAreNotTuned(t *testing.T) {
	dev := tuneDevice(t)
	cfg := attention.Config{HeadDim: 16, Tier: attention.TierCoopMat, Tuning: attention.TuningOn}
	_, err := attention.New(attention.On(dev), cfg)
	mayLack(t, err)
	op, err := attention.NewExperiment(attention.On(dev), cfg, attention.Experiment{Variant: 2})
	require.NoError(t, err)
	defer op.Close()
	_, err = op.Tune(context.Background(), smallShape, smallTuning)
	require.ErrorIs(t, err, attention.ErrUnsupported)
	require.NoError(t, op.Prepare(smallShape))
	plan, err := op.Plan(smallShape)
	require.NoError(t, err)
	require.Equal(t, attention.TileHeuristic, plan.Tuning)
}

// Candidates compile on devices that execute nothing: AMD's compiler on a null device.
// The decode kernel has one tile for a call.
func TestAKernelWithOneTileIsNotTuned(t *testing.T) {
	dev := tuneDevice(t)
	shape := attention.Shape{B: 1, Hq: 8, Hkv: 2, Sq: 1, Sk: 512}
	for _, tuning := range []attention.Tuning{attention.TuningAuto, attention.TuningOn} {
		op, err := attention.New(attention.On(dev), attention.Config{HeadDim: 128, KeyType: attention.KVInt8, ValueType: attention.KVInt8, Tier: attention.TierCoopMat2, Tuning: tuning})
		mayLack(t, err)
		require.NoError(t, err)
		_, err = op.Tune(t.Context(), shape, smallTuning)
		require.ErrorIs(t, err, attention.ErrUnsupported)
		require.ErrorContains(t, err, "one tile")
		require.NoError(t, op.Prepare(shape), "the first call tunes, if there is anything to tune")
		require.NoError(t, op.Close())
	}
}

func TestCompileOnlyNeedsNoExecution(t *testing.T) {
	if name := os.Getenv("VKATTN_DRIVER"); name == "" || name == "none" {
		t.Skip("no Vulkan driver under test (VKATTN_DRIVER)")
	}
	t.Setenv(vk.CacheDirEnv, t.TempDir())
	dev, err := vk.Open(vk.Options{Stats: true})
	require.NoError(t, err)
	defer dev.Close()
	for _, cfg := range []attention.Config{scalarF32, {HeadDim: 64, Tier: attention.TierCoopMat}} {
		op, err := attention.New(attention.On(dev), cfg)
		if errors.Is(err, attention.ErrUnsupported) {
			continue
		}
		require.NoError(t, err)
		o := attention.TuneOptions{CompileOnly: true, Candidates: 4}
		report, err := op.Tune(context.Background(), attention.Shape{B: 1, Hq: 8, Sq: 512, Sk: 512}, o)
		require.NoError(t, err)
		compiled := 0
		for _, c := range report.Candidates {
			require.NotEqual(t, attention.TuneFailed, c.Status, c.Reason)
			require.Zero(t, c.Ms)
			if c.Status != attention.TunePruned {
				compiled++
				require.Equal(t, dev.Stats(), c.Registers > 0, "%+v", c)
			}
		}
		require.Equal(t, 4, compiled)
		require.Empty(t, report.Stored)
		require.NoError(t, op.Close())
	}
}

func TestTuneWithoutEffect(t *testing.T) {
	dev := tuneDevice(t)
	op := testdevices.Op(t, attention.On(dev), scalarF32)
	dry := smallTuning
	dry.DryRun = true
	report, err := op.Tune(context.Background(), smallShape, dry)
	require.NoError(t, err)
	untried := 0
	for _, c := range report.Candidates {
		require.Zero(t, c.Ms)
		if c.Status == attention.TuneUntried {
			untried++
		}
	}
	require.Equal(t, 3, untried)
	quiet := smallTuning
	quiet.NoStore, quiet.LSE = true, true
	report, err = op.Tune(context.Background(), smallShape, quiet)
	require.NoError(t, err)
	require.Contains(t, report.Class, " lse ")
	require.Empty(t, report.Stored)
	plan, err := op.Plan(smallShape)
	require.NoError(t, err)
	require.Equal(t, attention.TileHeuristic, plan.Tuning)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = op.Tune(ctx, smallShape, smallTuning)
	require.ErrorIs(t, err, context.Canceled)
	ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	late := smallTuning
	late.Progress = func(p attention.TuneProgress) {
		if strings.HasPrefix(p.Stage, "timing") {
			cancel()
		}
	}
	_, err = op.Tune(ctx, smallShape, late)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, dev.Memory().Buffers, "nothing is left behind")
	files, err := filepath.Glob(filepath.Join(os.Getenv(vk.CacheDirEnv), "tuning-v2", "*"))
	require.NoError(t, err)
	require.Empty(t, files)
}

func TestADeviceThatGoesAwayEndsTheTuning(t *testing.T) {
	dev := tuneDevice(t)
	op := testdevices.Op(t, attention.On(dev), scalarF32)
	for _, stage := range []string{"timing", "compiling"} {
		o := smallTuning
		o.Progress = func(p attention.TuneProgress) {
			if strings.HasPrefix(p.Stage, stage) {
				require.NoError(t, dev.Close())
			}
		}
		_, err := op.Tune(context.Background(), smallShape, o)
		require.ErrorIs(t, err, vk.ErrClosed)
	}
	files, err := filepath.Glob(filepath.Join(os.Getenv(vk.CacheDirEnv), "tuning-v2", "*"))
	require.NoError(t, err)
	require.Empty(t, files)
}

func TestManyGoroutinesTuneInTurn(t *testing.T) {
	dev := tuneDevice(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			cfg := scalarF32
			cfg.HeadDim = 4
			op, err := attention.New(attention.On(dev), cfg)
			if !assert.NoError(t, err) {
				return
			}
			defer op.Close()
			_, err = op.Tune(context.Background(), smallShape, attention.TuneOptions{Candidates: 2, Budget: tuneTime})
			assert.NoError(t, err)
			plan, err := op.Plan(smallShape)
			assert.NoError(t, err)
			assert.Equal(t, attention.TileTuned, plan.Tuning)
			assert.NoError(t, op.Prepare(smallShape))
		})
	}
	wg.Wait()
}

func TestTuningOnTunesOnFirstUse(t *testing.T) {
	if name := os.Getenv("VKATTN_DRIVER"); name == "swiftshader" || name == "lavapipe-old" {
		t.Skip("it compiles 16 kernels for seconds each; lavapipe does the same faster")
	}
	dev := tuneDevice(t)
	attention.SetTuneBudget(t, tuneTime)
	cfg := scalarF32
	cfg.Tuning, cfg.HeadDim = attention.TuningOn, 8
	op := testdevices.Op(t, attention.On(dev), cfg)
	shape := attention.Shape{B: 1, Hq: 1, Sq: 16, Sk: 16}
	plan, err := op.Plan(shape)
	require.NoError(t, err)
	require.Equal(t, attention.TileHeuristic, plan.Tuning, "planning never times")
	require.NoError(t, op.Prepare(shape))
	plan, err = op.Plan(shape)
	require.NoError(t, err)
	require.Equal(t, attention.TileTuned, plan.Tuning)
	cache, err := attention.ReadTuningCache(dev)
	require.NoError(t, err)
	require.Len(t, cache.Classes, 2, "with and without LSE")
	shape.Sq, shape.Sk = 15, 13
	require.NoError(t, op.Prepare(shape), "the same class")
	plan, err = op.Plan(shape)
	require.NoError(t, err)
	require.Equal(t, attention.TileTuned, plan.Tuning)
	again, err := attention.ReadTuningCache(dev)
	require.NoError(t, err)
	require.Equal(t, cache, again, "nothing is timed again")
}

func TestTuneWithoutADeviceIsRefused(t *testing.T) {
	op, err := attention.New(nil, attention.Config{HeadDim: 8, Tuning: attention.TuningOn})
	require.NoError(t, err)
	_, err = op.Tune(context.Background(), smallShape, attention.TuneOptions{})
	require.ErrorIs(t, err, attention.ErrUnsupported)
	_, err = attention.New(nil, attention.Config{HeadDim: 8, Tuning: 9})
	var shape *attention.ShapeError
	require.ErrorAs(t, err, &shape)
}

// A tuned tile may be any tile of the table, so each must agree with the reference. The
// tables have thousands of tiles: the test draws some of them, few on the CPU, where a
// kernel compiles for a second or more. VKATTN_TEST_LEVEL=exhaustive draws ten times as
// many.
func TestEveryTileOfTheTableComputes(t *testing.T) {
	dev := tuneDevice(t)
	for _, c := range []struct {
		cfg attention.Config
		s   attention.Shape
	}{
		{attention.Config{HeadDim: 40, HeadDimV: 24, Causal: attention.BottomRight, Tier: attention.TierCoopMat2}, attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 150, Sk: 170}},
		{attention.Config{HeadDim: 64, Causal: attention.TopLeft, Tier: attention.TierCoopMat}, attention.Shape{B: 1, Hq: 2, Sq: 140, Sk: 130}},
		{attention.Config{HeadDim: 40, HeadDimV: 72, DType: attention.F32, Causal: attention.BottomRight, Tier: attention.TierScalar}, attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 150, Sk: 170}},
	} {
		t.Run(c.cfg.String(), func(t *testing.T) {
			op, err := attention.New(attention.On(dev), c.cfg)
			mayLack(t, err)
			require.NoError(t, err)
			defer op.Close()
			ops, names, err := attention.TileOps(op, c.s)
			require.NoError(t, err)
			require.Greater(t, len(ops), 20)
			order := rand.New(rand.NewPCG(testlevel.Seed(t), 0)).Perm(len(ops))
			draw := 24
			if dev.Info().Type == vk.DeviceCPU {
				draw = 3
			}
			if testlevel.IsExhaustive() {
				draw *= 10
			}
			order = order[:min(draw, len(order))]
			p := newProblem(c.cfg, c.s, attention.BSHD, 7)
			stream := testdevice.Stream(t, dev, "tiles")
			args := p.Args
			tensors := []struct {
				device *attention.Tensor
				host   []byte
			}{{&args.Q, p.Q.Host}, {&args.K, p.K.Host}, {&args.V, p.V.Host}, {&args.O, p.O.Host}, {&args.LSE, p.LSE.Host}}
			for _, x := range tensors {
				b := testdevice.Buffer(t, dev, uint64(len(x.host)))
				x.device.Host, x.device.Buffer = nil, b
			}
			for _, i := range order {
				for _, x := range tensors[3:] {
					for j := range x.host {
						x.host[j] = 0xff
					}
				}
				for _, x := range tensors {
					require.NoError(t, stream.Upload(x.device.Buffer, 0, x.host))
				}
				require.NoError(t, ops[i].Forward(attention.OnStream(stream), args), names[i])
				require.NoError(t, stream.Barrier())
				for _, x := range tensors[3:] {
					require.NoError(t, stream.Download(context.Background(), x.host, x.device.Buffer, 0), names[i])
				}
				v, err := accuracy.Verify(problem.Config(p.cfg), p.Args, accuracy.Options{Rows: -1})
				require.NoError(t, err)
				require.True(t, v.Pass(), "%s: %v", names[i], v)
				require.NoError(t, ops[i].Close())
			}
		})
	}
}
