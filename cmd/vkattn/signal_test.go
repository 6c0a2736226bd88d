//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/testfifo"
)

// process is the command in a process of its own.
type process struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
}

func start(t *testing.T, change func(*exec.Cmd), args ...string) *process {
	t.Helper()
	if d := os.Getenv("VKATTN_DRIVER"); d != "" && d != "none" {
		t.Skip("os.Executable is not the test under another loader")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	p := &process{Cmd: exec.Command(self, args...)}
	p.Env = append(os.Environ(), "VKATTN_TEST_IS_COMMAND=1")
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	if change != nil {
		change(p.Cmd)
	}
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

// end waits for the process and returns its exit code, -1 for one that was killed.
func (p *process) end(t *testing.T) int {
	t.Helper()
	late := time.AfterFunc(endLimit, func() { _ = p.Process.Kill() })
	_ = p.Wait()
	require.True(t, late.Stop(), "did not end: %v", p.Args)
	return p.ProcessState.ExitCode()
}

// until waits for what a process does.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, endLimit, time.Millisecond, what)
}

// reads waits until the process has a file open: by then it catches signals.
func (p *process) reads(t *testing.T, path string) {
	t.Helper()
	until(t, "it opens "+path, func() bool {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.Process.Pid))
		return slices.ContainsFunc(links, func(link string) bool {
			to, err := os.Readlink(link)
			return err == nil && to == path
		})
	})
}

// ended reports whether a process has ended and only its exit status is left.
func (p *process) ended() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// rests waits until a process has taken no time of the CPU for a while, as one that waits.
func (p *process) rests(t *testing.T) {
	t.Helper()
	var last string
	same := 0
	until(t, "it rests", func() bool {
		stat := readFile(t, fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')'):]))
		same++
		if now := fields[12] + " " + fields[13]; now != last { // user and system time
			last, same = now, 0
		}
		return same > 50
	})
}

// works waits until a process has the tensors of a large problem, of more than 200 MB.
func works(t *testing.T, pid int) {
	t.Helper()
	until(t, "it has large tensors", func() bool {
		var size, resident int
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		_, err := fmt.Sscan(string(text), &size, &resident)
		return err == nil && resident*os.Getpagesize() > 200<<20
	})
}

// hidden are the temporary files of a folder.
func hidden(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			out = append(out, e.Name())
		}
	}
	return out
}

// enlarge makes the inputs of goodFiles larger, in files that take no disk.
func enlarge(t *testing.T, dir string, batch, length int) {
	t.Helper()
	for _, name := range []string{"q", "k", "v"} {
		shape := []int{batch, 16, length, 64}
		path := filepath.Join(dir, name+".npy")
		head := npyBytes("<f2", false, shape, nil)
		require.NoError(t, os.WriteFile(path, head, 0o644))
		require.NoError(t, os.Truncate(path, int64(len(head))+2*int64(batch)*16*int64(length)*64))
	}
}

func TestASignalEndsALongRunAndLeavesNothing(t *testing.T) {
	dir, args := goodFiles(t)
	enlarge(t, dir, 4, 65536) // minutes of work
	for _, s := range endingSignals {
		p := start(t, nil, args...)
		p.reads(t, filepath.Join(dir, "q.npy"))
		require.NoError(t, p.Process.Signal(s))
		require.Equal(t, 128+int(s), p.end(t))
		require.Equal(t, "vkattn: interrupted\n", p.stderr.String())
		require.Empty(t, p.stdout.String())
		nothingWritten(t, dir)
	}
}

// Whenever a signal comes, the run was done before it or has changed nothing: also
// where the work, which cannot be stopped, is done before the process ends.
func TestASignalAtAnyTimeLeavesAllOrNothing(t *testing.T) {
	dir, args := goodFiles(t)
	enlarge(t, dir, 1, 256)
	o, lse := filepath.Join(dir, "o.npy"), filepath.Join(dir, "lse.npy")
	old := func(path string) bool {
		b := readFile(t, path)
		return string(b) == "old"
	}
	for at, moment := range []func(p *process){
		// Before a process listens it dies of the signal, and not of its own will.
		func(p *process) {},
		func(p *process) { p.reads(t, filepath.Join(dir, "q.npy")) },
		func(p *process) { until(t, "a new file", func() bool { return p.ended() || len(hidden(t, dir)) > 0 }) },
		func(p *process) {
			until(t, "both new files", func() bool { return p.ended() || len(hidden(t, dir)) > 1 })
		},
		func(p *process) {
			until(t, "a file in its place", func() bool { return p.ended() || !old(o) || !old(lse) })
		},
	} {
		for _, s := range endingSignals {
			for _, path := range []string{o, lse} {
				require.NoError(t, os.WriteFile(path, []byte("old"), 0o644))
			}
			p := start(t, func(c *exec.Cmd) { c.Env = append(c.Env, "VKATTN_TEST_GRACE="+endLimit.String()) }, args...)
			moment(p)
			_ = p.Process.Signal(s)
			code := p.end(t)
			if p.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
				code = 128 + int(s)
			}
			t.Logf("moment %d: exit code %d", at, code)
			require.Empty(t, hidden(t, dir))
			for _, path := range []string{o, lse} {
				require.Equal(t, code == exitOK, !old(path), "exit code %d, %s", code, filepath.Base(path))
			}
			if code == exitOK {
				require.Contains(t, p.stdout.String(), "plan: ")
				continue
			}
			require.Equal(t, 128+int(s), code, p.stderr.String())
			require.Empty(t, p.stdout.String())
		}
	}
}

func TestASignalAfterTheEndDoesNotChangeTheExitCode(t *testing.T) {
	_, args := goodFiles(t)
	for _, s := range endingSignals {
		over := filepath.Join(t.TempDir(), "over")
		in, lives, err := os.Pipe()
		require.NoError(t, err)
		p := start(t, func(c *exec.Cmd) {
			c.Env = append(c.Env, "VKATTN_TEST_LINGER="+over)
			c.Stdin = in
		}, args...)
		require.NoError(t, in.Close())
		until(t, "the command is over", func() bool {
			_, err := os.Stat(over)
			return err == nil
		})
		require.NoError(t, p.Process.Signal(s))
		require.NoError(t, lives.Close())
		require.Equal(t, exitOK, p.end(t))
	}
}

// A folder that is slow to move files must not turn a replaced output into an
// interrupted one, and a second signal must end what hangs.
func TestASecondSignalEndsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		a := &app{stdout: &stderr, stderr: &stderr}
		hang := make(chan struct{})
		defer close(hang)
		a.onInterrupt.add(func() { <-hang })
		signals := make(chan os.Signal)
		code := make(chan int)
		go func() { code <- a.ended(syscall.SIGTERM, signals, make(chan error)) }()
		signals <- syscall.SIGPIPE
		select {
		case <-code:
			t.Fatal("did not wait for files that are being moved")
		case <-time.After(100 * grace):
		}
		signals <- syscall.SIGINT
		require.Equal(t, 143, <-code)

		a = &app{stdout: &stderr, stderr: &stderr}
		done := make(chan error, 1)
		a.onInterrupt.add(func() {
			time.Sleep(100 * grace)
			done <- nil
		})
		require.Equal(t, exitOK, a.ended(syscall.SIGTERM, signals, done))
	})
}

// endless is a benchmark that saves its rows and ends by a signal alone.
func endless(path string, more ...string) []string {
	return tiny(append([]string{"--device", "cpu", "--min-time", "1h", "--save", path}, more...)...)
}

// saving waits until a benchmark has its temporary file, and returns the name. It has it when it holds the
// lock: before, another process may take the file for a leftover. It also locks leftovers, to remove them.
func (p *process) saving(t *testing.T, dir string, leftovers ...string) (name string) {
	t.Helper()
	until(t, "it has a temporary file", func() bool {
		locks := readFile(t, "/proc/locks")
		for _, name = range hidden(t, dir) {
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil || slices.Contains(leftovers, name) {
				continue
			}
			inode := info.Sys().(*syscall.Stat_t).Ino
			if regexp.MustCompile(fmt.Sprintf(`FLOCK .* %d [0-9a-f:]+:%d `, p.Process.Pid, inode)).Match(locks) {
				return true
			}
		}
		return false
	})
	return name
}

func TestASignalEndsABenchmarkAndKeepsTheOldRows(t *testing.T) {
	onceOnly(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "rows.jsonl")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	for _, s := range endingSignals {
		p := start(t, nil, endless(path)...)
		p.saving(t, dir)
		require.NoError(t, p.Process.Signal(s))
		require.Equal(t, 128+int(s), p.end(t), p.stderr.String())
		require.Empty(t, hidden(t, dir))
		b := readFile(t, path)
		require.Equal(t, "old", string(b))
	}
}

func TestTheNextRunRemovesWhatAKilledOneLeft(t *testing.T) {
	onceOnly(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "rows.jsonl")
	killed := start(t, nil, endless(path)...)
	left := killed.saving(t, dir)
	require.NoError(t, killed.Process.Kill())
	require.Equal(t, -1, killed.end(t))
	require.Equal(t, []string{left}, hidden(t, dir))
	// A process that lives keeps its file, and the dead one's goes at once.
	live := start(t, nil, endless(path)...)
	temporary := live.saving(t, dir, left)
	require.Equal(t, []string{temporary}, hidden(t, dir))
	succeeds(t, tiny("--device", "cpu", "--save", path)...)
	require.Equal(t, []string{temporary}, hidden(t, dir))
	require.FileExists(t, path)
	require.NoError(t, live.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, live.end(t))
	require.Empty(t, hidden(t, dir))
}

// nobodyReads makes standard output a pipe without a reader.
func nobodyReads(t *testing.T) func(*exec.Cmd) {
	return func(c *exec.Cmd) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		require.NoError(t, r.Close())
		t.Cleanup(func() { _ = w.Close() })
		c.Stdout = w
	}
}

func TestOutputThatNobodyReadsEndsTheCommand(t *testing.T) {
	onceOnly(t)
	dir := t.TempDir()
	path, rows := filepath.Join(dir, "rows.jsonl"), filepath.Join(t.TempDir(), "rows.json")
	succeeds(t, tiny("--device", "cpu", "--save", rows)...)
	_, files := goodFiles(t)
	files = without(files, "--lse")
	for name, args := range map[string][]string{
		"help":         {"--help"},
		"of a verb":    {"bench", "--help"},
		"version":      {"version"},
		"info":         {"info"},
		"completion":   {"completion", "bash"},
		"suites":       {"bench", "--list"},
		"compare":      {"compare", rows, rows},
		"a page":       {"report", rows, "-o", "-"},
		"a page as":    {"report", rows, "-o", "/dev/stdout"},
		"O":            with(files, "--o", "-"),
		"a plan":       with(files, "--o", "/dev/null"),
		"a benchmark":  tiny("--device", "cpu", "-o", "jsonl", "--save", path),
		"of many rows": tiny("--device", "cpu", "-o", "jsonl", "--save", path, "--seqlen", "1-4000+1"),
		"at the end":   tiny("--device", "cpu", "-o", "json", "--save", path),
		"ranks":        {"bench", "--device", "cpu", "--ranks", "2", "--seqlen", "1-4000+1", "--headdim", "8", "--nheads", "2", "-r", "2", "-o", "jsonl"},
		"verify":       tinyVerify("--device", "cpu", "-o", "jsonl", "--save", path),
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, nobodyReads(t), args...)
			require.Equal(t, exitPipe, p.end(t))
			require.Empty(t, strings.TrimPrefix(p.stderr.String(), "plan: "), "the reader has what it wanted")
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, entries)
		})
	}
}

func TestASignalEndsWaitingForAPipe(t *testing.T) {
	dir, args := goodFiles(t)
	pipe := filepath.Join(dir, "o.npy")
	testfifo.Make(t, pipe, 0o600)
	p := start(t, nil, args...)
	p.reads(t, filepath.Join(dir, "q.npy"))
	p.rests(t)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, p.end(t))
	require.Empty(t, hidden(t, dir))
	require.NoFileExists(t, filepath.Join(dir, "lse.npy"))
}

func TestAPipeWhoseReaderLeavesIsOneLine(t *testing.T) {
	dir, args := goodFiles(t)
	enlarge(t, dir, 1, 256) // more than a pipe holds
	pipe := filepath.Join(dir, "o.npy")
	testfifo.Make(t, pipe, 0o600)
	r, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	p := start(t, nil, args...)
	until(t, "it writes", func() bool {
		n, _ := r.Read(make([]byte, 1))
		return n > 0
	})
	require.NoError(t, r.Close())
	code := p.end(t)
	assert.Equal(t, exitPipe, code)
	assert.Regexp(t, `^vkattn: writing --o .*: broken pipe\n$`, p.stderr.String())
	require.Empty(t, hidden(t, dir))
	require.NoFileExists(t, filepath.Join(dir, "lse.npy"))
}
