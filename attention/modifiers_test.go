package attention_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/score"
)

// modifiedCall is a small call in host memory with a bias table and a table of documents.
func modifiedCall() (attention.Config, attention.Args) {
	doc, bias := score.IntTable("doc", 1), score.FloatTable("bias", 2)
	cfg := attention.Config{DType: attention.F32, HeadDim: 8, ScoreMod: score.Add(score.S, bias.At(score.Head, score.J)), MaskMod: score.Documents(doc)}
	host := func(n int) []byte { return make([]byte, 4*n) }
	a := attention.Args{Shape: attention.Shape{B: 1, Hq: 2, Sq: 5, Sk: 6}}
	a.Q.Host, a.K.Host, a.V.Host, a.O.Host = host(2*5*8), host(2*6*8), host(2*6*8), host(2*5*8)
	a.Tables = []attention.Table{{Name: "bias", Dims: [3]int{2, 6}, Vector: attention.Vector{Host: host(12)}},
		{Name: "doc", Dims: [3]int{6}, Vector: attention.Vector{Host: host(6)}}}
	return cfg, a
}

// What is wrong with modifiers and tables is an error that names it.
func TestModifiersAreChecked(t *testing.T) {
	cfg, a := modifiedCall()
	require.NoError(t, attention.CheckArgs(cfg, a))
	for want, change := range map[string]func(*attention.Config, *attention.Args){
		"MaskMod":                              func(c *attention.Config, _ *attention.Args) { c.MaskMod = score.S },
		"the expression is bool, not float":    func(c *attention.Config, _ *attention.Args) { c.ScoreMod = score.Causal() },
		"+ takes numbers, not float and bool":  func(c *attention.Config, _ *attention.Args) { c.ScoreMod = score.Add(score.S, score.Causal()) },
		"two different tables are named doc":   func(c *attention.Config, _ *attention.Args) { c.ScoreMod = score.FloatTable("doc", 1).At(score.I) },
		"Tables[doc]":                          func(_ *attention.Config, a *attention.Args) { a.Tables = a.Tables[:1] },
		"Tables[bias] is given twice":          func(_ *attention.Config, a *attention.Args) { a.Tables = append(a.Tables, a.Tables[0]) },
		"Tables[other]":                        func(_ *attention.Config, a *attention.Args) { a.Tables[1].Name = "other" },
		"Tables[bias].Dims is [2 6 1], want 2": func(_ *attention.Config, a *attention.Args) { a.Tables[0].Dims[2] = 1 },
		"Tables[doc].Dims is [0 0 0], want 1":  func(_ *attention.Config, a *attention.Args) { a.Tables[1].Dims[0] = 0 },
		"Tables[doc].Dims is [-1 0 0], want 1": func(_ *attention.Config, a *attention.Args) { a.Tables[1].Dims[0] = -1 },
		"at most":                              func(_ *attention.Config, a *attention.Args) { a.Tables[0].Dims = [3]int{1 << 20, 1 << 20} },
		"48 bytes":                             func(_ *attention.Config, a *attention.Args) { a.Tables[0].Dims[1] = 7 },
	} {
		cfg, a := modifiedCall()
		a.Tables = append([]attention.Table{}, a.Tables...)
		change(&cfg, &a)
		var wrong *attention.ShapeError
		err := attention.CheckArgs(cfg, a)
		require.ErrorAs(t, err, &wrong, want)
		require.ErrorContains(t, err, want)
	}
}

// Plans have the texts of the modifiers and say where a derivative is taken for 0, and a Config with modifiers is a value
// like others.
func TestPlansOfModifiers(t *testing.T) {
	cfg, a := modifiedCall()
	op, err := attention.New(nil, cfg)
	require.NoError(t, err)
	require.NoError(t, op.Forward(nil, a))
	p, err := op.PlanFor(a)
	require.NoError(t, err)
	require.Equal(t, "s + bias[h, j]", p.ScoreMod)
	require.Equal(t, "doc[i] == doc[j]", p.MaskMod)
	require.Contains(t, p.String(), "mask-mod doc[i] == doc[j]")
	a.LSE.Host = make([]byte, 4*2*5)
	gradients := attention.BackwardArgs{Args: a, DO: a.O, DQ: attention.Tensor{Host: make([]byte, len(a.Q.Host))}}
	require.NoError(t, op.Backward(nil, gradients))
	back, err := op.PlanBackwardFor(gradients)
	require.NoError(t, err)
	require.Equal(t, p.ScoreMod, back.ScoreMod)
	require.Equal(t, p.MaskMod, back.MaskMod)
	require.Empty(t, back.Notes)
	require.Contains(t, back.String(), "score-mod s + bias[h, j], mask-mod doc[i] == doc[j]")
	require.NoError(t, op.Close())

	steps := cfg
	steps.ScoreMod, err = score.Parse("floor(s) + (s < bias[h, j] ? sign(s) : floor(float(i)))", score.FloatTable("bias", 2))
	require.NoError(t, err)
	op, err = attention.New(nil, steps)
	require.NoError(t, err)
	back, err = op.PlanBackwardFor(gradients)
	require.NoError(t, err)
	require.Equal(t, []string{"the score modifier has steps: the derivative of <, floor, sign is taken for 0"}, back.Notes)
	require.Contains(t, back.String(), "taken for 0")
	require.NoError(t, op.Close())
	again, _ := modifiedCall()
	require.Equal(t, map[attention.Config]int{cfg: 1}[again], 1)
}
