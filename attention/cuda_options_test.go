package attention

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention/score"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// Tier cuda computes some options if asked for by name, and refuses the others. If merely
// allowed, another tier computes the call and the plan says why.
func TestCUDATakesSomeOptions(t *testing.T) {
	f := withFakeCUDA(t)
	f.choice.Family = "fa2"
	dev := cudaDevice(t)
	base := callOn(t, dev)
	vector := func() Vector { return Vector{Buffer: base.Q.Buffer, Offset: 4096} }
	taken := map[string]string{"varlen": "lengths", "packed": "lengths", "pages": "pages", "alibi": "ALiBi", "sinks": "sinks", "window": "window", "softcap": "softcap",
		"bias": "bias", "mask": "mask", "dropout": "dropout", "alibi of each": "ALiBi"}
	for name, change := range map[string]func(*Config, *Args){
		"varlen": func(_ *Config, a *Args) { a.Varlen = &Varlen{UsedK: vector()} },
		"packed": func(_ *Config, a *Args) { a.Varlen = &Varlen{CuQ: vector(), TotalQ: 7} },
		"pages": func(_ *Config, a *Args) {
			a.Pages = &Pages{Table: vector(), PageSize: 4, Count: 3}
		},
		"sparse": func(_ *Config, a *Args) {
			a.SparseTokens = &SparseTokens{Offsets: vector(), Tokens: vector(), Total: 5}
		},
		"blocks": func(_ *Config, a *Args) {
			a.Blocks = &Blocks{Map: vector(), BlockQ: 16, BlockK: 16}
		},
		"bias": func(_ *Config, a *Args) {
			a.Bias = &Bias{Tensor: Tensor{Buffer: base.Q.Buffer}, Heads: 1}
		},
		"mask": func(_ *Config, a *Args) {
			a.Mask = &Mask{Tensor: Tensor{Buffer: base.Q.Buffer}}
		},
		"alibi":          func(c *Config, a *Args) { c.Align, a.ALiBi = TopLeft, vector() },
		"alibi of each":  func(c *Config, a *Args) { c.Align, a.ALiBi, a.ALiBiPerSequence = TopLeft, vector(), true },
		"sinks":          func(_ *Config, a *Args) { a.Sinks = vector() },
		"window":         func(c *Config, _ *Args) { c.Align, c.Window = TopLeft, WindowOf(3, 3) },
		"softcap":        func(c *Config, _ *Args) { c.Softcap = 30 },
		"dropout":        func(c *Config, _ *Args) { c.Dropout = 0.1 },
		"score modifier": func(c *Config, _ *Args) { c.ScoreMod = score.Softcap(score.S, 30) },
		"mask modifier":  func(c *Config, _ *Args) { c.MaskMod = score.Eq(score.Mod(score.J, score.Int(3)), score.Int(0)) },
		"split":          func(c *Config, _ *Args) { c.FixedSplit = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg, a := Config{HeadDim: 64, Tier: TierCUDA}, base
			change(&cfg, &a)
			s := testdevice.Stream(t, dev, "test")
			op, err := New(On(dev), cfg) // which refuses the options of a Config
			if err == nil {
				err = op.Forward(OnStream(s), a)
			}
			if option := taken[name]; option != "" {
				require.NoError(t, err)
				require.Equal(t, option, f.problems[len(f.problems)-1].Options)
				require.NotEqual(t, problem.CUDAOptions{}, f.calls[len(f.calls)-1].CUDAOptions)
			} else {
				oneLine(t, err, "its forward kernels take no ")
			}

			reason := autoLeavesCUDA(t, dev, cfg, a)
			require.NotEmpty(t, reason)
			if taken[name] != "" {
				require.Contains(t, reason, "it takes them if asked for")
			}
		})
	}
}

// autoPlan returns the plan of TierAuto for a call.
func autoPlan(t *testing.T, dev *vk.Device, cfg Config, a Args) Plan {
	t.Helper()
	cfg.Tier = TierAuto
	op, err := New(On(dev), cfg)
	require.NoError(t, err)
	plan, err := op.PlanFor(a)
	require.NoError(t, err)
	return plan
}

// autoLeavesCUDA checks that TierAuto computes a call on another tier than cuda, and returns why.
func autoLeavesCUDA(t *testing.T, dev *vk.Device, cfg Config, a Args) (reason string) {
	t.Helper()
	plan := autoPlan(t, dev, cfg, a)
	require.NotEqual(t, TierCUDA, plan.Tier)
	require.Equal(t, TierCUDA, plan.Rejected[0].Tier)
	return plan.Rejected[0].Reason
}

// A plan of tier cuda for few keys is not that of more keys than its kernels take.
func TestCUDAPlansEndAtTheirKeys(t *testing.T) {
	f := withFakeCUDA(t)
	dev := cudaDevice(t)
	for _, tier := range []Tier{TierCUDA, TierAuto} {
		op, err := New(On(dev), Config{HeadDim: 64, Causal: TopLeft, Window: WindowOf(9, 0), Tier: tier})
		require.NoError(t, err)
		request := op.typical(Shape{B: 1, Hq: 1, Hkv: 1, Sq: 4, Sk: 1 << 29})
		p, err := plan.Make(dev, op.cfg, request, nil)
		require.NoError(t, err)
		require.False(t, p.Range.Holds(1<<29+1), "%v", p.Range)
		request.Shape.Sk++
		p, err = plan.Make(dev, op.cfg, request, nil)
		const why = "its kernels for options take at most 2^29"
		if tier == TierCUDA {
			oneLine(t, err, why)
			continue
		}
		require.NoError(t, err)
		require.Contains(t, Plan(p.Plan).String(), why)
		require.False(t, p.Range.Holds(1<<29), "%v", p.Range)
	}

	// Kernels of latent attention count the KV tiles of all sequences.
	op, err := New(On(dev), Config{HeadDim: 64, HeadDimV: 32, Tier: TierCUDA})
	require.NoError(t, err)
	const tiles, keys = 1 << 29, 64
	for _, batch := range []int{1, 64, 100} {
		most := tiles/batch*keys - 1
		for _, x := range []struct {
			keys int
			same bool
		}{{100, false}, {min(most, 1<<29), true}, {most + 1, false}} {
			if x.keys > 1<<29 {
				continue // a limit of its own
			}
			f.problems = nil
			require.NoError(t, op.Prepare(Shape{B: batch, Hq: 128, Hkv: 1, Sq: 1, Sk: x.keys}))
			require.Equal(t, x.same, len(f.problems) == 0, "batch %d, %d keys", batch, x.keys)
		}
	}
}

// latentCallOn is a call with V in K, and a vector for its options.
func latentCallOn(t *testing.T, dev *vk.Device) (base Args, vector func() Vector) {
	base = callOn(t, dev)
	base.Shape = Shape{B: 1, Hq: 128, Hkv: 1, Sq: 2, Sk: 512}
	base.V = base.K
	base.V.Strides = Strides{Batch: 512 * 64, Head: 64, Seq: 64}
	return base, func() Vector { return Vector{Buffer: base.Q.Buffer, Offset: 4096} }
}

// TierAuto takes the kernels of latent attention of tier cuda with lengths and pages, unless V is elsewhere or the call has other
// options, whose kernels have not been raced.
func TestAutoTakesLatentAttentionOfCUDA(t *testing.T) {
	f := withFakeCUDA(t)
	f.choice.Family, f.choice.Rows, f.choice.Cols = "fa3 latent", 64, 64
	dev := cudaDevice(t)
	base, vector := latentCallOn(t, dev)
	for name, x := range map[string]struct {
		change func(*Config, *Args)
		family string
		want   bool
	}{
		"dense": {func(*Config, *Args) {}, "fa3 latent", true},
		"pages": {func(_ *Config, a *Args) {
			a.Pages, a.V.Strides.Batch = &Pages{Table: vector(), PageSize: 64, Count: 3}, 64*64
		}, "fa3 latent", true},
		"lengths":   {func(_ *Config, a *Args) { a.Varlen = &Varlen{UsedK: vector()} }, "fa3 latent", true},
		"another V": {func(_ *Config, a *Args) { a.V.Buffer, a.Varlen = a.Q.Buffer, &Varlen{UsedK: vector()} }, "fa2", false},
		"odd pages": {func(_ *Config, a *Args) {
			a.Pages, a.V.Strides.Batch = &Pages{Table: vector(), PageSize: 24, Count: 3}, 24*64
		}, "fa2", false},
		"with sinks": {func(_ *Config, a *Args) { a.Sinks = vector() }, "fa2", false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, a := Config{HeadDim: 64, HeadDimV: 32}, base
			f.choice.Family = x.family
			x.change(&cfg, &a)
			plan := autoPlan(t, dev, cfg, a)
			require.Equal(t, x.want, plan.Tier == TierCUDA, "%v", plan)
			if x.want {
				require.Contains(t, plan.Reason, "the fastest, ")
			} else {
				require.Contains(t, plan.Rejected[0].Reason, "it takes them if asked for")
			}
		})
	}
}

// TierAuto estimates the time of the fa3 kernels of tier cuda for lengths and windows, and of no kernels for other options.
func TestAutoEstimatesSequencesOfCUDA(t *testing.T) {
	f := withFakeCUDA(t)
	f.choice.Rows, f.choice.Cols = 128, 128
	dev := cudaDevice(t)
	base := callOn(t, dev)
	vector := Vector{Buffer: base.Q.Buffer, Offset: 4096}
	for name, x := range map[string]struct {
		change func(*Config, *Args)
		family string
		want   bool
	}{
		"lengths":              {func(_ *Config, a *Args) { a.Varlen = &Varlen{UsedK: vector} }, "fa3", true},
		"a window":             {func(c *Config, _ *Args) { c.Window, c.Align = WindowOf(5, 5), BottomRight }, "fa3", true},
		"at any alignment":     {func(_ *Config, a *Args) { a.Varlen = &Varlen{UsedK: vector} }, "fa2_any", false},
		"lengths and sinks":    {func(_ *Config, a *Args) { a.Varlen, a.Sinks = &Varlen{UsedK: vector}, vector }, "fa3", false},
		"a window and softcap": {func(c *Config, _ *Args) { c.Window, c.Align, c.Softcap = WindowOf(5, 5), BottomRight, 2 }, "fa3", false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, a := Config{HeadDim: 64}, base
			f.choice.Family = x.family
			x.change(&cfg, &a)
			plan := autoPlan(t, dev, cfg, a)
			require.NotEqual(t, x.want, strings.Contains(plan.String(), "it takes them if asked for"), "%v", plan)
			require.Equal(t, x.want, strings.Contains(plan.String(), "us by estimate"), "%v", plan)
		})
	}
}

// Tier cuda takes lists of tokens for each row, in latent attention, and refuses others. TierAuto takes those of one length alone.
func TestCUDATakesTokensOfLatentAttention(t *testing.T) {
	f := withFakeCUDA(t)
	f.choice.Family = "fa3 latent"
	dev := cudaDevice(t)
	base, vector := latentCallOn(t, dev)
	for name, x := range map[string]struct {
		change func(*Args)
		want   bool
	}{
		"of rows":      {func(*Args) {}, true},
		"with lengths": {func(a *Args) { a.Varlen = &Varlen{UsedK: vector()} }, true},
		"with offsets": {func(a *Args) {
			a.SparseTokens = &SparseTokens{Offsets: vector(), Tokens: vector(), Total: 5, PerRow: true}
		}, true},
		"of sequences with offsets": {func(a *Args) {
			a.SparseTokens = &SparseTokens{Offsets: vector(), Tokens: vector(), Total: 5}
		}, false},
		"of sequences": {func(a *Args) { a.SparseTokens = &SparseTokens{Tokens: vector(), TopK: 7} }, false},
		"another V":    {func(a *Args) { a.V.Buffer = a.Q.Buffer }, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := base
			a.SparseTokens = &SparseTokens{Tokens: vector(), TopK: 7, PerRow: true}
			x.change(&a)
			s := testdevice.Stream(t, dev, "test")
			op, err := New(On(dev), Config{HeadDim: 64, HeadDimV: 32, Tier: TierCUDA})
			require.NoError(t, err)
			err = op.Forward(OnStream(s), a)
			if !x.want {
				oneLine(t, err, "its forward kernels take no sparse tokens")
				return
			}
			require.NoError(t, err)
			offsets := a.SparseTokens.TopK == 0
			require.True(t, f.problems[len(f.problems)-1].Tokens)
			require.Equal(t, offsets, f.problems[len(f.problems)-1].Offsets)
			call := f.calls[len(f.calls)-1]
			require.Equal(t, a.SparseTokens.TopK, call.TopK)
			require.Equal(t, a.SparseTokens.Total, call.TokensTotal)
			require.Equal(t, a.SparseTokens.Tokens.Buffer, call.Tokens.Buffer)
			require.Equal(t, a.SparseTokens.Offsets.Buffer, call.Offsets.Buffer)
			plan := autoPlan(t, dev, Config{HeadDim: 64, HeadDimV: 32}, a)
			require.Equal(t, offsets, strings.Contains(plan.Rejected[0].Reason, "it takes them if asked for"), "%v", plan)
			f.out[a.SparseTokens.Tokens.Buffer] = true
			defer clear(f.out)
			oneLine(t, op.Forward(OnStream(s), a), "CUDA does not reach the buffer")
		})
	}
}

// Tier cuda takes decode over quantized K and V if it is named, with vectors that CUDA reaches and with the splits of the plan.
func TestCUDATakesQuantizedDecodeIfAskedFor(t *testing.T) {
	f := withFakeCUDA(t)
	f.choice.Family, f.choice.Rows, f.choice.Resident, f.choice.StateDim = "decode", 8, 100, 64
	dev := cudaDevice(t)
	a := callOn(t, dev)
	a.Shape = Shape{B: 1, Hq: 1, Hkv: 1, Sq: 1, Sk: 500}
	scales, err := dev.NewBuffer(1<<13, vk.BufferOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, scales.Close()) }()
	a.KScale, a.VScale = Vector{Buffer: scales}, Vector{Buffer: scales, Offset: 512}
	s := testdevice.Stream(t, dev, "test")
	cfg := Config{HeadDim: 64, KeyType: KVInt8, ValueType: KVInt8, Tier: TierCUDA}
	op, err := New(On(dev), cfg)
	require.NoError(t, err)
	for keys, splits := range map[int]int{500: 1, 1000: 3} {
		a.Sk = keys
		require.NoError(t, op.Forward(OnStream(s), a))
		require.Equal(t, KVInt8, f.problems[len(f.problems)-1].KV)
		d := f.calls[len(f.calls)-1].Decode
		require.Equal(t, splits, d.Splits)
		require.Equal(t, scales, d.VScale.Buffer)
		plan, err := op.PlanFor(a)
		require.NoError(t, err)
		require.Equal(t, splits, plan.Splits)
	}
	f.out[scales] = true
	oneLine(t, op.Forward(OnStream(s), a), "CUDA does not reach the buffer (made without Exportable?) of KScale")
	clear(f.out)

	require.Contains(t, autoLeavesCUDA(t, dev, cfg, a), "it takes them if asked for")
}

// Tier cuda takes rows of fp8_ds_mla with V that is the tensor of K, and TierAuto takes its kernels of latent attention alone.
func TestCUDATakesLatentRows(t *testing.T) {
	f := withFakeCUDA(t)
	f.choice.Family, f.choice.Rows, f.choice.Cols = "fa3 latent", 64, 64
	dev := cudaDevice(t)
	a := callOn(t, dev)
	a.Shape = Shape{B: 1, Hq: 1, Hkv: 1, Sq: 1, Sk: 9}
	a.V = a.K
	cfg := Config{HeadDim: 576, HeadDimV: 512, KeyType: KVFP8DSMLA, ValueType: KVFP8DSMLA, Tier: TierCUDA}
	s := testdevice.Stream(t, dev, "test")
	op, err := New(On(dev), cfg)
	require.NoError(t, err)
	require.NoError(t, op.Prepare(a.Shape))
	require.NoError(t, op.Forward(OnStream(s), a))
	require.Equal(t, KVFP8DSMLA, f.problems[len(f.problems)-1].KV)
	require.Equal(t, int64(656), f.calls[len(f.calls)-1].Decode.UnitBytes)
	elsewhere := a
	elsewhere.V.Buffer = a.Q.Buffer
	oneLine(t, op.Forward(OnStream(s), elsewhere), "its kernels take fp8_ds_mla with one KV head and V that is the tensor of K")
	for _, x := range []*Tensor{&a.Q, &a.K, &a.O} {
		var err error
		x.Buffer, err = dev.NewBuffer(1<<19, vk.BufferOptions{})
		require.NoError(t, err)
		defer func() { require.NoError(t, x.Buffer.Close()) }()
	}
	a.V = a.K
	a.Shape = Shape{B: 1, Hq: 128, Hkv: 1, Sq: 2, Sk: 512}
	require.Equal(t, TierCUDA, autoPlan(t, dev, cfg, a).Tier)
	f.choice.Family = "fa2"
	require.Contains(t, autoLeavesCUDA(t, dev, cfg, a), "it takes them if asked for")
}

// Tier cuda alone takes a state of dropout and MaxLogits on a Vulkan device. The others refuse them by name, but gradients take no notice
// of MaxLogits.
func TestVulkanTiersRefuseWhatOnlyCUDATakes(t *testing.T) {
	f := withFakeCUDA(t)
	dev := cudaDevice(t)
	base := callOn(t, dev)
	for name, change := range map[string]func(a *Args, v Vector){
		"dropout, dropout state": func(a *Args, v Vector) { a.DropoutState = v },
		"dropout, MaxLogits":     func(a *Args, v Vector) { a.MaxLogits = v },
	} {
		a := base
		change(&a, Vector{Buffer: base.Q.Buffer, Offset: 4096})
		s, err := dev.NewStream("test")
		require.NoError(t, err)
		_, option, _ := strings.Cut(name, ", ")
		for _, tier := range []Tier{TierAuto, TierScalar} {
			op, err := New(On(dev), Config{HeadDim: 64, Dropout: 0.5, Tier: tier})
			require.NoError(t, err)
			oneLine(t, op.Forward(OnStream(s), a), "its kernels take no "+option)
		}
		op, err := New(On(dev), Config{HeadDim: 64, Dropout: 0.5, Tier: TierCUDA})
		require.NoError(t, err)
		require.NoError(t, op.Forward(OnStream(s), a))
		require.Equal(t, name, f.problems[len(f.problems)-1].Options)
		require.NoError(t, s.Close())

		b := BackwardArgs{Args: a, DO: a.Q, DQ: Tensor{Buffer: a.K.Buffer, Offset: 8192}}
		op, err = New(On(dev), Config{HeadDim: 64, Dropout: 0.5, Tier: TierScalar})
		require.NoError(t, err)
		_, err = op.PlanBackwardFor(b)
		if a.MaxLogits.Given() {
			require.NoError(t, err)
		} else {
			oneLine(t, err, "its kernels take no dropout state")
		}
	}
}
