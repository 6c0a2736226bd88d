package tests

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/attention/merge"
	"vkattn/attention/parallel"
	"vkattn/attention/parallel/processes"
	"vkattn/attention/score"
	"vkattn/internal/apiwalk"
	"vkattn/internal/control"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// The walk over the exported API: package apiwalk calls everything that the packages of the
// library export with wrong arguments, on the CPU tier and on the device under test.

var sentinels = apiwalk.Matching(vk.ErrInvalid, vk.ErrClosed, vk.ErrUnsupported, vk.ErrNoDevice, vk.ErrOutOfMemory, vk.ErrDeviceLost, vk.ErrTimestamps)

// No call of an exported function or method panics, whatever its arguments.
func TestNothingExportedPanics(t *testing.T) {
	if s := open(t); s.compileOnly {
		t.Skip("nothing executes on a null device, and opening one with GPU-assisted validation crashes RADV")
	}
	t.Setenv(vk.CacheDirEnv, t.TempDir())
	t.Cleanup(func() {
		for _, d := range walkedDevices {
			require.NoError(t, d.Close())
			require.Empty(t, d.ValidationMessages())
		}
		walkedDevices = nil
	})
	for _, p := range []apiwalk.Package{vkPackage, attentionPackage, problemPackage, mergePackage, kvcachePackage, parallelPackage, processesPackage, scorePackage} {
		t.Run(p.Name, func(t *testing.T) { apiwalk.Walk(t, p) })
	}
}

var vkPackage = apiwalk.Package{
	Name: "vk", Folder: "../vk", Matches: sentinels, Live: liveDevice, Closed: closedDevice,
	Functions: map[string]any{
		"CacheDir": vk.CacheDir, "CheckHostMemory": vk.CheckHostMemory, "Devices": vk.Devices, "DriverHint": vk.DriverHint, "GetInstanceProcAddr": vk.GetInstanceProcAddr,
		"OnDone": vk.OnDone, "Open": vk.Open, "Order": vk.Order, "Require": vk.Require, "ResultName": vk.ResultName, "ValidationByEnv": vk.ValidationByEnv, "Version": vk.Version, "Wrap": vk.Wrap,
	},
	Types: []any{vk.Buffer{}, vk.Caps{}, vk.Recording{}, vk.Commands{}, vk.Cubin{}, vk.CubinFunction{}, vk.ComponentType(0), vk.CoopMatShape{}, vk.Device{}, vk.DeviceType(0), vk.Error{}, vk.Feature{}, vk.FeatureChain{}, vk.Limits{},
		vk.MemoryKind(0), vk.Message{}, vk.Pipeline{}, vk.Requirements{}, vk.Result(0), vk.Scope(0), vk.Severity(0), vk.Stream{}, vk.Timeline{}},
	// A made-up file descriptor may be an open one of this process.
	Exact: map[string][]any{"Device.ImportBufferFD": {-1}, "Device.ImportTimelineFD": {-1}},
}

// walkedDevices are the devices that this test opened; the last one is in use.
var walkedDevices []*vk.Device

// walked returns a device that calls may close. It opens a new one after that.
func walked(t *testing.T) *vk.Device {
	t.Helper()
	if n := len(walkedDevices); n > 0 {
		if d := walkedDevices[n-1]; !d.Closed() && !d.Lost() {
			return d
		}
	}
	d, err := vk.Open(vk.Options{Validation: validation(), PipelineCache: "off"})
	require.NoError(t, err)
	walkedDevices = append(walkedDevices, d)
	return d
}

// liveDevice returns a device and one object of each kind, the device first; nothing if no
// device executes.
func liveDevice(t *testing.T) []any {
	t.Helper()
	s := open(t)
	if s.dev == nil || s.compileOnly {
		return nil
	}
	dev := walked(t)
	made := func(x any, err error) any {
		t.Helper()
		require.NoError(t, err)
		return x
	}
	code, err := os.ReadFile("../vk/testdata/saxpy.spv")
	require.NoError(t, err)
	stream := made(dev.NewStream("walk")).(*vk.Stream)
	objects := []any{dev, stream, stream.Commands,
		made(dev.NewBuffer(256, vk.BufferOptions{Memory: vk.Upload})), made(dev.NewTimeline(false)),
		made(dev.Pipeline(&vk.PipelineDesc{Name: "saxpy", Code: code, PushBytes: 8, StorageBuffers: 2, LocalSize: [3]uint32{64, 1, 1},
			Constants: []vk.SpecConstant{{ID: 0, Value: 64}}}))}
	return objects
}

func closedDevice(t *testing.T) []any {
	objects := liveDevice(t)
	for i := len(objects) - 1; i >= 0; i-- {
		if c, ok := objects[i].(interface{ Close() error }); ok {
			require.NoError(t, c.Close())
		}
	}
	return objects
}

var attentionPackage = apiwalk.Package{
	Name: "attention", Folder: "../attention", Matches: sentinels, Live: liveOps, Closed: closedOps,
	Functions: map[string]any{
		"AllRows": attention.AllRows, "BHSD": attention.BHSD, "BSHD": attention.BSHD,
		"CUDAKernels": attention.CUDAKernels, "CheckArgs": attention.CheckArgs,
		"ClearTuningCache": attention.ClearTuningCache, "DTypes": attention.DTypes,
		"DecodeKV": attention.DecodeKV, "DropoutMask": attention.DropoutMask, "EncodeKV": attention.EncodeKV,
		"KVTypes": attention.KVTypes, "New": attention.New, "NewExperiment": attention.NewExperiment, "On": attention.On, "OnStream": attention.OnStream, "Open": attention.Open,
		"ParseCausal": attention.ParseCausal,
		"ParseDType":  attention.ParseDType, "ParseKVType": attention.ParseKVType,
		"ParseTier": attention.ParseTier, "ParseTuning": attention.ParseTuning, "ReadTuningCache": attention.ReadTuningCache, "ReadTuningCaches": attention.ReadTuningCaches,
		"Reference": attention.Reference, "ReferenceBackward": attention.ReferenceBackward, "ReferenceMaxLogits": attention.ReferenceMaxLogits,
		"ReferenceSample": attention.ReferenceSample, "ScaleOf": attention.ScaleOf,
		"Requirements": attention.Requirements, "TierReport": attention.TierReport, "TierReportOf": attention.TierReportOf,
		"ViewHost": attention.ViewHost, "WindowOf": attention.WindowOf,
	},
	Types: []any{attention.BackwardPlan{}, attention.Config{}, attention.Device{}, attention.Op{}, attention.Plan{}},
}

var problemPackage = apiwalk.Package{
	Name: "problem", Folder: "../internal/problem", Matches: sentinels, Live: liveOps, Closed: closedOps,
	Functions: map[string]any{
		"FormatOf": problem.FormatOf, "ListKVTypes": problem.ListKVTypes,
		"Ablations": problem.Ablations, "Alignment": problem.Alignment, "BHSD": problem.BHSD, "BSHD": problem.BSHD, "CUDAKernels": problem.CUDAKernels,
		"DTypes": problem.DTypes, "KVBlockName": problem.KVBlockName, "KVName": problem.KVName, "KVTypes": problem.KVTypes, "BackingOf": problem.BackingOf, "NewBlockMap": problem.NewBlockMap, "NewMade": problem.NewMade, "NewMemory": problem.NewMemory, "NewStream": problem.NewStream, "ParseAblation": problem.ParseAblation,
		"ParseCausal": problem.ParseCausal, "ParseDType": problem.ParseDType, "ParseKVType": problem.ParseKVType,
		"ParseTier": problem.ParseTier, "ParseTuning": problem.ParseTuning, "ScaleOf": problem.ScaleOf, "Span": problem.Span, "StreamBackingOf": problem.StreamBackingOf, "TilesOf": problem.TilesOf, "MakerOf": problem.MakerOf,
		"ValidateSizes": problem.ValidateSizes, "VariantName": problem.VariantName, "ViewHost": problem.ViewHost, "WindowOf": problem.WindowOf,
	},
	Types: []any{problem.Ablation(0), problem.Access(0), problem.BlockMap{}, problem.CUDAVector{}, problem.Causal(0), problem.Config{}, problem.MapSize{}, problem.TileMap{}, problem.TileMaps{},
		problem.DType(0), problem.HostView{}, problem.KVType(0), problem.Experiment{}, problem.Memory{}, problem.Phrase(""), problem.Scale{}, problem.Shape{},
		problem.ShapeError{}, problem.Stream{}, problem.Strides{}, problem.Tensor{}, problem.Tier(0), problem.Tuning(0), problem.Vector{}, problem.Window{}},
}

var mergePackage = apiwalk.Package{
	Name: "merge", Folder: "../attention/merge", Matches: sentinels, Live: liveOps, Closed: closedOps,
	Functions: map[string]any{"NewMerge": merge.NewMerge, "NewSum": merge.NewSum},
	Types:     []any{merge.Merge{}, merge.MergeConfig{}, merge.Sum{}},
}

var kvcachePackage = apiwalk.Package{
	Name: "kvcache", Folder: "../attention/kvcache", Matches: sentinels, Live: liveOps, Closed: closedOps,
	Functions: map[string]any{"New": kvcache.New, "NewAppend": kvcache.NewAppend, "ParseRotaryStyle": kvcache.ParseRotaryStyle},
	Types:     []any{kvcache.Append{}, kvcache.AppendConfig{}, kvcache.Cache{}, kvcache.Sequence{}, kvcache.Step{}, kvcache.Rotary{}, kvcache.RotaryStyle(0)},
}

var parallelPackage = apiwalk.Package{
	Name: "parallel", Folder: "../attention/parallel", Live: liveRanks, Closed: closedRanks,
	Matches: apiwalk.Matching(vk.ErrInvalid, vk.ErrClosed, vk.ErrUnsupported, parallel.ErrTimeout, parallel.ErrLeft, parallel.ErrMismatch, parallel.ErrFailed),
	Functions: map[string]any{
		"CheckNear": parallel.CheckNear, "CheckTransfers": parallel.CheckTransfers, "Contiguous": parallel.Contiguous, "InProcess": parallel.InProcess, "Modes": parallel.Modes, "New": parallel.New, "NewGroup": parallel.NewGroup,
		"ParseMode": parallel.ParseMode, "ParseOrder": parallel.ParseOrder, "ParseSchedule": parallel.ParseSchedule, "Striped": parallel.Striped, "Zigzag": parallel.Zigzag,
	},
	Types: []any{parallel.Config{}, parallel.Cost{}, parallel.Group{}, parallel.Memory{}, parallel.Mode(0), parallel.ModeError{}, parallel.Op{}, parallel.Order(0), parallel.Plan{}, parallel.Problem{},
		parallel.RankError{}, parallel.Schedule(0), parallel.Shard{}, parallel.Span{}, parallel.Split{}},
}

var processesPackage = apiwalk.Package{
	Name: "processes", Folder: "../attention/parallel/processes",
	Matches: apiwalk.Matching(vk.ErrInvalid, vk.ErrClosed, vk.ErrUnsupported, vk.ErrNoDevice, parallel.ErrTimeout, parallel.ErrLeft, parallel.ErrMismatch),
	Functions: map[string]any{
		"Device": processes.Device, "FromComm": processes.FromComm, "FromEnvironment": processes.FromEnvironment, "GPUs": processes.GPUs,
		"Join": processes.Join, "KindOf": processes.KindOf, "ParseTransport": processes.ParseTransport,
	},
	Types: []any{processes.Transport(0)},
	Exact: map[string][]any{
		"FromComm": {context.Background(), (*vk.Device)(nil), uintptr(0), processes.Options{}}, // a made-up handle crashes NCCL
		"Join":     {context.Background(), (*vk.Device)(nil), control.World{Rank: 1, Ranks: 1}, processes.Options{}},
	},
}

// liveRanks returns a group of one rank, its transport and an operation.
func liveRanks(t *testing.T) []any {
	t.Helper()
	transports, err := parallel.InProcess(1)
	require.NoError(t, err)
	g, err := parallel.NewGroup(transports[0], parallel.GroupOptions{})
	require.NoError(t, err)
	op, err := parallel.New(g, nil, parallel.Config{Config: attention.Config{HeadDim: 8}})
	require.NoError(t, err)
	return []any{transports[0], g, op}
}

func closedRanks(t *testing.T) []any {
	list := liveRanks(t)
	require.NoError(t, list[2].(*parallel.Op).Close())
	require.NoError(t, list[1].(*parallel.Group).Close())
	return list
}

// liveOps returns operations of the CPU tier and of the device, if there is one, with the
// objects that they take.
func liveOps(t *testing.T) []any {
	t.Helper()
	var list []any
	devices := []*vk.Device{nil}
	if s := open(t); s.dev != nil && !s.compileOnly {
		devices = append(devices, walked(t))
	}
	for _, dev := range devices {
		tier := attention.TierCPU
		if dev != nil {
			tier = attention.TierScalar
			stream, err := dev.NewStream("walk")
			require.NoError(t, err)
			b, err := dev.NewBuffer(256, vk.BufferOptions{})
			require.NoError(t, err)
			list = append(list, dev, stream, b)
		}
		op, err := attention.New(attention.On(dev), attention.Config{DType: attention.F32, HeadDim: 8, Tier: tier, Tuning: attention.TuningOff})
		require.NoError(t, err)
		m, err := merge.NewMerge(attention.On(dev), merge.MergeConfig{HeadDim: 8})
		require.NoError(t, err)
		a, err := kvcache.NewAppend(attention.On(dev), kvcache.AppendConfig{HeadDim: 8})
		require.NoError(t, err)
		sum, err := merge.NewSum(attention.On(dev), merge.MergeConfig{HeadDim: 8, F32States: true})
		require.NoError(t, err)
		cache, err := kvcache.New(attention.On(dev), kvcache.Config{HeadDim: 8, HeadsKV: 1, Pages: 4})
		require.NoError(t, err)
		list = append(list, attention.On(dev), op, m, sum, a, cache)
	}
	return list
}

func closedOps(t *testing.T) []any {
	list := liveOps(t)
	for i := len(list) - 1; i >= 0; i-- {
		require.NoError(t, list[i].(interface{ Close() error }).Close())
	}
	return list
}

var scorePackage = apiwalk.Package{
	Name: "score", Folder: "../attention/score", Matches: func(error) bool { return true },
	Functions: map[string]any{
		"ALiBi": score.ALiBi, "Abs": score.Abs, "Add": score.Add, "All": score.All, "And": score.And, "Causal": score.Causal, "Chunked": score.Chunked,
		"Clamp": score.Clamp, "Cos": score.Cos, "Dilated": score.Dilated, "Div": score.Div, "Documents": score.Documents, "Eq": score.Eq, "Exp": score.Exp,
		"Float": score.Float, "Float32": score.Float32, "FloatTable": score.FloatTable, "Floor": score.Floor, "Ge": score.Ge, "Gt": score.Gt,
		"Images": score.Images, "Int": score.Int, "IntTable": score.IntTable, "Le": score.Le, "Log": score.Log, "Lt": score.Lt, "Max": score.Max,
		"Min": score.Min, "Mod": score.Mod, "Mul": score.Mul, "NATTEN": score.NATTEN, "NATTEN2D": score.NATTEN2D, "Ne": score.Ne, "Neg": score.Neg,
		"NewEvaluator": score.NewEvaluator, "Not": score.Not, "Num": score.Num, "Or": score.Or, "Parse": score.Parse, "PrefixLM": score.PrefixLM,
		"Rewrite": score.Rewrite, "Select": score.Select, "Shl": score.Shl, "Shr": score.Shr, "Sign": score.Sign, "Sin": score.Sin,
		"SinksWindow": score.SinksWindow, "SlidingWindow": score.SlidingWindow, "Softcap": score.Softcap, "Sqrt": score.Sqrt, "Strided": score.Strided, "Sub": score.Sub,
		"T5Bias": score.T5Bias, "TablesOf": score.TablesOf, "Tanh": score.Tanh, "Tree": score.Tree, "Xor": score.Xor,
	},
	Types: []any{score.Evaluator{}, score.Expr{}, score.Table{}, score.TableGradient{}, score.Type(0)},
}
