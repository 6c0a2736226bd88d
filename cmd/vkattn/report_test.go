package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReportOfABenchmark(t *testing.T) {
	dir := t.TempDir()
	rows, plot := filepath.Join(dir, "rows.jsonl"), filepath.Join(dir, "live.png")
	succeeds(t, tiny("--device", "cpu", "--seqlen", "8,16", "--save", rows, "--plot", plot)...)
	picture := readFile(t, plot)
	require.Equal(t, "\x89PNG", string(picture[:4]))

	page, svg := filepath.Join(dir, "page.html"), filepath.Join(dir, "speed.svg")
	_, stderr := succeeds(t, "report", dir, "-o", page, "--plot", svg, "--peak-tflops", "1")
	require.Equal(t, "wrote "+svg+"\nwrote "+page+"\n", stderr)
	text := readFile(t, page)
	require.Contains(t, string(text), "2 rows of 1 file.")
	text = readFile(t, svg)
	require.Contains(t, string(text), "coopmat peak")
	stdout, stderr := succeeds(t, "report", rows, "-o", "-")
	require.Empty(t, stderr)
	require.Contains(t, stdout, "<!doctype html>")
}

func TestReportRefuses(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	rows := filepath.Join(dir, "rows.jsonl")
	succeeds(t, tiny("--device", "cpu", "--seqlen", "8", "--save", rows)...)
	text := readFile(t, rows)
	require.NoError(t, os.WriteFile("rows.svg", text, 0o600))
	for says, args := range map[string][]string{
		"name files or directories":    {"report"},
		"no such file":                 {"report", "none.jsonl"},
		"--plot x.gif":                 {"report", rows, "--plot", "x.gif"},
		"--kind \"pie\"":               {"report", rows, "--plot", "x.svg", "--kind", "pie"},
		"--columns 0":                  {"report", rows, "--plot", "x.svg", "--columns", "0"},
		"--peak-tflops":                {"report", rows, "--peak-tflops", "-1"},
		"--peak-tbs +Inf":              {"report", rows, "--peak-tbs", "inf"},
		"no such picture":              {"report", rows, "--plot", "x.svg"},
		"-o needs a file name":         {"report", rows, "-o", ""},
		"--series needs --plot":        {"report", rows, "--series", "cpu"},
		"--caption needs --plot":       {"report", rows, "--caption", "x"},
		"is the same file as":          {"report", rows, "-o", "./rows.jsonl"},
		"--plot rows.svg is the same":  {"report", "rows.svg", rows, "--plot", "rows.svg"},
		"-o none/page.html":            {"report", rows, "-o", "none/page.html"},
		"--plot none/x.svg":            tiny("--device", "cpu", "--plot", "none/x.svg"),
		"the name ends in none of .sv": tiny("--device", "cpu", "--plot", "x.gif"),
	} {
		refused(t, exitInput, says, args...)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{rows, filepath.Join(dir, "rows.svg")}, left)

	refused(t, exitFailure, "-o /dev/full: no space left on device", "report", rows, "-o", "/dev/full")
	refused(t, exitFailure, "--monitor /dev/full: no space left on device", tiny("--device", "cpu", "--monitor", "/dev/full")...)
	full := filepath.Join(t.TempDir(), "full.jsonl")
	require.NoError(t, os.Symlink("/dev/full", full))
	for _, args := range [][]string{tiny("--device", "cpu", "--save", full), tinyVerify("--device", "cpu", "--save", full)} {
		code, _, stderr := call(args...)
		require.Equal(t, exitFailure, code)
		require.Contains(t, stderr, "vkattn: --save "+full+": no space left on device\n")
	}
	two := filepath.Join(t.TempDir(), "two.jsonl")
	succeeds(t, tiny("--device", "cpu", "--seqlen", "8,16", "--save", two)...)
	refused(t, exitInput, "--series none: the pictures have cpu", "report", two, "--plot", "x.svg", "--series", "none")
}

// Saved rows keep the name that their suite had then.
func TestReportReadsRowsOfRenamedSuites(t *testing.T) {
	stdout, stderr := succeeds(t, "report", "../../docs/results/2026-11-25-h200/serving.jsonl.gz", "-o", "-")
	require.Empty(t, stderr)
	require.Contains(t, stdout, ">seed1<")
	require.Contains(t, stdout, "19 rows of 1 file.")
}
