package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
)

func TestBenchOfCeilings(t *testing.T) {
	driver(t)
	dir := t.TempDir()
	var saved []string
	args := []string{"bench", "--suite", "ceilings", "-r", "6", "--warmup", "10ms"}
	for _, name := range []string{"a.jsonl", "a.json", "a.csv", "a.md", "a.sql"} {
		saved = append(saved, "--save", filepath.Join(dir, name))
	}
	stdout, stderr := succeeds(t, append(args, saved...)...)
	require.Contains(t, stderr, "8 rows, seed")
	require.Contains(t, stdout, "| copy  ")
	rows := rowsOf[bench.Row](t, readFile(t, filepath.Join(dir, "a.jsonl")))
	require.Len(t, rows, 8)
	for _, r := range rows {
		if r.Status != bench.OK {
			require.Equal(t, bench.Unsupported, r.Status, r.Reason)
			require.Contains(t, stdout, r.Note())
		}
	}

	// compare and --baseline match the rows by their names.
	stdout, _ = succeeds(t, "compare", filepath.Join(dir, "a.jsonl"), filepath.Join(dir, "a.json"))
	require.Contains(t, stdout, "| barrier ")
	code, stdout, stderr := call(append(args, "--dtype", "f32", "--baseline", filepath.Join(dir, "a.json"), "-o", "gobench")...)
	require.NotEqual(t, exitInput, code, stderr)
	require.Contains(t, stdout, "BenchmarkAttention/ceiling=copy 1 ")
	require.Contains(t, stderr, "| fma f32 ")
	require.NotContains(t, stderr, "| products")

	page := filepath.Join(dir, "page.html")
	succeeds(t, "report", filepath.Join(dir, "a.jsonl"), "-o", page)
	text := readFile(t, page)
	require.Contains(t, string(text), ">dispatch<")
}

// bench --plot measures the ceilings that its pictures show, and keeps them with the rows.
func TestPlotsShowMeasuredCeilings(t *testing.T) {
	driver(t)
	dir := t.TempDir()
	rows, plot := filepath.Join(dir, "rows.jsonl"), filepath.Join(dir, "live.svg")
	args := tiny("--tier", "scalar", "--seqlen", "8,16", "--warmup", "10ms", "--save", rows, "--plot", plot)
	stdout, stderr := succeeds(t, args...)
	require.Contains(t, stderr, "4 rows, seed")
	require.Less(t, strings.Index(stdout, "| copy "), strings.Index(stdout, "| scalar "), "as they are measured")
	require.Contains(t, stdout, "| copy ")
	saved := rowsOf[bench.Row](t, readFile(t, rows))
	require.Equal(t, bench.CeilingCopy, saved[0].Ceiling)
	require.Equal(t, bench.CeilingFMA, saved[1].Ceiling)
	text := readFile(t, plot)
	if saved[1].Status == bench.OK {
		require.Contains(t, string(text), "FMA peak")
	}

	stdout, stderr = succeeds(t, append(args, "--peak-tflops", "3", "--peak-tbs", "2")...)
	require.Contains(t, stderr, "2 rows, seed")
	require.NotContains(t, stdout, "| copy ")
	text = readFile(t, plot)
	require.Contains(t, string(text), "coopmat peak")

	// Rows that only pictures have are not compared.
	code, stdout, stderr := call(append(args, "--baseline", rows)...)
	require.Contains(t, []int{exitOK, exitFailure}, code, stderr)
	_, compared, found := strings.Cut(stdout, "\ncompared with ")
	require.True(t, found)
	require.NotContains(t, compared, "| copy ")
}

func TestCeilingsWithoutADevice(t *testing.T) {
	refused(t, exitUnsupported, "suite ceilings does not run on --device cpu", "bench", "--suite", "ceilings", "--device", "cpu")
	refused(t, exitInput, "only vkattn bench measures it", "verify", "--suite", "ceilings")
	refused(t, exitInput, "only vkattn bench measures it", "tune", "--suite", "ceilings")
	refused(t, exitInput, "select no problem of it", "bench", "--suite", "ceilings", "--headdim", "64")
	stdout, _ := succeeds(t, "bench", "--suite", "ceilings", "--list")
	require.Contains(t, stdout, "| products bf16 |")
	if name := os.Getenv("VKATTN_DRIVER"); name == "none" {
		refused(t, exitUnsupported, "suite ceilings needs a Vulkan device: ", "bench", "--suite", "ceilings")
	}
}
