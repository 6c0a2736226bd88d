package bench

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

func TestManyRowsWithOneNoteHaveOneLine(t *testing.T) {
	noted := func(list ...string) string {
		var rows []*Row
		for i, note := range list {
			r := smallProblem(attention.F16).row("device")
			r.Tier, r.Status, r.Unsteady = "coopmat2", OK, note
			if i%2 == 1 {
				r.Ablation = "softmax"
			}
			rows = append(rows, r)
		}
		return notes(rows)
	}
	require.Empty(t, noted("", ""))
	few := noted("", "slow", "slow", "slow")
	require.Equal(t, 4, bytes.Count([]byte(few), []byte("\n")), few)
	require.Contains(t, few, "coopmat2 without softmax, f16")
	require.Equal(t, "\n4 rows (coopmat2, coopmat2 without softmax): slow\n", noted("slow", "slow", "", "slow", "slow"))
	require.Contains(t, noted("slow", "slow", "slow", "slow", "idle"), "coopmat2, f16")
}
