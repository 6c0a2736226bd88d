package attention

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// fakeCubins stands for package cudapath: what it is asked, and what it answers.
type fakeCubins struct {
	problems []problem.CUDAProblem
	calls    []problem.CUDACall
	recorded []*vk.Commands
	forget   bool
	slow     bool
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
	return problem.CubinChoice{Kernel: f, Name: "attn_cubin", Rows: 192, Cols: 80, Workgroups: 55, SharedBytes: 41048, Slow: f.slow}, f.err
}

func (f *fakeCubins) Load() error { return nil }

func (f *fakeCubins) Record(c *vk.Commands, call *problem.CUDACall) error {
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

func TestAutoTakesCubinsWhereTheyAreFaster(t *testing.T) {
	withoutCUDA(t)
	f := withFakeCubins(t)
	dev := cudaDevice(t)
	needAddresses(t, dev)
	shape := largeShape
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
	require.Equal(t, problem.CUDAProblem{Shape: shape, HeadDim: 64, HeadDimV: 64, Causal: true, Align: 8}, f.problems[len(f.problems)-1])
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
	s, err := dev.NewStream("")
	require.NoError(t, err)
	defer s.Close()
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

func TestCubinRefusesByName(t *testing.T) {
	f := withFakeCubins(t)
	dev := cudaDevice(t)
	needAddresses(t, dev)
	s, err := dev.NewStream("")
	require.NoError(t, err)
	defer s.Close()
	a := callOn(t, dev)
	for _, x := range []struct {
		cfg  Config
		want string
	}{
		{Config{Softcap: 30}, "dense attention only"},
		{Config{Causal: TopLeft, Window: WindowOf(2, 0)}, "dense attention only"},
		{Config{KeyType: KVInt8, ValueType: KVInt8}, "dense attention only"},
		{Config{FixedSplit: 2}, "dense attention only"},
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
