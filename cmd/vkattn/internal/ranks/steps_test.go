package ranks

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention/parallel"
)

func TestSteps(t *testing.T) {
	var a, b stepTimes
	for i := range 5 {
		took := time.Duration(i) * time.Microsecond
		a.add(parallel.DecodeStep{Name: "check", Took: took})
		a.add(parallel.DecodeStep{Name: "wait", Took: 2 * took, Polls: 10 * i})
		b.add(parallel.DecodeStep{Name: "wait", Took: 4 * took, Polls: 7})
		b.add(parallel.DecodeStep{Name: "check", Took: 3 * took})
		b.add(parallel.DecodeStep{Name: "other", Took: took})
	}
	require.Equal(t, []Step{{"check", []float64{2, 6}, nil}, {"wait", []float64{4, 8}, []float64{30, 7}}}, stepsOf([][]Step{a.medians(), b.medians()}))
	require.Nil(t, stepsOf([][]Step{nil, nil}))
}

// The name of a mode is read back.
func TestModeNames(t *testing.T) {
	for _, name := range []string{"ring", "decode"} {
		m, err := ParseMode(name)
		require.NoError(t, err)
		require.Equal(t, name, m.String())
		require.Equal(t, name == "decode", m.Decode)
	}
	_, err := ParseMode("decode-late")
	require.ErrorContains(t, err, "or decode")
}
