package bench

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/internal/testdevice"
)

func TestSuiteCeilings(t *testing.T) {
	names := func(dtypes ...attention.DType) (out []string) {
		s, err := ParseSuite("ceilings")
		require.NoError(t, err)
		require.True(t, s.IsCeilings())
		list := s.Problems(s.Types(dtypes))
		for _, p := range list {
			out = append(out, p.String())
		}
		return out
	}
	require.Equal(t, []string{"copy", "read", "products f16", "products bf16", "fma f32", "launch", "dispatch", "barrier"}, names())
	require.Equal(t, []string{"copy", "read", "products bf16", "launch", "dispatch", "barrier"}, names(attention.BF16))
	require.Equal(t, []string{"copy", "read", "products f16", "launch", "dispatch", "barrier", "fma f32"}, names(attention.F16, attention.F32))
	for _, s := range Suites {
		require.Equal(t, s.Name == "ceilings", s.IsCeilings(), s.Name)
	}
}

func TestPicturesHaveTheCeilingsOfTheirProblems(t *testing.T) {
	list := []Problem{smallProblem(attention.F16), smallProblem(attention.F32), smallProblem(attention.F32)}
	fma := productsOf(attention.F32)
	// Without a device no storage type has cooperative matrices.
	require.Equal(t, []Problem{{Ceiling: CeilingCopy}, fma}, PlotCeilings(nil, list, false, false))
	require.Equal(t, []Problem{fma}, PlotCeilings(nil, list, true, false))
	require.Empty(t, PlotCeilings(nil, list, true, true))
	require.Empty(t, PlotCeilings(nil, append(list, Problem{Ceiling: CeilingCopy}, fma), false, false), "they are among the problems")
	require.Empty(t, PlotCeilings(nil, []Problem{{Ceiling: CeilingBarrier}}, false, false), "there is no picture")
}

// Every ceiling of a device is measured or has the reason why not, with the bookkeeping of
// other rows.
func TestCeilingsOfADevice(t *testing.T) {
	dev := testdevice.Open(t)
	done := 0
	b := &Bench{Device: attention.On(dev), Label: "gpu", CPU: "cpu", Timing: Timing{Repeats: 6, Warmup: time.Millisecond}, Specs: []Spec{{}, {}}, Done: func() { done++ }}
	list := ceilings()
	require.Equal(t, len(list), b.Rows(list), "specs and baselines have no rows of ceilings")
	for _, p := range list {
		rows := measured(t, b, p)
		require.Len(t, rows, 1)
		r := rows[0]
		require.Equal(t, "gpu", r.Device)
		require.Equal(t, p.String(), r.Problem().String())
		if r.Status == Unsupported {
			require.NotEmpty(t, r.Reason)
			require.False(t, r.Ceiling.moves())
			continue
		}
		require.Equal(t, OK, r.Status, r.Reason)
		require.Len(t, r.Samples, 6)
		require.Positive(t, r.Ms.Median)
		require.Positive(t, r.Ms.High, "six samples have an interval")
		require.Positive(t, r.Memory)
		require.Equal(t, r.Ceiling.typed(), r.TFLOPs > 0)
		require.Equal(t, r.Ceiling.typed(), r.Flops > 0)
		require.Equal(t, r.Ceiling.moves(), r.TBs > 0)
		require.Equal(t, r.Ceiling.moves(), r.Bytes > 0)
		require.Len(t, r.SPIRV, 1)
		if r.Ceiling == CeilingLaunch {
			require.Equal(t, "wall", r.Timer)
		}
		if r.Ceiling.typed() {
			require.InEpsilon(t, r.Flops/r.Ms.Median/1e9, r.TFLOPs, 1e-9)
		}
	}
	require.Equal(t, len(list), done)
}

func TestWithoutADeviceCeilingsAreUnsupported(t *testing.T) {
	b := &Bench{CPU: "cpu"}
	for _, p := range ceilings() {
		rows := measured(t, b, p)
		require.Len(t, rows, 1)
		require.Equal(t, Unsupported, rows[0].Status, p.String())
	}
}

// ceilingRows are rows of a device as Group returns them.
func ceilingRows() []*Row {
	var rows []*Row
	for _, p := range ceilings() {
		r := p.row("Example GPU")
		r.Status, r.Timer = OK, "device"
		r.Ms = Summary{Min: 0.001, Mean: 0.002, Median: 0.002, Max: 0.004}
		r.Samples = []float64{0.001, 0.002, 0.004}
		switch {
		case p.Ceiling.moves():
			r.Bytes, r.TBs = 8_000_000, 4
		case p.Config.DType == attention.BF16:
			r.Status, r.Reason, r.Samples, r.Ms = Unsupported, "unsupported: no bf16", nil, Summary{}
		case p.Ceiling.typed():
			r.Flops, r.TFLOPs, r.Tile = 1.2e9, 600, "16x16x16 1x2x8 128 unroll 8"
		case p.Ceiling == CeilingBarrier:
			r.Ms.Median = 0.0035
		}
		rows = append(rows, r)
	}
	return rows
}

func TestCeilingsInTables(t *testing.T) {
	text := printed(t, "md", ceilingRows())
	for _, want := range []string{"device Example GPU\n", "| products f16  | 2.0000 |      - |   600.0 |      - | ok          | 16x16x16 1x2x8 128 unroll 8  |",
		"\nproducts bf16: unsupported: no bf16\n", "\nA barrier takes 1.5000 us: the median of barrier less that of dispatch.\n"} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "| x", "there is no table of attention")
	requireNarrow(t, text)

	attentionRow := &Row{Device: "Example GPU", Tier: "cpu", Call: fields.Call{B: 1, Hq: 1, Hkv: 1, Sq: 8, Sk: 8, D: 8, Dv: 8}, Status: OK, TFLOPs: 1, Ms: Summary{Min: 1, Median: 1, Max: 1}}
	text = printed(t, "md", append(ceilingRows(), attentionRow))
	require.Regexp(t, `\| barrier .*\|\n\ndevice Example GPU, B 1, H 1, S 8, D 8, causal none, dtype f16, pass fwd\n\n\| tier `, text, "the tables follow one another")
	require.NotContains(t, printed(t, "md", ceilingRows()[:7]), "A barrier takes", "one of the two rows is missing")
}

func TestCeilingsInMachineFormats(t *testing.T) {
	rows := ceilingRows()
	for i, line := range strings.Split(strings.TrimSpace(printed(t, "jsonl", rows)), "\n") {
		var back Row
		require.NoError(t, json.Unmarshal([]byte(line), &back))
		require.Equal(t, rows[i].Key(), back.Key())
		require.Equal(t, rows[i].Problem().String(), back.Problem().String())
		require.Equal(t, rows[i].Bytes, back.Bytes)
		require.Equal(t, rows[i].Flops, back.Flops)
	}
	lines := strings.Split(strings.TrimSpace(printed(t, "csv", rows)), "\n")
	column := func(line, name string) string {
		for i, n := range strings.Split(lines[0], ",") {
			if n == name {
				return strings.Split(line, ",")[i]
			}
		}
		t.Fatalf("no column %s", name)
		return ""
	}
	for _, name := range []string{"batch", "seqlen_q", "headdim", "causal", "dtype", "pass"} {
		require.Empty(t, column(lines[1], name), name)
	}
	require.Equal(t, "copy", column(lines[1], "ceiling"))
	require.Equal(t, "8000000", column(lines[1], "bytes"))
	require.Equal(t, "f16", column(lines[3], "dtype"))
	require.Equal(t, "600", column(lines[3], "tflops"))

	require.Contains(t, printed(t, "sql", rows), "'copy', 8000000, NULL, NULL);")
	gobench := printed(t, "gobench", rows)
	require.Equal(t, 1, strings.Count(gobench, "Unit GB/s better=higher\n"))
	require.Contains(t, gobench, "BenchmarkAttention/ceiling=copy 1 2000 ns/op 4000 GB/s\n")
	require.Contains(t, gobench, "BenchmarkAttention/ceiling=products/dtype=f16 1 2000 ns/op 600 TFLOP/s\n")
	require.Contains(t, gobench, "BenchmarkAttention/ceiling=launch 1 2000 ns/op\n")
}
