package bench

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

func TestManyRowsWithOneNoteHaveOneLine(t *testing.T) {
	noted := func(notes ...string) string {
		var out bytes.Buffer
		p := &mdPrinter{w: &out}
		for i, note := range notes {
			r := smallProblem(attention.F16).row("device")
			r.Tier, r.Status, r.Unsteady = "coopmat2", OK, note
			if i%2 == 1 {
				r.Ablation = "softmax"
			}
			p.rows = append(p.rows, r)
		}
		require.NoError(t, p.notes())
		return out.String()
	}
	require.Empty(t, noted("", ""))
	few := noted("", "slow", "slow", "slow")
	require.Equal(t, 4, bytes.Count([]byte(few), []byte("\n")), few)
	require.Contains(t, few, "coopmat2 without softmax, f16")
	require.Equal(t, "\n4 rows (coopmat2, coopmat2 without softmax): slow\n", noted("slow", "slow", "", "slow", "slow"))
	require.Contains(t, noted("slow", "slow", "slow", "slow", "idle"), "coopmat2, f16")
}
