package report

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/results"
)

func sample() results.File {
	row := func(tier string, length int) results.Row {
		return results.Row{Row: bench.Row{Device: "GPU <1>", Tier: tier, Call: fields.Call{B: 1, Hq: 8, Hkv: 8, Sq: length, Sk: length, D: 64, Dv: 64},
			Status: bench.OK, TFLOPs: 100, Ms: bench.Summary{Median: 0.5, Min: 0.4, Max: 0.6}, Versus: map[string]float64{"flash": 1.25}},
			Run: bench.RunInfo{Program: "vkattn", Version: "v1", Device: bench.Device{Name: "GPU <1>", Driver: "NVIDIA"},
				Environment: bench.Environment{Commit: "abc", Modified: true, Go: "go1.26"}}}
	}
	failed := row("scalar", 1024)
	failed.Row = bench.Row{Device: "GPU <1>", Tier: "scalar", Status: bench.Fail, Reason: "<script>alert(1)</script>"}
	unsteady := row("coopmat2", 2048)
	unsteady.Unsteady = "power cap in 50 % of the readings"
	return results.File{Path: "a/b/rows.jsonl", Rows: []results.Row{row("coopmat2", 1024), unsteady, failed}}
}

func TestThePageIsSelfContained(t *testing.T) {
	var out bytes.Buffer
	second := sample()
	second.Path = "a/c/rows.jsonl"
	require.NoError(t, Write(&out, []results.File{sample(), second}, Options{Title: "A & B"}))
	page := out.String()
	for _, want := range []string{"<title>A &amp; B</title>", "GPU &lt;1&gt;", "abc with changes", "go1.26", "<svg", "currentColor",
		"power cap in 50 %", `data-sort="0.5"`, "× flash", "1.250", ">b/rows.jsonl<", "prefers-color-scheme: dark", `name="viewport"`} {
		require.True(t, strings.Contains(page, want), want)
	}
	require.Less(t, strings.LastIndex(page, "<svg"), strings.LastIndex(page, "<details"))
	require.Less(t, strings.Index(page, "<svg"), strings.Index(page, "<details"), "pictures come first")
	require.Equal(t, 2, strings.Count(page, "1 of 3 rows were measured while the GPU was throttled"))
	for _, never := range []string{"<script>alert", "<link", " src=", "@import", "url("} {
		require.False(t, strings.Contains(page, never), never)
	}
	for _, namespace := range []string{"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"} {
		page = strings.ReplaceAll(page, namespace, "")
	}
	require.False(t, strings.Contains(page, "://"), "the page needs no network")
}

// The ceilings of one file are those of the pictures of all.
func TestCeilingsOfAnotherFile(t *testing.T) {
	limits := results.File{Path: "a/ceilings.jsonl", Rows: []results.Row{
		{Row: bench.Row{Device: "GPU <1>", Ceiling: bench.CeilingCopy, Status: bench.OK, TBs: 4}},
		{Row: bench.Row{Device: "GPU <1>", Ceiling: bench.CeilingProducts, Status: bench.OK, TFLOPs: 600}}}}
	page := func(files ...results.File) string {
		var out bytes.Buffer
		require.NoError(t, Write(&out, files, Options{}))
		return out.String()
	}
	require.NotContains(t, page(sample()), "Roofline")
	text := page(sample(), limits)
	require.Contains(t, text, "Roofline")
	require.Contains(t, text, "coopmat peak")
	require.Contains(t, text, ">products<")
	cells := map[string]string{}
	list, _ := columns(append(sample().Rows, limits.Rows...))
	for _, c := range list {
		cells[c.Name] = c.cell(&limits.Rows[0]).Text
	}
	require.Equal(t, "copy", cells["implementation"])
	require.Equal(t, "4.000", cells["TB/s"])
	for _, empty := range []string{"B", "Sq", "causal", "dtype"} {
		require.Empty(t, cells[empty], empty)
	}
}

// An error that is not a number is no error that is not known.
func TestErrorsThatAreNotNumbersAreShown(t *testing.T) {
	rows := sample().Rows
	rows[2].Checked = bench.Checked{Rows: 7, MaxError: bench.Number(math.NaN())}
	rows[1].Checked = bench.Checked{Rows: 7, MaxError: bench.Number(math.Inf(1))}
	list, _ := columns(rows)
	for _, c := range list {
		if c.Name == "max error" {
			require.Equal(t, "NaN", c.cell(&rows[2]).Text)
			require.Equal(t, "+Inf", c.cell(&rows[1]).Text)
			require.Empty(t, c.cell(&rows[0]).Text, "not checked")
			return
		}
	}
	t.Fatal("no column of errors")
}

func TestColumnsWithoutValuesAreLeftOut(t *testing.T) {
	f := sample()
	names := func(rows []results.Row) (out []string) {
		list, _ := columns(rows)
		for _, c := range list {
			out = append(out, c.Name)
		}
		return out
	}
	all := names(f.Rows)
	require.Contains(t, all, "note")
	require.Contains(t, all, "clocks")
	require.NotContains(t, all, "TB/s")
	require.NotContains(t, all, "device", "all rows have the same")
	require.NotContains(t, names(f.Rows[:1]), "note")

	// What all rows have stands above the table, and the speed right behind the problem.
	_, same := columns(f.Rows[:2])
	require.Equal(t, "device GPU <1>, B 1, Hq 8, Hkv 8, D 64, Dv 64, causal none, dtype f16, pass fwd", same)
	require.Equal(t, []string{"Sq", "Sk", "implementation", "ms median", "TFLOP/s"}, names(f.Rows[:2])[:5])
}

// Rows of pictures are full, and differ by one picture at most.
func TestPicturesFillTheirRows(t *testing.T) {
	for n, want := range map[int][]int{0: nil, 1: {6}, 2: {3, 3}, 3: {2, 2, 2}, 4: {3, 3, 3, 3}, 5: {2, 2, 2, 3, 3}, 7: {2, 2, 2, 3, 3, 3, 3}} {
		require.Equal(t, want, widths(n))
	}
}
