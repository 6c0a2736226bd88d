package attention_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/problem"
	"vkattn/internal/testdevice"
)

func TestAblationsHaveNames(t *testing.T) {
	for _, a := range problem.Ablations() {
		got, err := problem.ParseAblation(a.String())
		require.NoError(t, err)
		require.Equal(t, a, got)
	}
	_, err := problem.ParseAblation("everything")
	require.ErrorContains(t, err, "none, softmax, barrier, load")
	require.False(t, problem.Ablation(9).Valid())
}

func TestVariantsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for v := range problem.Variants + 1 {
		name := problem.VariantName(v)
		require.NotEmpty(t, name)
		require.False(t, seen[name])
		seen[name] = true
	}
	require.Empty(t, problem.VariantName(-1))
	require.Empty(t, problem.VariantName(problem.Variants+1))
}

func TestNewExperimentRefuses(t *testing.T) {
	cfg := attention.Config{HeadDim: 16}
	_, err := attention.NewExperiment(nil, cfg, attention.Experiment{})
	require.NoError(t, err)
	for _, e := range []attention.Experiment{{Variant: 1}, {Ablate: problem.AblateSoftmax}} {
		_, err = attention.NewExperiment(nil, cfg, e)
		require.ErrorIs(t, err, attention.ErrUnsupported)
	}
	var shape *attention.ShapeError
	for _, e := range []attention.Experiment{{Variant: 9}, {Variant: -1}, {Ablate: 200}} {
		_, err = attention.NewExperiment(nil, cfg, e)
		require.ErrorAs(t, err, &shape)
	}
}

// New knows no shape: its error names none.
func TestNewRefusesWithoutAShape(t *testing.T) {
	dev := testdevice.Open(t)
	_, err := attention.NewExperiment(attention.On(dev), attention.Config{HeadDim: 64, Tier: attention.TierScalar}, attention.Experiment{Variant: 1})
	require.ErrorIs(t, err, attention.ErrUnsupported)
	require.ErrorContains(t, err, "attention: unsupported: f16 d64 scalar on "+dev.Info().Name)
}
