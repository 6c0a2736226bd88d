package attention

import (
	"testing"

	"vkattn/attention/problem"

	"github.com/stretchr/testify/require"
)

// Tier cuda computes no options. If asked for by name it refuses each of them; if merely
// allowed, another tier computes the call and the plan says why.
func TestCUDARefusesOptions(t *testing.T) {
	f := withFakeCUDA(t)
	dev := cudaDevice(t)
	base := callOn(t, dev)
	vector := func() problem.Vector { return problem.Vector{Buffer: base.Q.Buffer, Offset: 4096} }
	for name, change := range map[string]func(*problem.Config, *problem.Args){
		"varlen": func(_ *problem.Config, a *problem.Args) { a.Varlen = &problem.Varlen{UsedK: vector()} },
		"packed": func(_ *problem.Config, a *problem.Args) { a.Varlen = &problem.Varlen{CuQ: vector(), TotalQ: 7} },
		"pages": func(_ *problem.Config, a *problem.Args) {
			a.Pages = &problem.Pages{Table: vector(), PageSize: 4, Count: 3}
		},
		"sparse": func(_ *problem.Config, a *problem.Args) {
			a.SparseTokens = &problem.SparseTokens{Offsets: vector(), Tokens: vector(), Total: 5}
		},
		"blocks": func(_ *problem.Config, a *problem.Args) {
			a.Blocks = &problem.Blocks{Map: vector(), BlockQ: 16, BlockK: 16}
		},
		"bias": func(_ *problem.Config, a *problem.Args) {
			a.Bias = &problem.Bias{Tensor: problem.Tensor{Buffer: base.Q.Buffer}, Heads: 1}
		},
		"mask": func(_ *problem.Config, a *problem.Args) {
			a.Mask = &problem.Mask{Tensor: problem.Tensor{Buffer: base.Q.Buffer}}
		},
		"alibi":   func(c *problem.Config, a *problem.Args) { c.Align, a.ALiBi = problem.TopLeft, vector() },
		"sinks":   func(_ *problem.Config, a *problem.Args) { a.Sinks = vector() },
		"window":  func(c *problem.Config, _ *problem.Args) { c.Align, c.Window = problem.TopLeft, problem.WindowOf(3, 3) },
		"softcap": func(c *problem.Config, _ *problem.Args) { c.Softcap = 30 },
		"int8": func(c *problem.Config, a *problem.Args) {
			c.KV, a.KScale, a.VScale = problem.KVInt8, vector(), vector()
		},
		"q4_0":  func(c *problem.Config, _ *problem.Args) { c.KV = problem.KVQ4_0 },
		"split": func(c *problem.Config, _ *problem.Args) { c.FixedSplit = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg, a := problem.Config{HeadDim: 64, Tier: problem.TierCUDA}, base
			change(&cfg, &a)
			s, err := dev.NewStream("test")
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			op, err := New(dev, cfg) // which refuses the options of a Config
			if err == nil {
				err = op.Forward(s, a)
			}
			oneLine(t, err, "dense attention only: no lengths, pages, lists, modifiers")
			require.Empty(t, f.calls)

			cfg.Tier, cfg.AllowCUDA = problem.TierAuto, true
			op, err = New(dev, cfg)
			require.NoError(t, err)
			plan, err := op.PlanFor(a)
			require.NoError(t, err)
			require.NotEqual(t, problem.TierCUDA, plan.Tier)
			require.Equal(t, problem.TierCUDA, plan.Rejected[0].Tier)
			require.NotEmpty(t, plan.Rejected[0].Reason)
		})
	}
}
