package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/monitor"
)

func TestRatios(t *testing.T) {
	type timed struct {
		by string
		ms float64
	}
	run := func(d int, causal attention.Causal, length int, times ...timed) (rows []*Row) {
		p := Problem{Shape: attention.Shape{B: 1, Hq: 8, Hkv: 8, Sq: length, Sk: length}, Config: attention.Config{HeadDim: d, HeadDimV: d, Causal: causal}}
		for i, x := range times {
			r := timedRow(p, Spec{}, x.ms)
			r.Tier, r.Peer = x.by, i > 0
			if x.ms == 0 {
				r.Status = Unsupported
			}
			rows = append(rows, r)
		}
		compare(rows)
		return rows
	}
	first := run(64, attention.CausalNone, 4096, timed{"coopmat2", 1}, timed{"flash", 0.5}, timed{"cudnn", 2})
	first[0].Unsteady = "power cap in 50 % of the readings"
	var rows []*Row
	for _, one := range [][]*Row{
		first,
		run(64, attention.TopLeft, 1024, timed{"coopmat2", 1}, timed{"flash", 2}, timed{"cudnn", 0}),
		run(128, attention.TopLeft, 1024, timed{"coopmat2", 1}, timed{"flash", 1}, timed{"cudnn", 1}),
		run(64, attention.TopLeft, 1024, timed{"cubin", 0}, timed{"flash", 1}),
		run(96, attention.TopLeft, 1024, timed{"scalar", 1}),
	} {
		rows = append(rows, one...)
	}
	rows[0].GPU, rows[3].GPU = &monitor.Record{}, &monitor.Record{}
	table := func(series []string, runs ...RatioRun) string {
		text, err := Ratios(runs, series)
		require.NoError(t, err)
		return text
	}
	require.Equal(t, ""+
		"run a, device Example GPU, pass fwd, dtype f16\n\n"+
		"| tier     | head dim | lengths      | cells | unsteady | x flash, mean      | x cudnn, mean |\n"+
		"|:-------- | --------:|:------------ | -----:| --------:|:------------------ |:------------- |\n"+
		"| coopmat2 |       64 | 1024 to 4096 |     2 |        1 | 0.50 to 2.00, 1.00 | 2.00 (1 cell) |\n"+
		"| coopmat2 |      128 | 1024         |     1 |        ? | 1.00               | 1.00          |", table(nil, RatioRun{"a", rows}))
	other := run(64, attention.CausalNone, 256, timed{"cuda", 1}, timed{"sage", 3})
	other[0].Kernel, other[0].Pass, other[0].Device = "fa3", PassBackward, "Other GPU"
	require.Equal(t, ""+
		"dtype f16\nD: head dim\nproblem:\n"+
		"- [1] run a, device Example GPU, pass fwd, lengths 1024 to 4096\n"+
		"- [2] run a, device Example GPU, pass fwd, lengths 1024\n"+
		"- [3] run b, device Other GPU, pass bwd, lengths 256\n\n"+
		"| problem | tier     |   D | cells | unsteady | x flash, mean      | x cudnn, mean | x sage, mean |\n"+
		"|:------- |:-------- | ---:| -----:| --------:|:------------------ |:------------- |:------------ |\n"+
		"| [1]     | coopmat2 |  64 |     2 |        1 | 0.50 to 2.00, 1.00 | 2.00 (1 cell) | -            |\n"+
		"| [2]     | coopmat2 | 128 |     1 |        ? | 1.00               | 1.00          | -            |\n"+
		"| [3]     | cuda fa3 |  64 |     1 |        ? | -                  | -             | 3.00         |", table(nil, RatioRun{"a", rows}, RatioRun{"b", other}))
	require.NotContains(t, table([]string{"cuda fa3"}, RatioRun{"a", rows}, RatioRun{"b", other}), "coopmat2")
	_, err := Ratios([]RatioRun{{"a", rows}}, []string{"cuda fa9"})
	require.EqualError(t, err, "the rows with a ratio to a peer are of coopmat2")
	_, err = Ratios([]RatioRun{{"a", rows[len(rows)-1:]}}, nil)
	require.EqualError(t, err, "no row has a ratio to a peer")
}
