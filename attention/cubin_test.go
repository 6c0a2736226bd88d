package attention

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// fakeCubins stands for package cudapath: what it is asked, and what it answers.
type fakeCubins struct {
	problems []problem.CUDAProblem
	calls    []problem.CUDACall
	recorded []*vk.Commands
	forget   bool
	slow     bool
	noZeros  bool  // the commands have no scratch memory with zeros
	err      error // of Choose
}

func (f *fakeCubins) Check(_ *vk.Device, _ *vk.DeviceInfo, t DType) error {
	if t == F32 {
		return plan.NoCUDA("no float32 here")
	}
	return nil
}

func (f *fakeCubins) Choose(_ *vk.Device, p problem.CUDAProblem) (problem.CubinChoice, error) {
	f.problems = append(f.problems, p)
	if p.KV != KVSame {
		return problem.CubinChoice{Kernel: f, Name: "attn_cubin_decode", Rows: 8, Cols: 16, SharedBytes: 34816, Resident: 4}, f.err
	}
	return problem.CubinChoice{Kernel: f, Name: "attn_cubin", Rows: 192, Cols: 80, Workgroups: 55, SharedBytes: 41048, Slow: f.slow}, f.err
}

func (f *fakeCubins) Load() error { return nil }

func (f *fakeCubins) Record(c *vk.Commands, call *problem.CUDACall) error {
	if f.noZeros && call.Decode.Splits > 1 {
		return plan.NoCUDA("no zeros")
	}
	if !f.forget {
		f.calls, f.recorded = append(f.calls, *call), append(f.recorded, c)
	}
	return nil
}

func withFakeCubins(t testing.TB) *fakeCubins {
	f := &fakeCubins{}
	plan.RegisterCubins(f)
	t.Cleanup(func() { plan.RegisterCubins(nil) })
	return f
}

func TestWithoutCubinsTheTierSaysHowToGetIt(t *testing.T) {
	dev := cudaDevice(t)
	_, err := New(On(dev), Config{HeadDim: 64, Tier: TierCubin})
	oneLine(t, err, "import vkattn/cudapath")
	_, err = New(nil, Config{HeadDim: 64, Tier: TierCubin})
	oneLine(t, err, "tier cubin needs a Vulkan device")
}

// needAddresses skips the test on a device without buffer device addresses.
func needAddresses(t testing.TB, dev *vk.Device) {
	t.Helper()
	if !dev.Caps().BufferDeviceAddress {
		t.Skip("the device has no buffer device addresses")
	}
}

// needAddressesOfOptions does the same for calls with options, whose parameters SwiftShader's push constants do not hold: such a device
// has descriptors in them.
func needAddressesOfOptions(t testing.TB, dev *vk.Device) {
	t.Helper()
	needAddresses(t, dev)
	if plan.PushTooSmall(&dev.Caps().Limits) {
		t.Skip("the push constants of the device are too small for addresses in calls with options")
	}
}

func TestAutoTakesCubinsWhereTheyAreFaster(t *testing.T) {
	withoutCUDA(t)
	f := withFakeCubins(t)
	dev := cudaDevice(t)
	needAddresses(t, dev)
	shape := Shape{B: 16, Hq: 16, Hkv: 16, Sq: 4096, Sk: 4096} // they are faster on GPUs with matrices too
	planOf := func(cfg Config) Plan {
		op, err := New(On(dev), cfg)
		require.NoError(t, err)
		p, err := op.Plan(shape)
		require.NoError(t, err)
		return p
	}
	require.NotEqual(t, TierCubin, planOf(Config{HeadDim: 64, Tier: TierNoCUDA}).Tier)
	require.Empty(t, f.problems, "nobody asked for it")

	p := planOf(Config{HeadDim: 64, Causal: TopLeft})
	require.Equal(t, TierCubin, p.Tier)
	require.Contains(t, p.Reason, "the fastest, ")
	require.Equal(t, problem.CUDAProblem{Shape: shape, HeadDim: 64, HeadDimV: 64, Causal: true, Align: 8, Rows: 1 << 16}, f.problems[len(f.problems)-1])
	p = planOf(Config{HeadDim: 64, Tier: TierCubin})
	require.Equal(t, "tier cubin (attn_cubin, tile 192x80, 55 workgroups): asked for", p.String())
	require.Equal(t, uint64(41048), p.SharedBytes)

	f.slow = true
	require.Equal(t, TierCubin, planOf(Config{HeadDim: 64, Tier: TierCubin}).Tier)
	p = planOf(Config{HeadDim: 64})
	require.Equal(t, Rejection{Tier: TierCubin, Reason: "cooperative matrices are faster than its kernels for this architecture"}, p.Rejected[0])
	f.slow = false

	f.err = plan.NoCUDA("the device has none")
	p = planOf(Config{HeadDim: 64})
	require.Equal(t, Rejection{Tier: TierCubin, Reason: "the device has none"}, p.Rejected[0])
	_, err := New(On(dev), Config{HeadDim: 64, Tier: TierCubin})
	oneLine(t, err, "the device has none")
	f.err = vk.ErrDeviceLost
	_, err = New(On(dev), Config{HeadDim: 64, Tier: TierCubin})
	require.ErrorIs(t, err, vk.ErrDeviceLost)
	require.NotErrorIs(t, err, ErrUnsupported)
}

// Forward and Record reach the kernel, with the commands that the caller named.
func TestCubinCalls(t *testing.T) {
	withoutCUDA(t)
	f := withFakeCubins(t)
	dev := cudaDevice(t)
	needAddresses(t, dev)
	s := testdevice.Stream(t, dev, "")
	a := callOn(t, dev)
	a.Shape = largeShape
	a.K.Offset = 16
	for _, cfg := range []Config{{HeadDim: 64, Tier: TierCubin, Causal: BottomRight}, {HeadDim: 64, Causal: BottomRight}} {
		op, err := New(On(dev), cfg)
		require.NoError(t, err)
		require.NoError(t, op.Prepare(a.Shape))
		for _, run := range []func() error{func() error { return op.Forward(OnStream(s), a) }, func() error { return op.Record(s.Commands, a) }} {
			f.calls, f.recorded = nil, nil
			require.NoError(t, run())
			require.Len(t, f.calls, 1)
			require.Same(t, s.Commands, f.recorded[0])
			c := f.calls[0]
			require.Equal(t, a.Shape, c.Shape)
			require.Equal(t, problem.CUDATensor{CUDAVector: problem.CUDAVector{Buffer: a.K.Buffer, Offset: 32}, Batch: 2 * 100 * 64, Head: 100 * 64, Row: 64}, c.Tensors[1])
			require.Equal(t, a.LSE.Buffer, c.LSE.Buffer)
			require.Equal(t, int32(40), c.CausalOffset)
		}
		f.forget = true
		require.Zero(t, testing.AllocsPerRun(20, func() {
			if op.Record(s.Commands, a) != nil {
				t.Error("Record failed")
			}
		}))
		f.forget = false
		require.NoError(t, op.Close())
	}
}

// Calls with quantized K and V reach the kernel with their vectors and splits. Where the commands have no zeros, keys are not
// split. TierAuto takes it where it was timed to be the fastest.
func TestCubinDecodeCalls(t *testing.T) {
	withoutCUDA(t)
	f := withFakeCubins(t)
	dev := cudaDevice(t)
	needAddresses(t, dev)
	s := testdevice.Stream(t, dev, "")
	a := callOn(t, dev)
	a.Shape, a.LSE = Shape{B: 2, Hq: 20, Hkv: 2, Sq: 1, Sk: 2048}, Tensor{}
	buffer := testdevice.Buffer(t, dev, 1<<20)
	a.K.Buffer, a.V.Buffer = buffer, buffer
	vector := func(at int64) Vector { return Vector{Buffer: buffer, Offset: at} }
	a.KScale, a.VScale = vector(8), vector(16)
	a.Pages = &Pages{Table: vector(32), PageSize: 32, Count: 40}
	a.Varlen = &Varlen{UsedK: vector(64)}
	cfg := Config{HeadDim: 64, KeyType: KVInt8, ValueType: KVInt8, Tier: TierCubin, Causal: BottomRight, Access: AccessAddresses}
	op, err := New(On(dev), cfg)
	require.NoError(t, err)
	defer op.Close()
	p, err := op.PlanFor(a)
	require.NoError(t, err)
	require.Equal(t, TierCubin, p.Tier)
	require.Greater(t, p.Splits, 1)
	require.Equal(t, uint64(2*2*2*p.Splits), p.Workgroups, "two row tiles of ten heads")
	require.Equal(t, uint64(256+4*8*p.Splits*8*68), p.WorkspaceBytes, "8 counters, whose size is rounded up, and the states")

	require.NoError(t, op.Forward(OnStream(s), a))
	require.Len(t, f.calls, 1)
	d := f.calls[0].Decode
	at := func(n uint64) problem.CUDAVector { return problem.CUDAVector{Buffer: buffer, Offset: 4 * n} }
	require.Equal(t, problem.CUDADecode{KV: KVInt8, UnitBytes: 1, KScale: at(8), VScale: at(16), ScaleBatch: 64, ScaleHead: 32, ScaleKeys: 1,
		Causal: BottomRight, Splits: p.Splits}, d)
	require.Equal(t, problem.CUDAOptions{UsedK: at(64), Table: at(32), PageSize: 32, Pages: 40, TableStride: 64, BottomRight: true,
		Left: problem.NoCausal}, f.calls[0].CUDAOptions)

	f.noZeros, f.calls = true, nil
	require.NoError(t, op.Forward(OnStream(s), a))
	require.Equal(t, 1, f.calls[len(f.calls)-1].Decode.Splits)

	cfg.Tier, cfg.Access = TierAuto, AccessAuto
	auto, err := New(On(dev), cfg)
	require.NoError(t, err)
	defer auto.Close()
	for _, rows := range []int{1, 4} {
		a.Sq = rows
		p, err := auto.PlanFor(a)
		require.NoError(t, err)
		require.NotEqual(t, TierCubin, p.Tier)
	}

	a.Sq = 1
	a.Pages.PageSize = 24
	_, err = op.PlanFor(a)
	oneLine(t, err, "its quantized decode takes pages of multiples of 16 keys, not 24")
	a.Pages.PageSize = 32
	a.K.Offset = 2
	_, err = op.PlanFor(a)
	oneLine(t, err, "multiples of 4 bytes")
	a.K.Offset, a.Sinks = 0, vector(128)
	_, err = op.PlanFor(a)
	oneLine(t, err, "its quantized decode takes no sinks")
}

// TierAuto leaves quantized decode with more keys or longer strides than the kernels of tier cubin take to another tier. Named, the tier
// refuses them.
func TestAutoLeavesFarKeysToOtherTiers(t *testing.T) {
	withoutCUDA(t)
	f := withFakeCubins(t)
	dev := cudaDevice(t)
	needAddressesOfOptions(t, dev)
	cfg := Config{HeadDim: 64, KeyType: KVFP8, ValueType: KVFP8}
	op, err := New(On(dev), cfg)
	require.NoError(t, err)
	defer op.Close()
	for _, keys := range []int{1 << 30, 1<<30 + 1} {
		f.problems = nil
		p, err := plan.Make(dev, op.cfg, op.typical(Shape{B: 1, Hq: 8, Hkv: 2, Sq: 1, Sk: keys}), nil)
		require.NoError(t, err)
		require.Equal(t, keys == 1<<30, len(f.problems) > 0, "%d keys: %v", keys, p.Plan)
		require.NotEqual(t, p.Range.Holds(1<<30), p.Range.Holds(1<<30+1), "%v", p.Range)
	}

	a := callOn(t, dev)
	a.Shape, a.LSE = Shape{B: 1, Hq: 8, Hkv: 2, Sq: 1, Sk: 1}, Tensor{}
	a.KScale, a.VScale = Vector{Buffer: a.Q.Buffer}, Vector{Buffer: a.Q.Buffer}
	cfg.Tier = TierCubin
	named, err := New(On(dev), cfg)
	require.NoError(t, err)
	defer named.Close()
	for _, far := range []bool{false, true} {
		stride := int64(1<<32 - 64)
		if far {
			stride = 1 << 32
		}
		for which := range 2 {
			f.problems = nil
			call := a
			[]*Tensor{&call.K, &call.V}[which].Strides = Strides{Batch: stride, Head: 64, Seq: stride}
			p, err := op.PlanFor(call)
			require.NoError(t, err)
			require.Equal(t, far, len(f.problems) == 0, "%v", p)
			_, err = named.PlanFor(call)
			if far {
				require.NotEqual(t, TierCubin, p.Tier)
				oneLine(t, err, "its quantized decode takes strides of less than 2^32 bytes between rows")
			} else {
				require.NoError(t, err)
			}
		}
	}
}

// Calls with lengths, windows and pages run on tier cubin, and TierAuto estimates their time.
func TestCubinTakesSequences(t *testing.T) {
	f := withFakeCubins(t)
	dev := cudaDevice(t)
	needAddressesOfOptions(t, dev)
	base := callOn(t, dev)
	vector := Vector{Buffer: base.Q.Buffer, Offset: 4096}
	for _, x := range []struct {
		options string
		change  func(*Config, *Args)
		refused string
	}{
		{"lengths", func(_ *Config, a *Args) { a.Varlen = &Varlen{UsedK: vector} }, ""},
		{"window", func(c *Config, _ *Args) { c.Window, c.Align = WindowOf(5, 5), BottomRight }, ""},
		{"lengths, window", func(c *Config, a *Args) {
			c.Window, c.Causal, a.Varlen = WindowOf(5, 0), BottomRight, &Varlen{UsedQ: vector, UsedK: vector}
		}, ""},
		{"lengths, pages", func(_ *Config, a *Args) {
			a.Varlen, a.Pages = &Varlen{UsedK: vector}, &Pages{Table: vector, PageSize: 16, Count: 4}
		}, ""},
		{"pages", func(_ *Config, a *Args) { a.Pages = &Pages{Table: vector, PageSize: 24, Count: 4} }, "its kernels take pages of multiples of 16 keys, not 24"},
		{"sinks", func(_ *Config, a *Args) { a.Varlen, a.Sinks = &Varlen{UsedK: vector}, vector }, "its kernels take lengths, a window and pages, and no sinks"},
	} {
		for _, tier := range []Tier{TierCubin, TierAuto} {
			cfg, a := Config{HeadDim: 64, Tier: tier}, base
			x.change(&cfg, &a)
			op, err := New(On(dev), cfg)
			require.NoError(t, err)
			plan, err := op.PlanFor(a)
			switch {
			case x.refused != "" && tier == TierCubin:
				oneLine(t, err, x.refused)
			case x.refused != "":
				require.NoError(t, err)
				require.Contains(t, plan.String(), x.refused)
			default:
				require.NoError(t, err)
				require.Equal(t, x.options, f.problems[len(f.problems)-1].Options)
				require.Equal(t, a.Pages != nil, f.problems[len(f.problems)-1].PageSize == 16)
				require.Equal(t, tier == TierAuto, strings.Contains(plan.String(), "us by estimate"), "%v", plan)
			}
			require.NoError(t, op.Close())
		}
	}
}

func TestCubinRefusesByName(t *testing.T) {
	f := withFakeCubins(t)
	dev := cudaDevice(t)
	needAddresses(t, dev)
	a := callOn(t, dev)
	for _, x := range []struct {
		cfg  Config
		want string
	}{
		{Config{Softcap: 30}, "its kernels take lengths, a window and pages, and no softcap"},
		{Config{Causal: TopLeft, AttentionChunk: 9}, "its kernels take lengths, a window and pages, and no attention chunks"},
		{Config{KeyType: KVInt8, ValueType: KVFP8}, "its quantized decode takes K and V of one type, not int8/fp8"},
		{Config{KeyType: KVQ8_0, ValueType: KVQ8_0, Softcap: 30}, "its quantized decode takes no softcap"},
		{Config{KeyType: KVQ8_0, ValueType: KVQ8_0, Causal: TopLeft, Window: WindowOf(2, 0)}, "its quantized decode takes no window"},
		{Config{KeyType: KVInt8, ValueType: KVInt8, Causal: TopLeft, AttentionChunk: 9}, "its quantized decode takes no attention chunks"},
		{Config{KeyType: KVInt8, ValueType: KVInt8, FixedSplit: 2}, "its quantized decode takes no fixed splits"},
		{Config{FixedSplit: 2}, "its kernels take no fixed splits"},
		{Config{F32O: true}, "O and gradients have the storage type of Q"},
		{Config{Access: AccessDescriptors}, "device addresses"},
	} {
		x.cfg.HeadDim, x.cfg.Tier = 64, TierCubin
		_, err := New(On(dev), x.cfg)
		oneLine(t, err, x.want)
	}
	op, err := New(On(dev), Config{HeadDim: 64, Tier: TierCubin})
	require.NoError(t, err)
	defer op.Close()
	_, err = op.PlanBackward(a.Shape)
	oneLine(t, err, "tier cubin has none")
	_, err = op.Tune(t.Context(), a.Shape, TuneOptions{})
	oneLine(t, err, "tier cubin has no tiles to tune")
	_, err = NewExperiment(On(dev), Config{HeadDim: 64, Tier: TierCubin}, Experiment{Variant: 2})
	oneLine(t, err, "variants and ablations")
	require.Empty(t, f.calls)
}
