//go:build unix

package main

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/verify"
)

// interruptAfterARow starts the command, sends it a signal when next has returned after the first line of its
// output is there, and returns all of the output and what it said.
func interruptAfterARow(t *testing.T, s syscall.Signal, cmd *exec.Cmd, next func()) (stdout, stderr string) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var errs strings.Builder
	cmd.Stderr = &errs
	require.NoError(t, cmd.Start())
	watchdog := time.AfterFunc(endLimit, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	require.NoError(t, err) // what it says on standard error is still written to
	next()
	require.NoError(t, cmd.Process.Signal(s))
	rest, err := io.ReadAll(lines)
	require.NoError(t, err)
	_ = cmd.Wait()
	require.Equal(t, exitSignal+int(s), cmd.ProcessState.ExitCode(), errs.String())
	return first + string(rest), errs.String()
}

// onlyFiles checks that a folder has these files and no temporary ones.
func onlyFiles(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var have []string
	for _, e := range entries {
		have = append(have, e.Name())
	}
	require.ElementsMatch(t, names, have)
}

// The second row takes minutes, and nothing can stop it: a call on the CPU.
func TestAnInterruptedBenchKeepsWhatItMeasured(t *testing.T) {
	onceOnly(t)
	for _, s := range endingSignals {
		t.Run(s.String(), func(t *testing.T) { interruptedBench(t, s) })
	}
}

func interruptedBench(t *testing.T, s syscall.Signal) {
	dir := t.TempDir()
	args := []string{"bench", "--device", "cpu", "--batch-size", "1", "--nheads", "8", "--seqlen", "16,150000", "--headdim", "64",
		"--causal", "none", "--dtype", "f16", "-r", "2", "--seed", "3", "-o", "jsonl"}
	for _, f := range []string{"md", "csv", "json", "jsonl"} {
		args = append(args, "--save", filepath.Join(dir, "rows."+f))
	}
	cmd := command(t, args...)
	stdout, stderr := interruptAfterARow(t, s, cmd, func() { works(t, cmd.Process.Pid) })
	require.Contains(t, stderr, "1 of 2 rows, seed 3\n")
	require.Contains(t, stderr, "vkattn: interrupted\n")
	onlyFiles(t, dir, "rows.md", "rows.csv", "rows.json", "rows.jsonl")
	read := func(name string) string {
		b := readFile(t, filepath.Join(dir, name))
		return string(b)
	}

	require.Equal(t, stdout, read("rows.jsonl"))
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, lines, 2)
	for i, line := range lines {
		var r struct {
			bench.Row
			Run bench.RunInfo
		}
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.Equal(t, []bench.Status{bench.OK, bench.Interrupted}[i], r.Status)
		require.Equal(t, []string{"", "interrupted"}[i], r.Run.Stopped)
	}
	var doc struct {
		Run  bench.RunInfo
		Rows []bench.Row
	}
	require.NoError(t, json.Unmarshal([]byte(read("rows.json")), &doc))
	require.Equal(t, "interrupted", doc.Run.Stopped)
	require.Len(t, doc.Rows, 2)
	require.Len(t, doc.Rows[0].Samples, 2)
	require.Equal(t, bench.Interrupted, doc.Rows[1].Status)
	require.Empty(t, doc.Rows[1].Samples)

	records, err := csv.NewReader(strings.NewReader(read("rows.csv"))).ReadAll()
	require.NoError(t, err)
	require.Len(t, records, 3)
	require.Contains(t, records[2], "interrupted")
	md := strings.Split(strings.TrimSpace(read("rows.md")), "\n")
	require.Len(t, md, 6)
	require.Contains(t, md[5], "| interrupted |")
	require.Len(t, md[5], len(md[2]))
}

// With JSON nothing is printed until the end.
func TestAnInterruptedBenchPrintsADocument(t *testing.T) {
	onceOnly(t)
	dir := t.TempDir()
	saved := filepath.Join(dir, "rows.json")
	require.NoError(t, os.WriteFile(saved, []byte("{}"), 0o644))
	cmd := command(t, "bench", "--device", "cpu", "--nheads", "8", "--seqlen", "150000", "--headdim", "64", "--causal", "none", "-o", "json", "--save", saved)
	var out strings.Builder
	cmd.Stdout = &out
	require.NoError(t, cmd.Start())
	works(t, cmd.Process.Pid)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait()
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
	var doc struct {
		Run  bench.RunInfo
		Rows []bench.Row
	}
	require.NoError(t, json.Unmarshal([]byte(out.String()), &doc))
	require.Equal(t, "interrupted", doc.Run.Stopped)
	for _, r := range doc.Rows {
		require.Equal(t, bench.Interrupted, r.Status)
	}
	before := readFile(t, saved)
	require.Equal(t, "{}", string(before), "without a row, what was saved before is worth more")
	onlyFiles(t, dir, "rows.json")
}

func TestAnInterruptedVerifyKeepsItsRows(t *testing.T) {
	onceOnly(t)
	for _, s := range endingSignals {
		t.Run(s.String(), func(t *testing.T) { interruptedVerify(t, s) })
	}
}

func interruptedVerify(t *testing.T, s syscall.Signal) {
	dir := t.TempDir()
	cmd := command(t, "verify", "--device", "cpu", "--batch-size", "1", "--nheads", "8", "--seqlen", "16,150000", "--headdim", "64",
		"--causal", "none", "--dtype", "f16", "--seed", "3", "-o", "jsonl", "--save", filepath.Join(dir, "rows.json"), "--save", filepath.Join(dir, "rows.md"))
	stdout, _ := interruptAfterARow(t, s, cmd, func() { works(t, cmd.Process.Pid) })
	require.Equal(t, 1, strings.Count(stdout, `"status":"ok"`))
	require.Equal(t, 1, strings.Count(stdout, `"status":"interrupted"`))
	onlyFiles(t, dir, "rows.json", "rows.md")
	text := readFile(t, filepath.Join(dir, "rows.json"))
	var doc struct {
		Run  bench.RunInfo
		Rows []verify.Row
	}
	require.NoError(t, json.Unmarshal(text, &doc))
	require.Equal(t, "interrupted", doc.Run.Stopped)
	require.Len(t, doc.Rows, 2)
	require.Equal(t, bench.Interrupted, doc.Rows[1].Status)
}
