package attention

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention/score"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// fakeCUDA stands in for package cudapath. It records the calls and holds the answers.
type fakeCUDA struct {
	problems []problem.CUDAProblem
	calls    []problem.CUDACall
	forget   bool
	choice   problem.CUDAChoice
	err      error               // of Choose
	load     error               // of Load
	out      map[*vk.Buffer]bool // of reach

	backwardChoice problem.CUDABackwardChoice
	backwardErr    error // of ChooseBackward
	backwardCalls  []problem.CUDABackwardCall
}

func (f *fakeCUDA) Check(_ *vk.DeviceInfo, t DType) error {
	if t == F32 {
		return plan.NoCUDA("no float32 here")
	}
	return nil
}

func (f *fakeCUDA) Choose(_ *vk.Device, p problem.CUDAProblem) (problem.CUDAChoice, error) {
	f.problems = append(f.problems, p)
	c := f.choice
	c.Kernel = f
	return c, f.err
}

func (f *fakeCUDA) ChooseBackward(_ *vk.Device, p problem.CUDABackwardProblem) (problem.CUDABackwardChoice, error) {
	c := f.backwardChoice
	c.Launcher = fakeBackward{f}
	return c, f.backwardErr
}

type fakeBackward struct{ f *fakeCUDA }

func (b fakeBackward) Load() error { return b.f.load }

func (b fakeBackward) Launch(_ *vk.Stream, c *problem.CUDABackwardCall) error {
	b.f.backwardCalls = append(b.f.backwardCalls, *c)
	return nil
}

func (f *fakeCUDA) Reach(b *vk.Buffer) error {
	if f.out[b] {
		return errors.New("out of reach")
	}
	return nil
}

func (f *fakeCUDA) Load() error { return f.load }

func (f *fakeCUDA) Launch(s *vk.Stream, c *problem.CUDACall) error {
	if !f.forget {
		f.calls = append(f.calls, *c)
	}
	return nil
}

func withFakeCUDA(t testing.TB) *fakeCUDA {
	f := &fakeCUDA{choice: problem.CUDAChoice{Name: "attn_fast", Family: "fa3", Rows: 128, Cols: 64, Workgroups: 77, SharedBytes: 1000,
		Rejected: []string{"faster: not today"}}, out: map[*vk.Buffer]bool{},
		backwardErr: plan.NoCUDA("fa3: no backward kernels")}
	before := plan.RegisteredCUDA()
	plan.RegisterCUDA(f)
	t.Cleanup(func() { plan.RegisterCUDA(before) })
	return f
}

func withoutCUDA(t testing.TB) {
	before := plan.RegisteredCUDA()
	plan.RegisterCUDA(nil)
	t.Cleanup(func() { plan.RegisterCUDA(before) })
}

// cudaDevice is any device: tier cuda is the fake's.
func cudaDevice(t testing.TB) *vk.Device {
	t.Helper()
	t.Setenv("VKATTN_VALIDATION", "")
	return testdevice.Open(t)
}

// callOn makes a call on buffers of its own: f16, B 2, Hq 4, Hkv 2, head dim 64.
func callOn(t testing.TB, dev *vk.Device) (a Args) {
	t.Helper()
	a.Shape = Shape{B: 2, Hq: 4, Hkv: 2, Sq: 5, Sk: 9}
	for _, x := range []*Tensor{&a.Q, &a.K, &a.V, &a.O, &a.LSE} {
		b := testdevice.Buffer(t, dev, 1<<16)
		x.Buffer = b
	}
	return a
}

func oneLine(t *testing.T, err error, want string) {
	t.Helper()
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.ErrorContains(t, err, want)
	require.NotContains(t, err.Error(), "\n")
}

func TestWithoutCUDATheTierSaysHowToGetIt(t *testing.T) {
	withoutCUDA(t)
	dev := cudaDevice(t)
	_, err := New(On(dev), Config{HeadDim: 64, Tier: TierCUDA})
	oneLine(t, err, "import vkattn/cudapath")
	op, err := New(On(dev), Config{HeadDim: 64})
	require.NoError(t, err)
	plan, err := op.Plan(largeShape)
	require.NoError(t, err)
	require.NotEqual(t, TierCUDA, plan.Tier)
	require.NotContains(t, plan.String(), "cuda", "a program without it does not mention it")
}

// largeShape is work enough that tiers cuda and cubin are faster than others.
var largeShape = Shape{B: 2, Hq: 4, Hkv: 2, Sq: 60, Sk: 100}

func TestAutoTakesCUDAWhereItIsFaster(t *testing.T) {
	f := withFakeCUDA(t)
	dev := cudaDevice(t)
	shape := largeShape
	planOf := func(cfg Config) Plan {
		op, err := New(On(dev), cfg)
		require.NoError(t, err)
		p, err := op.Plan(shape)
		require.NoError(t, err)
		return p
	}
	p := planOf(Config{HeadDim: 64, Tier: TierNoCUDA})
	require.NotEqual(t, TierCUDA, p.Tier)
	require.NotContains(t, p.String(), "cuda")
	_, err := New(On(dev), Config{HeadDim: 64})
	require.NoError(t, err)
	require.Empty(t, f.problems, "nobody asked CUDA")

	shape = Shape{B: 1, Hq: 1, Sq: 1, Sk: 9}
	p = planOf(Config{HeadDim: 64})
	require.NotEqual(t, TierCUDA, p.Tier, "little work")
	require.Contains(t, p.Reason, "the fastest, ")
	require.Equal(t, TierCUDA, p.Rejected[0].Tier)
	require.Contains(t, p.Rejected[0].Reason, "slower, ")
	shape = largeShape

	p = planOf(Config{HeadDim: 64, Causal: TopLeft})
	require.Equal(t, TierCUDA, p.Tier)
	require.Equal(t, "attn_fast", p.Kernel)
	require.Equal(t, "128x64", p.Tile)
	require.Equal(t, uint64(77), p.Workgroups)
	require.Regexp(t, `^tier cuda \(attn_fast, tile 128x64, 77 workgroups\): the fastest, [0-9.]+ us by estimate; not \w+: slower, [0-9.]+ us `+
		`by estimate; not cuda: faster: not today$`, p.String())
	require.Equal(t, problem.CUDAProblem{Shape: shape, HeadDim: 64, HeadDimV: 64, Causal: true, Align: 8, Rows: uint64(shape.B * shape.Sq)}, f.problems[len(f.problems)-1])

	p = planOf(Config{HeadDim: 60, HeadDimV: 32, DType: BF16, Tier: TierCUDA, Kernel: "fa2"})
	require.Equal(t, "asked for", p.Reason)
	require.Equal(t, problem.CUDAProblem{Shape: shape, DType: BF16, HeadDim: 60, HeadDimV: 32, Align: 4, Kernel: "fa2", Rows: uint64(shape.B * shape.Sq),
		NoDecode: "its decode kernels take one head dim"}, f.problems[len(f.problems)-1])

	f.choice.Validation = true
	p = planOf(Config{HeadDim: 64})
	require.NotEqual(t, TierCUDA, p.Tier, "the kernel for validation is not for speed")
	require.Contains(t, p.Rejected[0].Reason, "faster: not today; only the slow kernel for validation remains")
	require.Equal(t, TierCUDA, planOf(Config{HeadDim: 64, Tier: TierCUDA}).Tier, "it is when asked for")

	f.err = plan.NoCUDA("the device has none")
	p = planOf(Config{HeadDim: 64})
	require.Equal(t, Rejection{Tier: TierCUDA, Reason: "the device has none"}, p.Rejected[0])
	_, err = New(On(dev), Config{HeadDim: 64, Tier: TierCUDA})
	oneLine(t, err, "the device has none")
	f.err = vk.ErrDeviceLost
	_, err = New(On(dev), Config{HeadDim: 64, Tier: TierCUDA})
	require.ErrorIs(t, err, vk.ErrDeviceLost)
	require.NotErrorIs(t, err, ErrUnsupported)
}

// The kernel gets the caller's arguments, in the kernel's units.
func TestCUDACalls(t *testing.T) {
	f := withFakeCUDA(t)
	dev := cudaDevice(t)
	s := testdevice.Stream(t, dev, "")
	a := callOn(t, dev)
	a.Q.Offset, a.K.Offset, a.LSE.Offset = 8, 16, 3
	a.V.Strides = Strides{Batch: 4096, Head: 64, Seq: 128}
	forward := func(cfg Config) problem.CUDACall {
		cfg.Tier, cfg.HeadDim = TierCUDA, 64
		op, err := New(On(dev), cfg)
		require.NoError(t, err)
		require.NoError(t, op.Prepare(a.Shape))
		require.NoError(t, op.Forward(OnStream(s), a))
		require.NoError(t, op.Forward(OnStream(s), a))
		require.NoError(t, op.Close())
		return f.calls[len(f.calls)-1]
	}
	c := forward(Config{})
	require.Equal(t, a.Shape, c.Shape)
	at := func(b *vk.Buffer, offset uint64) problem.CUDAVector {
		return problem.CUDAVector{Buffer: b, Offset: offset}
	}
	require.Equal(t, [4]problem.CUDATensor{
		{CUDAVector: at(a.Q.Buffer, 16), Batch: 4 * 5 * 64, Head: 5 * 64, Row: 64}, {CUDAVector: at(a.K.Buffer, 32), Batch: 2 * 9 * 64, Head: 9 * 64, Row: 64},
		{CUDAVector: at(a.V.Buffer, 0), Batch: 4096, Head: 64, Row: 128}, {CUDAVector: at(a.O.Buffer, 0), Batch: 4 * 5 * 64, Head: 5 * 64, Row: 64},
	}, c.Tensors)
	require.Equal(t, at(a.LSE.Buffer, 12), c.LSE)
	require.Equal(t, int32(problem.NoCausal), c.CausalOffset)
	require.InDelta(t, 0.125, c.Scale, 1e-9)
	require.InDelta(t, 0.125*math.Log2E, c.ScaleLog2, 1e-7)
	require.InDelta(t, math.Ln2, float64(c.UnitHigh)+float64(c.UnitLow), 1e-7)
	require.Zero(t, forward(Config{Causal: TopLeft}).CausalOffset)
	require.Equal(t, int32(4), forward(Config{Causal: BottomRight}).CausalOffset)
	c = forward(Config{Scale: ScaleOf(0)})
	require.Zero(t, c.Scale)
	require.NotZero(t, c.ScaleLog2, "a masked score stays -Inf")
	a.LSE = Tensor{}
	a.Hkv = 0
	a.K, a.V = a.Q, a.Q
	a.Sk = a.Sq
	c = forward(Config{Scale: ScaleOf(-2)})
	require.False(t, c.LSE.Given())
	require.Equal(t, 4, c.Hkv, "filled in")
	require.Equal(t, float32(-2), c.Scale)

	op, err := New(On(dev), Config{HeadDim: 576, HeadDimV: 512, Tier: TierCUDA})
	require.NoError(t, err)
	f.problems = nil
	require.NoError(t, op.Prepare(Shape{B: 1, Hq: 16, Hkv: 1, Sq: 1, Sk: 64}))
	inK := map[bool]bool{}
	for _, p := range f.problems {
		inK[p.VInK] = true
	}
	require.Len(t, inK, 2, "kernels for V in K and for V in memory of its own")
	require.NoError(t, op.Close())
}

func TestCUDARefusesByName(t *testing.T) {
	f := withFakeCUDA(t)
	f.choice.Workgroups = 8
	dev := cudaDevice(t)
	s := testdevice.Stream(t, dev, "")
	a := callOn(t, dev)
	a.Shape = largeShape
	forced, err := New(On(dev), Config{HeadDim: 64, Tier: TierCUDA})
	require.NoError(t, err)
	auto, err := New(On(dev), Config{HeadDim: 64})
	require.NoError(t, err)

	// A command buffer.
	oneLine(t, forced.Record(s.Commands, a), "cannot record into a command buffer")
	require.NoError(t, auto.Record(s.Commands, a), "another tier can")
	require.Empty(t, f.calls)
	require.NoError(t, auto.Forward(OnStream(s), a))
	require.Len(t, f.calls, 1)
	require.NoError(t, auto.Record(s.Commands, a))
	require.Len(t, f.calls, 1)

	// Buffers out of CUDA's reach.
	for i, x := range []*Tensor{&a.Q, &a.K, &a.V, &a.O, &a.LSE} {
		name := []string{"Q", "K", "V", "O", "LSE"}[i]
		f.out[x.Buffer] = true
		oneLine(t, forced.Forward(OnStream(s), a), "buffer (made without Exportable?) of "+name)
		_, err := forced.PlanFor(a)
		oneLine(t, err, " of "+name)
		plan, err := auto.PlanFor(a)
		require.NoError(t, err)
		require.NotEqual(t, TierCUDA, plan.Tier)
		require.True(t, strings.HasSuffix(plan.Rejected[0].Reason, " of "+name), plan.Rejected[0].Reason)
		require.NoError(t, auto.Forward(OnStream(s), a))
		delete(f.out, x.Buffer)
	}
	require.Len(t, f.calls, 1)

	// A kernel that does not load.
	f.load = &vk.Error{Op: "load", Err: vk.ErrOutOfMemory}
	op, err := New(On(dev), Config{HeadDim: 64, Tier: TierCUDA})
	require.NoError(t, err)
	require.ErrorIs(t, op.Prepare(a.Shape), vk.ErrOutOfMemory)
	require.ErrorIs(t, op.Forward(OnStream(s), a), vk.ErrOutOfMemory)
	f.load = nil
	require.NoError(t, op.Forward(OnStream(s), a), "the failure is not remembered")

	// Tier cuda has no tiles to tune and no experiments.
	_, err = op.Tune(t.Context(), a.Shape, TuneOptions{})
	oneLine(t, err, "no tiles to tune")
	_, err = NewExperiment(On(dev), Config{HeadDim: 64, Tier: TierCUDA}, Experiment{Variant: 1})
	oneLine(t, err, "cooperative-matrix kernels")
	require.NoError(t, s.Wait(t.Context()))
}

func TestConfigOfTierCUDA(t *testing.T) {
	for _, kernel := range append([]string{""}, CUDAKernels()...) {
		require.NoError(t, Config{HeadDim: 64, Tier: TierCUDA, Kernel: kernel}.Validate())
	}
	var shape *ShapeError
	require.ErrorAs(t, Config{HeadDim: 64, Tier: TierCUDA, Kernel: "fa9"}.Validate(), &shape)
	require.Equal(t, "Kernel", shape.Field)
	require.ErrorAs(t, Config{HeadDim: 64, Kernel: "fa2"}.Validate(), &shape)
	require.ErrorAs(t, Config{HeadDim: 64, Tier: TierScalar, Kernel: "fa2"}.Validate(), &shape)
	keys := map[Config]bool{{HeadDim: 64}: true}
	require.False(t, keys[Config{HeadDim: 64, Tier: TierNoCUDA}], "comparable")
	require.Equal(t, "f16 d64 cuda/fa2", Config{HeadDim: 64, Tier: TierCUDA, Kernel: "fa2"}.String())
	require.Equal(t, "f16 d64 no-cuda", Config{HeadDim: 64, Tier: TierNoCUDA}.String())
}

func TestTierReportHasCUDA(t *testing.T) {
	find := func(t2 DType) *TierStatus {
		for _, s := range plan.TierReportOf(&vk.DeviceInfo{}) {
			if s.Tier == TierCUDA && s.DType == t2 {
				return &s
			}
		}
		return nil
	}
	withFakeCUDA(t)
	require.True(t, find(F16).Available)
	require.False(t, find(F32).Available)
	require.Equal(t, "no float32 here", find(F32).Reason)
	withoutCUDA(t)
	require.Nil(t, find(F16), "a program without it does not mention it")
}

func TestCUDACallsAllocateNothing(t *testing.T) {
	f := withFakeCUDA(t)
	f.forget = true
	dev := cudaDevice(t)
	s := testdevice.Stream(t, dev, "")
	a := callOn(t, dev)
	op, err := New(On(dev), Config{HeadDim: 64, Tier: TierCUDA})
	require.NoError(t, err)
	require.NoError(t, op.Forward(OnStream(s), a))
	require.Zero(t, testing.AllocsPerRun(500, func() {
		if err := op.Forward(OnStream(s), a); err != nil {
			t.Error(err)
		}
	}))
}

// The backward call of tier cuda has the numbers of the call, and what it cannot do is
// refused or left to another tier with a reason.
func TestCUDABackward(t *testing.T) {
	f := withFakeCUDA(t)
	dev := cudaDevice(t)
	a := BackwardArgs{Args: callOn(t, dev)}
	for _, x := range []*Tensor{&a.DO, &a.DLSE, &a.DQ, &a.DV} {
		b := testdevice.Buffer(t, dev, 1<<16)
		x.Buffer = b
	}
	a.DQ.Offset, a.Accumulate = 24, true
	s := testdevice.Stream(t, dev, "test")
	op, err := New(On(dev), Config{HeadDim: 64, Tier: TierCUDA, Causal: BottomRight})
	require.NoError(t, err)
	oneLine(t, op.Backward(OnStream(s), a), "fa3: no backward kernels")

	f.backwardErr = nil
	f.backwardChoice = problem.CUDABackwardChoice{Kernels: []PlanKernel{{Outputs: "dQ", Kernel: "attn_dq"}}, ScratchBytes: 640, Rejected: []string{"fa3: none"}, Validation: true}
	op, err = New(On(dev), Config{HeadDim: 64, Tier: TierCUDA, Causal: BottomRight})
	require.NoError(t, err)
	plan, err := op.PlanBackwardFor(a)
	require.NoError(t, err)
	require.Equal(t, TierCUDA, plan.Tier)
	require.Equal(t, uint64(640), plan.ScratchBytes)
	require.NoError(t, op.Backward(OnStream(s), a))
	require.Len(t, f.backwardCalls, 1)
	c := f.backwardCalls[0]
	require.Equal(t, Shape{B: 2, Hq: 4, Hkv: 2, Sq: 5, Sk: 9}, c.Shape)
	require.Equal(t, problem.CUDATensor{CUDAVector: problem.CUDAVector{Buffer: a.DQ.Buffer, Offset: 48}, Batch: 4 * 5 * 64, Head: 5 * 64, Row: 64}, c.Tensors[5])
	require.Nil(t, c.Tensors[6].Buffer, "DK")
	require.Equal(t, a.DLSE.Buffer, c.DLSE.Buffer)
	require.Equal(t, []any{true, int32(problem.NoCausal), int32(0), true}, []any{c.BottomRight, c.Left, c.Right, c.Accumulate})
	oneLine(t, op.RecordBackward(s.Commands, a), "use Backward")

	a.Sinks = Vector{Buffer: a.DLSE.Buffer, Offset: 8192}
	oneLine(t, op.Backward(OnStream(s), a), "its backward kernels take no sinks")
	a.Sinks = Vector{}
	f.out[a.DV.Buffer] = true
	oneLine(t, op.Backward(OnStream(s), a), "of DV")
	delete(f.out, a.DV.Buffer)

	for refused, cfg := range map[string]Config{"score modifiers": {ScoreMod: score.Softcap(score.S, 30)}, "mask modifiers": {MaskMod: score.Eq(score.Mod(score.J, score.Int(3)), score.Int(0))}} {
		cfg.HeadDim = 64
		modified, err := New(On(dev), cfg)
		require.NoError(t, err)
		plan, err := modified.PlanBackwardFor(a)
		require.NoError(t, err)
		require.Equal(t, "its backward kernels take no "+refused, plan.Rejected[0].Reason)
	}

	// Slow kernels are for those who ask by name.
	op, err = New(On(dev), Config{HeadDim: 64, Causal: BottomRight})
	require.NoError(t, err)
	plan, err = op.PlanBackwardFor(a)
	require.NoError(t, err)
	require.NotEqual(t, TierCUDA, plan.Tier)
	require.Contains(t, plan.Rejected[0].Reason, "only the slow kernels for validation remain")

	// Forward kernels and backward kernels take the same window.
	cfg := Config{HeadDim: 64, Tier: TierCUDA, Causal: BottomRight, Window: WindowOf(3, 2)}
	op, err = New(On(dev), cfg)
	require.NoError(t, err)
	require.NoError(t, op.Forward(OnStream(s), a.Args))
	require.Equal(t, [2]int32{3, 0}, [2]int32{f.calls[0].Left, f.calls[0].Right})
	require.NoError(t, op.Backward(OnStream(s), a))
	c = f.backwardCalls[1]
	require.Equal(t, [2]int32{3, 0}, [2]int32{c.Left, c.Right})
}

// A softcap that float32 or a device that flushes subnormals does not hold in the kernel's
// units reaches it as one that gives the same scores; a quotient that it cannot hold is refused.
func TestCUDABackwardOfExtremeSoftcaps(t *testing.T) {
	f := withFakeCUDA(t)
	f.backwardErr = nil
	f.choice.Rejected = nil
	dev := cudaDevice(t)
	a := BackwardArgs{Args: callOn(t, dev)}
	a.DO, a.DQ = callOn(t, dev).O, callOn(t, dev).O
	s := testdevice.Stream(t, dev, "test")
	for _, x := range []struct {
		scale, softcap float32
		want           float32 // 0: refused
	}{{0.125, 30, 30}, {0, 30, 30}, {0.125, 1e-40, 0x1p-126}, {0.125, math.MaxFloat32, 0x1p104}, {100, 1e-40, 0}, {1e-10, math.MaxFloat32, 0}, {1e-40, 30, 30}} {
		op, err := New(On(dev), Config{HeadDim: 64, Tier: TierCUDA, Causal: BottomRight, Scale: ScaleOf(x.scale), Softcap: x.softcap})
		if x.want == 0 {
			oneLine(t, err, "scale / softcap")
			continue
		}
		require.NoError(t, err)
		f.backwardCalls = nil
		require.NoError(t, op.Backward(OnStream(s), a))
		require.Equal(t, x.want, f.backwardCalls[0].Softcap, "%v", x)
		require.True(t, f.backwardCalls[0].Scale == 0 || f.backwardCalls[0].Scale >= 0x1p-126)
	}
}

// Prepare is for tensors in ordinary memory, which CUDA does not reach.
func TestAutoPreparesForOrdinaryMemory(t *testing.T) {
	f := withFakeCUDA(t)
	dev := cudaDevice(t)
	op, err := New(On(dev), Config{HeadDim: 64})
	require.NoError(t, err)
	require.NoError(t, op.Prepare(largeShape))
	require.Empty(t, f.problems, "CUDA was not asked, which would start it")
	s := testdevice.Stream(t, dev, "")
	a := callOn(t, dev)
	a.Shape = largeShape
	for _, x := range []*Tensor{&a.Q, &a.K, &a.V, &a.O, &a.LSE} {
		f.out[x.Buffer] = true
	}
	plans := op.plans.size
	require.NoError(t, op.Forward(OnStream(s), a))
	require.Equal(t, plans, op.plans.size, "the plan of Prepare")
	require.NoError(t, s.Wait(t.Context()))
	require.NoError(t, op.Close())
}
