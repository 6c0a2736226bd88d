package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/compare"
	"vkattn/cmd/vkattn/internal/fields"
)

// savedRun writes a run of one row for each length, with its time in milliseconds.
func savedRun(t *testing.T, ms map[int]float64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run.json")
	f, err := os.Create(path)
	require.NoError(t, err)
	p := bench.NewPrinter("json", f, &bench.RunInfo{Schema: bench.SchemaVersion})
	for s := 1; s < 100; s++ {
		if ms[s] == 0 {
			continue
		}
		r := &bench.Row{Device: "gpu", Tier: "cpu", Call: fields.Call{B: 1, Hq: 2, Hkv: 2, Sq: s, Sk: s, D: 8, Dv: 8, DType: attention.F32}, Status: bench.OK}
		for i := range 30 {
			r.Samples = append(r.Samples, ms[s]*(1+float64(i)*1e-6))
		}
		r.Ms = bench.Summarize(r.Samples)
		require.NoError(t, p.Row(r))
	}
	require.NoError(t, p.Close(&bench.RunInfo{Schema: bench.SchemaVersion}))
	require.NoError(t, f.Close())
	return path
}

// A file that is none of a benchmark is one clear line, the name once.
func TestFilesThatAreNoBenchmark(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	good := "good.json"
	succeeds(t, tiny("--device", "cpu", "--save", good)...)
	require.NoError(t, os.Mkdir("folder", 0o755))
	for name, text := range map[string]string{"empty.json": "", "text.json": "hello", "none.json": "{}", "zip.json": "\x1f\x8b"} {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	}
	for name, says := range map[string]string{
		"missing.json": "missing.json: no such file or directory\n",
		"empty.json":   "empty.json: is empty\n",
		"text.json":    "text.json: row 1: not the JSON of a benchmark: ",
		"none.json":    "none.json: no rows of vkattn bench",
		"zip.json":     "zip.json: not a gzip file: ",
	} {
		refused(t, exitInput, "vkattn: "+says, "compare", name, good)
		refused(t, exitInput, "vkattn: "+says, "compare", good, name)
		refused(t, exitInput, "vkattn: "+says, "report", name, "-o", "page.html")
		refused(t, exitInput, "vkattn: --baseline: "+says, tiny("--device", "cpu", "--baseline", name)...)
	}
	refused(t, exitInput, "vkattn: folder: is a directory\n", "compare", "folder", good)
	refused(t, exitInput, "vkattn: --baseline: folder: is a directory\n", tiny("--device", "cpu", "--baseline", "folder")...)
	refused(t, exitInput, "vkattn: folder: no rows of vkattn bench", "report", "folder", "-o", "page.html")
	refused(t, exitInput, "vkattn: --q empty.json: not a .npy file: it is empty\n", "run", "--q", "empty.json", "--k", good, "--v", good, "--o", "o.npy")
}

func TestCompare(t *testing.T) {
	old := savedRun(t, map[int]float64{1: 1, 2: 1, 3: 1})
	stdout, stderr := succeeds(t, "compare", old, old)
	require.Empty(t, stderr)
	require.Contains(t, stdout, "3 rows, 3 same, geometric mean of new / old 1.0000\n")

	slower := savedRun(t, map[int]float64{1: 1, 2: 1.03, 3: 0.9})
	code, stdout, stderr := call("compare", old, slower)
	require.Equal(t, exitFailure, code)
	require.Equal(t, "vkattn: 1 of 3 rows are slower or broken\n", stderr)
	require.Contains(t, stdout, "| slower ")
	succeeds(t, "compare", old, slower, "--fail-over", "5%")
	succeeds(t, "compare", old, slower, "--threshold", "4")
	code, stdout, _ = call("compare", old, slower, "-o", "json")
	require.Equal(t, exitFailure, code)
	report := decoded[compare.Report](t, stdout)
	require.Equal(t, compare.Slower, report.Pairs[1].Verdict)

	fewer := savedRun(t, map[int]float64{1: 1})
	code, stdout, stderr = call("compare", old, fewer)
	require.Equal(t, exitInput, code)
	require.Equal(t, "vkattn: 2 rows are in one run only\n", stderr)
	require.Contains(t, stdout, "only in the old run: tier=cpu/pass=fwd/b=1/hq=2/hkv=2/sq=2/")
	code, _, stderr = call("compare", savedRun(t, map[int]float64{1: 1, 2: 1}), fewer)
	require.Equal(t, exitInput, code)
	require.Equal(t, "vkattn: 1 row is in one run only\n", stderr)
	succeeds(t, "compare", old, fewer, "--subset")
	code, _, stderr = call("compare", fewer, savedRun(t, map[int]float64{7: 1}))
	require.Equal(t, exitInput, code)
	require.Equal(t, "vkattn: no row is in both runs\n", stderr)

	untimed := filepath.Join(t.TempDir(), "untimed.json")
	code, _, stderr = call(tiny("--device", "cpu", "--headdim", "576", "--headdim-v", "512", "--pass", "bwd", "--save", untimed)...)
	require.Equal(t, exitUnsupported, code, stderr)
	code, _, stderr = call("compare", untimed, untimed)
	require.Equal(t, exitInput, code)
	require.Equal(t, "vkattn: no row has a speed in either run\n", stderr)

	refused(t, exitInput, "two files, OLD and NEW, not 1", "compare", old)
	refused(t, exitInput, "no such file", "compare", old, "nowhere.json")
	refused(t, exitInput, "not the JSON of a benchmark", "compare", old, "compare_test.go")
	refused(t, exitInput, "not a percentage", "compare", old, old, "--fail-over", "-5%")
	refused(t, exitInput, "unknown output format", "compare", old, old, "-o", "csv")
}

// A row of a device whose clock ran backwards, or a line that is cut off, costs itself alone.
func TestBadRowsOfSavedFilesAreLeftOut(t *testing.T) {
	dir := t.TempDir()
	rows := filepath.Join(dir, "rows.jsonl")
	succeeds(t, tiny("--device", "cpu", "-r", "8", "--warmup", "0", "--save", rows)...)
	good := readFile(t, rows)
	var r map[string]any
	require.NoError(t, json.Unmarshal(good, &r))
	r["seqlen_q"], r["samples"] = 77, []float64{1, -9.2e12}
	bad, err := json.Marshal(r)
	require.NoError(t, err)
	text := append(append(append(bad, '\n'), good...), good[:bytes.IndexByte(good, ',')]...)
	require.NoError(t, os.WriteFile(rows, text, 0o600))
	leftOut := "vkattn: " + rows + ": left out: row 1: a run of -9.2e+12 ms\n" +
		"vkattn: " + rows + ": left out: row 3: not the JSON of a benchmark: unexpected end of JSON input\n"

	stdout, stderr := succeeds(t, "compare", rows, rows)
	require.Equal(t, leftOut+leftOut, stderr)
	require.Contains(t, stdout, "1 row, ")
	stdout, stderr = succeeds(t, "report", rows, "-o", "-")
	require.Equal(t, leftOut, stderr)
	require.Contains(t, stdout, "1 rows of 1 file.")
	_, stdout, stderr = call(tiny("--device", "cpu", "-r", "8", "--warmup", "0", "--baseline", rows)...)
	require.Contains(t, stderr, leftOut)
	require.Contains(t, stdout, "\ncompared with rows.jsonl:\n")
}

func TestBenchComparesWithABaseline(t *testing.T) {
	onceOnly(t)
	slow := savedRun(t, map[int]float64{33: 1e6, 7: 1})
	args := func(more ...string) []string {
		return append(tiny("--device", "cpu", "-r", "10", "--warmup", "0"), more...)
	}
	stdout, _ := succeeds(t, args("--baseline", slow)...)
	require.Contains(t, stdout, "\ncompared with run.json:\n")
	require.Contains(t, stdout, "1 row, 1 faster, ")
	code, stdout, stderr := call(args("--baseline", savedRun(t, map[int]float64{33: 1e-6}), "-o", "json")...)
	require.Equal(t, exitFailure, code)
	require.True(t, json.Valid([]byte(stdout)))
	require.Contains(t, stderr, "1 row, 1 slower, ")
	require.Contains(t, stderr, "vkattn: 1 of 1 rows are slower or broken\n")
	code, _, stderr = call(args("--baseline", savedRun(t, map[int]float64{7: 1}))...)
	require.Equal(t, exitInput, code)
	require.Contains(t, stderr, "vkattn: no row is in both runs\n")
	refused(t, exitInput, "--baseline: ", args("--baseline", "nowhere.json")...)
}
