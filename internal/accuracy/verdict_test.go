package accuracy_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/problem"
)

// A caller may leave out LSE; what is wrong with O has to reach the reader all the
// same, and nothing about an LSE that nobody asked for.
func TestVerdictWithoutLSESaysWhatIsWrongWithO(t *testing.T) {
	cfg := attention.Config{HeadDim: 32}
	s := attention.Shape{B: 2, Hq: 2, Sq: 70, Sk: 40}
	a := call(cfg, s)
	a.LSE = attention.Tensor{}
	ref, _, err := attention.Reference(cfg, a)
	require.NoError(t, err)
	for _, wrong := range []bool{false, true} {
		o := round(cfg.DType, ref)
		if wrong {
			o[len(o)-1]++
		}
		cfg.DType.Encode(a.O.Host, o)
		v, err := accuracy.Verify(problem.Config(cfg), a, accuracy.Options{Rows: -1})
		require.NoError(t, err)
		require.Len(t, v.Tensors, 1)
		require.Equal(t, !wrong, v.Pass())
		require.NotContains(t, v.String(), "LSE")
		if wrong {
			require.Contains(t, v.String(), "FAIL: O: ")
			require.Contains(t, v.String(), "the worst at batch 1, head 1, row 69")
		}
	}
}

func TestZeroAndPartialVerdictsHaveText(t *testing.T) {
	good := accuracy.Judge(accuracy.Forward(attention.F16), 2, []float32{1, 2}, []float64{1, 2}, []float32{1, 2})
	bad := accuracy.Judge(accuracy.Forward(attention.F16), 2, []float32{1, 5}, []float64{1, 2}, []float32{1, 2})
	require.True(t, good.Pass())
	require.False(t, bad.Pass())
	verdict := func(o, lse accuracy.Report) *accuracy.Verdict {
		return &accuracy.Verdict{Tensors: []accuracy.Tensor{{Name: "O", Report: o}, {Name: "LSE", Report: lse}}}
	}
	for name, c := range map[string]struct {
		v    *accuracy.Verdict
		says string
	}{
		"zero":           {&accuracy.Verdict{}, "FAIL: nothing was judged"},
		"not judged":     {&accuracy.Verdict{Tensors: []accuracy.Tensor{{Name: "dQ", Unjudged: "it is far away"}}}, "FAIL: nothing was judged: dQ not judged: it is far away"},
		"both":           {verdict(good, good), "ok: "},
		"wrong O":        {verdict(bad, good), "FAIL: O: max error"},
		"LSE not judged": {verdict(good, accuracy.Report{}), "FAIL: LSE: nothing was judged"},
		"wrong LSE":      {verdict(good, bad), "FAIL: LSE: max error"},
		"failed blocks":  {verdict(accuracy.Report{Failed: 1}, good), "FAIL: O: nothing was judged"},
	} {
		require.Contains(t, c.v.String(), c.says, name)
		require.Equal(t, c.says[:2] == "ok", c.v.Pass(), name)
	}
	require.Equal(t, []string{"nothing was judged"}, accuracy.Report{}.Reasons())
	require.Len(t, accuracy.Stats{}.Reasons(), 4)
	require.Zero(t, accuracy.Stats{}.Share())
	require.True(t, math.IsInf(accuracy.Stats{Max: 1}.Share(), 1), "an error where none is allowed")
}

func TestJudgeRefusesSizesThatDoNotMatch(t *testing.T) {
	three := []float32{1, 2, 3}
	for name, r := range map[string]accuracy.Report{
		"no width":     accuracy.Judge(accuracy.Limits{}, 0, three, []float64{1, 2, 3}, three),
		"partial row":  accuracy.Judge(accuracy.Limits{}, 2, three, []float64{1, 2, 3}, three),
		"short x":      accuracy.Judge(accuracy.Limits{}, 1, three[:2], []float64{1, 2, 3}, three),
		"short low":    accuracy.Judge(accuracy.Limits{}, 1, three, []float64{1, 2, 3}, three[:1]),
		"short noise":  accuracy.Judge(accuracy.Limits{Noise: []float64{0}}, 1, three, []float64{1, 2, 3}, three),
		"nothing at x": accuracy.Judge(accuracy.Limits{}, 1, nil, []float64{1, 2, 3}, nil),
	} {
		require.False(t, r.Pass(), name)
		require.Contains(t, r.Reasons()[0], "ref", name)
		require.Len(t, r.Reasons(), 1, name)
	}
	require.True(t, accuracy.Judge(accuracy.Forward(attention.F16), 8, nil, nil, nil).Pass(), "no rows, nothing wrong")
}

func TestEstimateOfTooFewElementsIsThatOfWholeRows(t *testing.T) {
	l := accuracy.Forward(attention.F16)
	ref, low := []float64{1, 2, 3, 4}, []float32{1, 2, 3, 5}
	wantMax, wantMean := accuracy.NewEstimate(l, 2, []int{9}, ref, low, 100).Block(9, 9, 1)
	for name, e := range map[string]*accuracy.Estimate{
		"short low": accuracy.NewEstimate(l, 2, []int{9, 9}, ref, low[:3], 100),
		"short ref": accuracy.NewEstimate(l, 2, []int{9, 9}, ref[:2], low, 100),
	} {
		most, mean := e.Block(9, 9, 1)
		require.Equal(t, [2]float64{wantMax, wantMean}, [2]float64{most, mean}, name)
	}
	for name, e := range map[string]*accuracy.Estimate{
		"zero": {}, "no width": accuracy.NewEstimate(l, 0, []int{9}, ref, low, 100), "nothing": accuracy.NewEstimate(l, 2, []int{-1}, nil, nil, 0),
	} {
		require.NotPanics(t, func() { e.Block(-1, 1<<40, math.Inf(1)); e.Whole(math.NaN()) }, name)
	}
}
