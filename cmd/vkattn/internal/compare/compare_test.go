package compare

import (
	"bytes"
	"compress/gzip"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/results"
)

// row is a row of a problem of s rows and keys.
func row(s int, samples ...float64) *bench.Row {
	r := &bench.Row{Device: "gpu", Tier: "coopmat2", Call: fields.Call{B: 1, Hq: 2, Hkv: 2, Sq: s, Sk: s, D: 64, Dv: 64, DType: attention.F16}, Status: bench.OK, Samples: samples}
	r.Ms = bench.Summarize(samples)
	return r
}

// runs are the times of a kernel of 30 us on a GPU: a narrow peak with a tail of slow runs.
func runs(r *rand.Rand, n int, factor float64) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = 0.030 * factor * (1 + 0.008*r.NormFloat64() + 0.02*max(0, r.ExpFloat64()-2))
	}
	return out
}

// A slowdown of 3 % of a kernel of 30 us is found, and two runs of the same binary are the
// same, in 19 of 20 tries and more. Between runs the clock differs by some tenths of a
// percent.
func TestAPlantedSlowdownIsFound(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const tries = 400
	verdicts := map[float64]map[Verdict]int{}
	for _, factor := range []float64{1, 1.03, 1 / 1.03, 1.1} {
		verdicts[factor] = map[Verdict]int{}
		for range tries {
			drift := 1 + 0.002*r.NormFloat64()
			report := Runs([]*bench.Row{row(1, runs(r, bench.DefaultRepeats, 1)...)}, []*bench.Row{row(1, runs(r, bench.DefaultRepeats, factor*drift)...)}, Options{})
			verdicts[factor][report.Pairs[0].Verdict]++
		}
	}
	t.Log(verdicts)
	require.GreaterOrEqual(t, verdicts[1][Same], tries*19/20)
	require.Zero(t, verdicts[1][Slower]+verdicts[1][Faster])
	require.GreaterOrEqual(t, verdicts[1.03][Slower], tries*19/20)
	require.Zero(t, verdicts[1.03][Same]+verdicts[1.03][Faster])
	require.GreaterOrEqual(t, verdicts[1/1.03][Faster], tries*19/20)
	require.Equal(t, tries, verdicts[1.1][Slower])
}

// The interval of the ratio holds the true one at least as often as it says.
func TestTheIntervalHoldsTheRatio(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const tries = 1000
	held := 0
	for range tries {
		p := Runs([]*bench.Row{row(1, runs(r, 20, 1)...)}, []*bench.Row{row(1, runs(r, 25, 1.5)...)}, Options{}).Pairs[0]
		if p.Low <= 1.5 && 1.5 <= p.High {
			held++
		}
	}
	require.GreaterOrEqual(t, held, tries*95/100)
}

func TestNoisyAndFewRunsAreAmbiguous(t *testing.T) {
	few := Runs([]*bench.Row{row(1, 1, 1, 1)}, []*bench.Row{row(1, 2, 2, 2)}, Options{}).Pairs[0]
	require.Equal(t, Ambiguous, few.Verdict, "three runs have no interval")
	require.Zero(t, few.High)
	r := rand.New(rand.NewPCG(7, 8))
	noisy := func() []float64 {
		out := make([]float64, 30)
		for i := range out {
			out[i] = 1 + r.Float64()
		}
		return out
	}
	require.Equal(t, Ambiguous, Runs([]*bench.Row{row(1, noisy()...)}, []*bench.Row{row(1, noisy()...)}, Options{}).Pairs[0].Verdict)
}

// The distribution of samples whose intervals overlap stands below the table. If the verdict is same, it does so in a
// wide table alone.
func TestOverlappingSamplesAreShown(t *testing.T) {
	spread := func(by float64) (ms []float64) {
		for i := range 22 {
			ms = append(ms, 1+by*float64(i))
		}
		return ms
	}
	old := []*bench.Row{row(1, spread(0.1)...), row(2, steady(1)...), row(3, steady(1)...)}
	current := []*bench.Row{row(1, spread(0.05)...), row(2, steady(1)...), row(3, steady(2)...)}
	for _, c := range []struct {
		wide bool
		rows int
	}{{false, 2}, {true, 4}} {
		var out strings.Builder
		require.NoError(t, Runs(old, current, Options{Wide: c.wide}).Print(&out))
		_, below, _ := strings.Cut(out.String(), "ms at percentiles of the samples whose intervals overlap:")
		require.Regexp(t, `\| +2\.0500 \| +1\.5250 \|`, out.String(), "the medians")
		require.Regexp(t, `old +\| +1\.0000 \| +1\.5250 \| +2\.0500 \| +2\.5750 \| +3\.1000 \|`, below)
		require.Equal(t, c.rows, strings.Count(below, "| old ")+strings.Count(below, "| new "), out.String())
	}
}

func steady(ms float64) []float64 {
	out := make([]float64, 30)
	for i := range out {
		out[i] = ms * (1 + float64(i)*1e-6)
	}
	return out
}

func TestRowsMatchByKey(t *testing.T) {
	failed := row(5)
	failed.Status, failed.Reason = bench.Fail, "max error 3"
	refused := row(7)
	refused.Status = bench.Unsupported
	other := row(1, steady(9)...)
	other.OptionText = "pages of 16"
	peer := row(1, steady(3)...)
	peer.Tier, peer.Peer = "flash", true
	old := []*bench.Row{row(1, steady(1)...), row(2, steady(1)...), row(3, steady(1)...), row(5, steady(1)...), refused, peer, other}
	current := []*bench.Row{row(2, steady(1.2)...), row(1, steady(0.9)...), row(4, steady(1)...), failed, refused, peer, other}
	report := Runs(old, current, Options{})
	var verdicts []Verdict
	for _, p := range report.Pairs {
		verdicts = append(verdicts, p.Verdict)
	}
	require.Equal(t, []Verdict{Faster, Slower, Broken, Same, Same}, verdicts)
	require.Equal(t, "FAIL: max error 3", report.Pairs[2].Note)
	require.Len(t, report.OnlyOld, 1)
	require.Contains(t, report.OnlyOld[0], "/sq=3/")
	require.Len(t, report.OnlyNew, 1)
	require.Contains(t, report.OnlyNew[0], "/sq=4/")
	require.InDelta(t, 1.0194, report.GeoMean, 1e-3, "of the four rows with two times")
	require.Equal(t, 2, report.Regressions())
	require.Equal(t, 2, report.Unmatched())
	require.Equal(t, 1, Runs(old, current, Options{Subset: true}).Unmatched())
	require.Equal(t, 1, Runs(old, current, Options{FailOver: 0.3}).Regressions(), "the broken row stays one")
	require.Equal(t, Same, Runs(old, current, Options{Threshold: 0.25}).Pairs[1].Verdict)
	var out bytes.Buffer
	require.NoError(t, report.Print(&out))
	require.Contains(t, out.String(), "sk=5/d=64/dv=64/causal=none/dtype=f16: FAIL: max error 3\n")
	require.Contains(t, out.String(), "only in the new run: tier=coopmat2/")
	require.Contains(t, out.String(), "\n5 rows, 1 faster, 1 slower, 2 same, 1 broken, geometric mean of new / old 1.0194\n")
}

func TestRowsOfConcatenatedFilesAreOneSample(t *testing.T) {
	p := Runs([]*bench.Row{row(1, steady(1)...), row(1, steady(1)...)}, []*bench.Row{row(1, steady(1)...)}, Options{}).Pairs
	require.Len(t, p, 1)
	require.Equal(t, [2]int{60, 30}, p[0].Runs)
}

// A key that several rows have keeps its runs whatever row comes last, and is broken if one
// of them is wrong.
func TestOneOfSeveralRowsMayHaveNoSpeed(t *testing.T) {
	stopped, failed := row(1), row(1)
	stopped.Status = bench.Interrupted
	failed.Status, failed.Reason = bench.Fail, "max error 3"
	old := []*bench.Row{row(1, steady(1)...)}
	for _, x := range []struct {
		current []*bench.Row
		want    Verdict
	}{
		{[]*bench.Row{row(1, steady(1)...), row(1)}, Same},
		{[]*bench.Row{row(1, steady(1)...), stopped}, Same},
		{[]*bench.Row{row(1, steady(1)...), failed}, Broken},
		{[]*bench.Row{failed, row(1, steady(1)...)}, Broken},
	} {
		p := Runs(old, x.current, Options{}).Pairs
		require.Len(t, p, 1)
		require.Equal(t, x.want, p[0].Verdict)
		require.Equal(t, x.want == Broken, p[0].Regress)
	}
}

// A clock that is too coarse may give times of 0, which are no speed.
func TestTimesOfZeroAreNoSpeed(t *testing.T) {
	zero, timed := row(1, 0, 0, 0, 0, 0, 0, 0), row(1, steady(1)...)
	report := Runs([]*bench.Row{zero}, []*bench.Row{timed}, Options{})
	require.Empty(t, report.Pairs, "the old row had no speed to lose")
	require.Len(t, report.OnlyNew, 1)
	require.Equal(t, Broken, Runs([]*bench.Row{timed}, []*bench.Row{zero}, Options{}).Pairs[0].Verdict)
	report = Runs([]*bench.Row{zero}, []*bench.Row{zero}, Options{})
	require.Empty(t, report.Pairs)
	require.Zero(t, report.Unmatched())
}

func TestReadTakesWhatBenchPrints(t *testing.T) {
	rows := []*bench.Row{row(1, steady(1)...), row(2, steady(2)...)}
	rows[1].Status, rows[1].Checked.MaxError = bench.Fail, 3
	for _, format := range []bench.Format{"json", "jsonl"} {
		var out, packed bytes.Buffer
		p := bench.NewPrinter(format, &out, &bench.RunInfo{Schema: bench.SchemaVersion})
		for _, r := range rows {
			require.NoError(t, p.Row(r))
		}
		require.NoError(t, p.Close(&bench.RunInfo{}))
		z := gzip.NewWriter(&packed)
		_, err := z.Write(out.Bytes())
		require.NoError(t, err)
		require.NoError(t, z.Close())
		for _, b := range []bytes.Buffer{out, packed} {
			got, _, err := results.Read(&b)
			require.NoError(t, err)
			f := results.File{Rows: got}
			require.Equal(t, rows, f.Bench())
		}
	}
	for _, bad := range []string{"", "x", "{}", "[1]", `{"rows": []}`, `{"rows": [{"batch": "two"}]}`, "\x1f\x8bx", "| md |"} {
		_, _, err := results.Read(strings.NewReader(bad))
		require.Error(t, err, bad)
	}
}
