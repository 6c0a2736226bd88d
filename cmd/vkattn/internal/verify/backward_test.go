package verify

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/cases"
	"vkattn/internal/hostmem"
)

func TestRightGradientsPass(t *testing.T) {
	for _, dtype := range attention.DTypes() {
		for _, conformance := range []bool{false, true} {
			c := problemOf(attention.BottomRight)
			rows := run(t, &Verifier{Backward: true, Conformance: conformance, Repeat: 2, List: []bench.Spec{cpu}}, c, dtype)
			require.Len(t, rows, 1)
			r := rows[0]
			require.Equal(t, bench.OK, r.Status, "%v: %s", dtype, r.Note())
			require.Equal(t, 2, r.Runs)
			require.Equal(t, bench.PassBackward, r.Pass)
			require.Equal(t, r.Of, r.Rows)
			require.Equal(t, 2*2*230, r.Float64.Keys)
			require.Len(t, r.Gradients, 3)
			require.Less(t, r.limitUsed(), 1.0)
		}
	}
}

// A byte of any gradient that is wrong, in the first run, in a later one or with spoiled
// memory, is found and named.
func TestWrongGradientsFail(t *testing.T) {
	c := problemOf(attention.CausalNone)
	for _, x := range []struct {
		conformance bool
		at          int // the run to change
		piece       int // from the last: 1 is dV, 2 is dK, 3 is dQ
		says        string
	}{
		{false, 0, 3, "dQ versus float64: "},
		{false, 0, 2, "dK versus float64: "},
		{false, 0, 1, "dV versus float64: "},
		{false, 1, 1, "run 2 gives other bits: 1 elements differ: dV"},
		{true, 2, 3, "spoiled memory changes bits: 1 elements differ: dQ"},
	} {
		n := 0
		v := &Verifier{Backward: true, Conformance: x.conformance, Repeat: 2, List: []bench.Spec{cpu}}
		v.Touch = func(_ string, _ *cases.Problem, after [][]byte) {
			if n == x.at {
				image := after[len(after)-x.piece]
				image[len(image)/2|1] ^= 0x48
			}
			n++
		}
		r := run(t, v, c, attention.F16)[0]
		require.Equal(t, bench.Fail, r.Status, x.says)
		require.Contains(t, r.Note(), x.says)
	}
}

func TestAWriteBehindAGradientFails(t *testing.T) {
	c := problemOf(attention.CausalNone)
	c.Layout = cases.Odd
	v := &Verifier{Backward: true, Conformance: true, List: []bench.Spec{cpu}}
	v.Touch = func(_ string, _ *cases.Problem, after [][]byte) { after[len(after)-1][0] ^= 1 }
	r := run(t, v, c, attention.F16)[0]
	require.Equal(t, bench.Fail, r.Status)
	require.Contains(t, r.Note(), "of the memory of dV was overwritten")
}

func TestGradientsThatDoNotFitAreARow(t *testing.T) {
	t.Setenv(hostmem.Variable, "1MiB")
	rows, err := (&Verifier{Backward: true, List: []bench.Spec{cpu}}).Problem(context.Background(), problemOf(attention.CausalNone), attention.F16)
	require.NoError(t, err)
	require.Equal(t, bench.OOM, rows[0].Status)
	require.Regexp(t, `needs [\d.]+ [KMGT]iB of host memory`, rows[0].Note())
}

func TestTheTableOfGradients(t *testing.T) {
	var out strings.Builder
	v := &Verifier{Backward: true, List: []bench.Spec{cpu}}
	for _, wide := range []bool{false, true} {
		p := NewPrinter("md", &out, &bench.RunInfo{Wide: wide}, false, v.Unfinished(problemOf(attention.CausalNone), attention.F16))
		require.NoError(t, p.Row(run(t, v, problemOf(attention.CausalNone), attention.F16)[0]))
		require.NoError(t, p.Close(nil))
	}
	require.Regexp(t, `\n\| implementation \| dQ error \| dK error \| dV error \| error/limit \| verdict +\|`, out.String())
	require.Regexp(t, `\| +rows +\| +keys \| dQ error \|.*\| error/limit \| +NMSE \| runs \| verdict +\|`, out.String())
	require.Regexp(t, `\| cpu .* all \| +920 \|.*\| ok +\|`, out.String())
}
