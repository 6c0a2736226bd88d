//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/faultydriver"
	"vkattn/vk"
)

// onFaulty is the command on a driver with faults, in a process of its own.
func onFaulty(t *testing.T, faults string, args ...string) *process {
	t.Helper()
	driver(t)
	program, err := filepath.Abs(os.Args[0])
	require.NoError(t, err)
	args = append(append(strings.Fields(os.Getenv("VKATTN_EXEC")), program), args...)
	p := &process{Cmd: exec.Command(args[0], args[1:]...)}
	p.Env = append(os.Environ(), "VKATTN_TEST_IS_COMMAND=1", vk.CacheDirEnv+"="+t.TempDir())
	p.Env = append(p.Env, faultydriver.Env(t, faults)...)
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	t.Cleanup(func() {
		if p.Process != nil {
			_ = p.Process.Kill()
		}
	})
	return p
}

var clockFaults = []string{"constant", "backwards", "zeros"}

// A driver whose timestamps are no times costs no row: the wall clock times it, and the row says so. What
// reads the rows takes them.
func TestBenchOnABrokenClock(t *testing.T) {
	for _, fault := range clockFaults {
		t.Run(fault, func(t *testing.T) {
			dir := t.TempDir()
			saved := filepath.Join(dir, "rows.json")
			p := onFaulty(t, fault, tiny("--tier", "scalar", "--warmup", "0", "-r", "5", "--save", saved)...)
			require.NoError(t, p.Start())
			require.Equal(t, exitOK, p.end(t), p.stderr.String())
			text := readFile(t, saved)
			var doc struct{ Rows []bench.Row }
			require.NoError(t, json.Unmarshal(text, &doc))
			require.Len(t, doc.Rows, 1)
			r := doc.Rows[0]
			require.Equal(t, bench.OK, r.Status, r.Reason)
			require.Equal(t, "wall", r.Timer)
			require.Contains(t, r.Unsteady, "timed by the wall clock: the device's timestamps are unusable")
			require.Contains(t, p.stdout.String(), r.Unsteady)
			require.NotEmpty(t, r.Samples)
			for _, ms := range r.Samples {
				require.Positive(t, ms)
			}
			_, stderr := succeeds(t, "compare", saved, saved)
			require.Empty(t, stderr)
		})
	}
}

// A tuning takes no winner from timestamps that are no times.
func TestTuneOnABrokenClock(t *testing.T) {
	for pass, faults := range map[string][]string{"fwd": clockFaults, "bwd": clockFaults[:1]} {
		for _, fault := range faults {
			t.Run(pass+" "+fault, func(t *testing.T) {
				p := onFaulty(t, fault, "tune", "--tier", "scalar", "--pass", pass, "--dtype", "f32", "--batch-size", "1", "--nheads", "1", "--seqlen", "40",
					"--headdim", "8", "--causal", "none", "--candidates", "2", "--budget", "40s", "-o", "json")
				require.NoError(t, p.Start())
				require.Equal(t, exitOK, p.end(t), p.stderr.String())
				timed := 0
				for _, r := range tuneReports(t, p.stdout.String()) {
					notes := strings.Join(r.Notes, "\n")
					for _, c := range r.Candidates {
						if c.Ms == 0 {
							continue
						}
						timed++
						require.Contains(t, notes, "timed by the wall clock: the device's timestamps are unusable")
						require.Greater(t, c.Ms, 1e-3, "no call takes less than a microsecond")
					}
				}
				require.NotZero(t, timed)
			})
		}
	}
}

// tuneReports are the reports of a tuning in JSON.
func tuneReports(t *testing.T, text string) (list []attention.TuneReport) {
	t.Helper()
	var doc tuneDoc
	require.NoError(t, json.Unmarshal([]byte(text), &doc), text)
	for _, r := range doc.Rows {
		require.NotEqual(t, bench.Broken, r.Status)
		list = append(list, r.Report)
	}
	return list
}

// A profile is of timestamps alone.
func TestProfileOnABrokenClock(t *testing.T) {
	for _, fault := range clockFaults {
		p := onFaulty(t, fault, "profile", "--tier", "scalar", "--nheads", "1", "--seqlen", "40", "--headdim", "8", "-r", "3", "--peak-tflops", "1")
		require.NoError(t, p.Start())
		require.Equal(t, exitUnsupported, p.end(t), p.stderr.String())
		require.Contains(t, p.stderr.String(), "the device's timestamps are unusable")
		require.Empty(t, p.stdout.String())
	}
}

// hangingBench are arguments of a benchmark whose second row hangs.
func hangingBench(saved string, more ...string) []string {
	return append([]string{"bench", "--tier", "scalar", "--batch-size", "1", "--nheads", "1", "--seqlen", "16,400000", "--seqlen-k", "16", "--headdim", "64",
		"--causal", "none", "--dtype", "f32", "--warmup", "0", "-r", "2", "--warm-cache", "--seed", "9", "-o", "jsonl", "--save", saved}, more...)
}

const hangBytes = "hang=64000000" // less than Q of 400,000 rows, more than staging memory

// With --timeout a device that hangs ends the benchmark, with the rows that it has.
func TestBenchEndsWhenTheDeviceHangs(t *testing.T) {
	dir := t.TempDir()
	saved := filepath.Join(dir, "rows.jsonl")
	p := onFaulty(t, hangBytes, hangingBench(saved, "--timeout", "1s")...)
	require.NoError(t, p.Start())
	require.Equal(t, exitDevice, p.end(t), p.stderr.String())
	require.Contains(t, p.stderr.String(), "vkattn: wait: the device hangs: it has finished no run for 4s")
	require.NotContains(t, p.stderr.String(), "destroyed")
	text := readFile(t, saved)
	require.Equal(t, p.stdout.String(), string(text))
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	require.Len(t, lines, 2)
	for i, want := range []bench.Status{bench.OK, bench.Broken} {
		r := decoded[bench.Row](t, lines[i])
		require.Equal(t, want, r.Status, r.Reason)
	}
	onlyFiles(t, dir, "rows.jsonl")
}

// Without it a signal does.
func TestASignalEndsABenchmarkOnADeviceThatHangs(t *testing.T) {
	dir := t.TempDir()
	saved := filepath.Join(dir, "rows.jsonl")
	p := onFaulty(t, hangBytes, hangingBench(saved)...)
	p.Stdout = nil
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	_, _ = lines.WriteTo(&p.stdout)
	require.Equal(t, exitSignal+int(syscall.SIGINT), p.end(t), p.stderr.String())
	text := readFile(t, saved)
	require.True(t, strings.HasPrefix(string(text), first))
	onlyFiles(t, dir, "rows.jsonl")
}

// hangAtOnce is a device on which no submission ends.
const hangAtOnce = "hang=1"

// With --timeout a device that hangs ends verify, with the rows that it has.
func TestVerifyEndsWhenTheDeviceHangs(t *testing.T) {
	for name, c := range map[string]struct {
		faults, seqlen string
		flags          []string
		says           string
		want           []bench.Status
	}{
		"second problem": {hangBytes, "16,400000", nil, "the device has finished no work for 1s", []bench.Status{bench.OK, bench.Broken}},
		"first problem":  {hangAtOnce, "16,17", nil, "the device hangs: it has finished no run for 1s", []bench.Status{bench.Broken}},
		"gradients":      {hangAtOnce, "16,17", []string{"--pass", "bwd"}, "the device hangs: it has finished no run for 1s", []bench.Status{bench.Broken}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			saved := filepath.Join(dir, "rows.jsonl")
			p := onFaulty(t, c.faults, append([]string{"verify", "--tier", "scalar", "--batch-size", "1", "--nheads", "1", "--seqlen", c.seqlen,
				"--seqlen-k", "16", "--headdim", "64", "--causal", "none", "--dtype", "f32", "--seed", "9", "-o", "jsonl", "--save", saved,
				"--timeout", "1s"}, c.flags...)...)
			require.NoError(t, p.Start())
			require.Equal(t, exitDevice, p.end(t), p.stderr.String())
			require.Contains(t, p.stderr.String(), c.says)
			require.NotContains(t, p.stderr.String(), "destroyed")
			text := readFile(t, saved)
			require.Equal(t, p.stdout.String(), string(text))
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			require.Len(t, lines, len(c.want))
			for i, want := range c.want {
				var r struct {
					Status  bench.Status
					Reasons []string
				}
				require.NoError(t, json.Unmarshal([]byte(lines[i]), &r))
				require.Equal(t, want, r.Status, r.Reasons)
			}
			onlyFiles(t, dir, "rows.jsonl")
		})
	}
}

// With --timeout a device that hangs ends run, which writes nothing.
func TestRunEndsWhenTheDeviceHangs(t *testing.T) {
	dir, args := goodFiles(t)
	p := onFaulty(t, hangAtOnce, append(without(args, "--device"), "--tier", "scalar", "--timeout", "1s")...)
	require.NoError(t, p.Start())
	require.Equal(t, exitDevice, p.end(t), p.stderr.String())
	require.Contains(t, p.stderr.String(), "vkattn: wait: the device hangs: it has finished no run for 1s")
	require.NotContains(t, p.stderr.String(), "destroyed")
	require.Empty(t, p.stdout.String())
	nothingWritten(t, dir)
}

// With --timeout a device that hangs ends profile.
func TestProfileEndsWhenTheDeviceHangs(t *testing.T) {
	for _, faults := range []string{hangBytes, hangAtOnce} {
		p := onFaulty(t, faults, "profile", "--tier", "scalar", "--batch-size", "1", "--nheads", "1", "--seqlen", "400000", "--seqlen-k", "16", "--headdim", "64",
			"--dtype", "f32", "--warmup", "0", "-r", "2", "--warm-cache", "--timeout", "1s")
		require.NoError(t, p.Start())
		require.Equal(t, exitDevice, p.end(t), p.stderr.String())
		require.Contains(t, p.stderr.String(), "4s")
		require.NotContains(t, p.stderr.String(), "destroyed")
		require.Empty(t, p.stdout.String())
	}
}
