package bench

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

func TestFamiliesAreRowsOfTheirOwn(t *testing.T) {
	tiers := []attention.Tier{attention.TierCUDA, attention.TierScalar}
	require.Len(t, Specs(tiers, nil, nil, nil, nil, nil), 2, "the best kernel is one row")
	list := Specs(tiers, []string{"fa2", "fa3"}, nil, nil, nil, nil)
	require.Len(t, list, 3)
	require.Equal(t, Spec{Tier: attention.TierScalar}, list[2])
	require.Equal(t, []string{"cuda fa2", "cuda fa3"}, cudaBaselines(list))
	require.Equal(t, []string{"cuda"}, cudaBaselines(Specs(tiers, nil, nil, nil, nil, nil)))
	require.Empty(t, cudaBaselines(Specs(tiers, nil, []int{1}, nil, nil, nil)), "a step of the ladder is no baseline")
}

// Rows are compared with kernels of tier cuda as they are with peers.
func TestKernelsOfTierCUDAAreBaselines(t *testing.T) {
	row := func(tier, kernel string, peer bool, ms float64) *Row {
		r := smallProblem(attention.F16).row("gpu")
		r.Tier, r.Kernel, r.Peer, r.Status, r.Ms = tier, kernel, peer, OK, Summarize([]float64{ms})
		return r
	}
	rows := []*Row{row("coopmat2", "", false, 2), row("cuda", "fa2", false, 1), row("cuda", "fa3", false, 0.5), row("flash", "", true, 4)}
	rows = append(rows, row("cuda", "ref", false, 1))
	rows[4].Status = Fail
	compare(rows)
	require.Equal(t, map[string]float64{"cuda fa2": 0.5, "cuda fa3": 0.25, "flash": 2}, rows[0].Versus)
	require.Equal(t, map[string]float64{"cuda fa2": 1, "cuda fa3": 0.5, "flash": 4}, rows[1].Versus)
	require.Nil(t, rows[4].Versus, "what is wrong is compared with nothing")

	var lines []string
	for _, c := range Compare(rows) {
		require.NotEqual(t, c.Who, c.Peer)
		lines = append(lines, c.Who+" / "+c.Peer)
	}
	require.Equal(t, []string{"coopmat2 / cuda fa2", "coopmat2 / cuda fa3", "coopmat2 / flash", "cuda fa2 / cuda fa3", "cuda fa2 / flash",
		"cuda fa3 / cuda fa2", "cuda fa3 / flash"}, lines)

	info := &RunInfo{Baselines: []string{"cuda fa2", "cuda fa3"}}
	for _, f := range []Format{"md", "csv"} {
		var out bytes.Buffer
		p := NewPrinter(f, &out, info)
		for _, r := range rows[:3] {
			require.NoError(t, p.Row(r))
		}
		require.NoError(t, p.Close(info))
		require.Contains(t, out.String(), "x cuda fa3")
		require.Contains(t, out.String(), "cuda fa2")
	}
}
