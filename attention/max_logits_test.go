package attention_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// maxLogits computes a call on the CPU tier with MaxLogits.
func (c *backwardCase) maxLogits(t *testing.T) []float32 {
	t.Helper()
	a := c.Args
	a.O = attention.Tensor{Host: make([]byte, 4*c.cfg.ValueDim()*a.B*a.Hq*a.Sq)}
	a.MaxLogits = attention.Vector{Host: make([]byte, 4*a.Hq+8), Offset: 1}
	require.NoError(t, attention.CheckArgs(c.cfg, a))
	op, err := attention.New(nil, c.cfg)
	require.NoError(t, err)
	require.NoError(t, op.Forward(nil, a))
	all := f32Values(a.MaxLogits.Host)
	require.Zero(t, all[0])
	require.Zero(t, all[a.Hq+1])
	return all[1:][:a.Hq]
}

// MaxLogits are the largest scores of the heads, whatever the options of the call.
func TestMaxLogitsAreTheLargestScores(t *testing.T) {
	eachBackward(t, func(t *testing.T, c *backwardCase) {
		want, err := attention.ReferenceMaxLogits(c.cfg, c.Args)
		require.NoError(t, err)
		got := c.maxLogits(t)
		for h, x := range want {
			require.InDelta(t, x, got[h], 1e-5*(1+math.Abs(x)), "head %d", h)
		}
	})
}

func TestMaxLogitsByHand(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, x := range map[string]struct {
		q, k     []float32 // of two heads of two rows, and of one key head of three keys
		causal   attention.Causal
		scale    float32
		want     [2]float32
		sequence *attention.Varlen
	}{
		"all keys":       {[]float32{1, 2, -1, -2}, []float32{3, -4, 5}, attention.CausalNone, 0.5, [2]float32{5, 4}, nil},
		"causal":         {[]float32{1, 2, -1, -2}, []float32{3, -4, 5}, attention.TopLeft, 1, [2]float32{6, 8}, nil},
		"negative scale": {[]float32{1, 2, -1, -2}, []float32{3, -4, 5}, attention.CausalNone, -1, [2]float32{8, 10}, nil},
		"negative":       {[]float32{1, 2, 1, 2}, []float32{-3, -4, -5}, attention.CausalNone, 1, [2]float32{-3, -3}, nil},
		"zero scale":     {[]float32{1, 2, 1, 2}, []float32{-3, -4, -5}, attention.CausalNone, 0, [2]float32{0, 0}, nil},
		"NaN":            {[]float32{nan, 2, -1, -2}, []float32{3, nan, 5}, attention.CausalNone, 1, [2]float32{10, -3}, nil},
		"infinite":       {[]float32{1, 2, -1, -2}, []float32{3, inf, 5}, attention.CausalNone, 1, [2]float32{inf, -3}, nil},
		"no rows":        {[]float32{1, 2, -1, -2}, []float32{3, -4, 5}, attention.CausalNone, 1, [2]float32{-inf, -inf}, &attention.Varlen{UsedQ: vectorI32(0)}},
		"no keys":        {[]float32{1, 2, -1, -2}, []float32{3, -4, 5}, attention.CausalNone, 1, [2]float32{-inf, -inf}, &attention.Varlen{UsedK: vectorI32(0)}},
		"fewer":          {[]float32{1, 2, -1, -2}, []float32{3, -4, 5}, attention.CausalNone, 1, [2]float32{3, 4}, &attention.Varlen{UsedQ: vectorI32(1), UsedK: vectorI32(2)}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := attention.Config{DType: attention.F32, HeadDim: 1, Causal: x.causal, Scale: attention.ScaleOf(x.scale)}
			c := &backwardCase{cfg: cfg}
			c.Shape = attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 2, Sk: 3}
			c.Q, c.K, c.V, c.Varlen = f32Tensor(x.q), f32Tensor(x.k), f32Tensor([]float32{1, 2, 3}), x.sequence
			require.Equal(t, x.want[:], c.maxLogits(t))
			exact, err := attention.ReferenceMaxLogits(cfg, c.Args)
			require.NoError(t, err)
			require.Equal(t, []float64{float64(x.want[0]), float64(x.want[1])}, exact)
		})
	}
}

// MaxLogits is an output with memory of its own.
func TestMaxLogitsMemory(t *testing.T) {
	c := newBackward(attention.Config{HeadDim: 8}, attention.Shape{B: 1, Hq: 3, Sq: 4, Sk: 5}, layoutsByName["BHSD"], 1)
	c.O = attention.Tensor{Host: make([]byte, 4*3*4*8)}
	refused := func(v attention.Vector, text string) {
		a := c.Args
		a.MaxLogits = v
		err := attention.CheckArgs(c.cfg, a)
		require.ErrorIs(t, err, attention.ErrInvalid)
		require.ErrorContains(t, err, text)
	}
	refused(attention.Vector{Host: make([]byte, 11)}, "MaxLogits")
	refused(attention.Vector{Host: c.Q.Host, Offset: c.Q.Offset}, "overlapping MaxLogits")
	refused(attention.Vector{Host: c.O.Host}, "overlapping MaxLogits")
	refused(attention.Vector{Offset: 3}, "MaxLogits")
}
