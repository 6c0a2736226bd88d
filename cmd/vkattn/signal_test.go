package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// process is the command in a process of its own.
type process struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
}

// endLimit is for a process that does not do what it should; ending it fails the test.
const endLimit = time.Minute

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

var endingSignals = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

func TestASignalEndsALongRunAndLeavesNothing(t *testing.T) {
	dir, args := goodFiles(t)
	enlarge(t, dir, 4, 65536) // minutes of work
	for _, s := range endingSignals {
		p := start(t, nil, args...)
		time.Sleep(500*time.Millisecond + time.Duration(rand.IntN(300))*time.Millisecond)
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
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	dir, args := goodFiles(t)
	enlarge(t, dir, 1, 256)
	o, lse := filepath.Join(dir, "o.npy"), filepath.Join(dir, "lse.npy")
	begin := time.Now()
	require.Equal(t, exitOK, start(t, nil, args...).end(t))
	whole := time.Since(begin)
	var done, ended int
	for i := range 24 {
		for _, path := range []string{o, lse} {
			require.NoError(t, os.WriteFile(path, []byte("old"), 0o644))
		}
		s := endingSignals[i%len(endingSignals)]
		p := start(t, nil, args...)
		// Before a process listens it dies of the signal, and not of its own will.
		time.Sleep(whole/4 + time.Duration(random.Int64N(int64(whole))))
		_ = p.Process.Signal(s)
		code := p.end(t)
		if p.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
			code = 128 + int(s)
		}
		require.Empty(t, hidden(t, dir))
		for _, path := range []string{o, lse} {
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, code == exitOK, string(b) != "old", "exit code %d, %s", code, filepath.Base(path))
		}
		if code == exitOK {
			done++
			require.Contains(t, p.stdout.String(), "plan: ")
			continue
		}
		ended++
		require.Equal(t, 128+int(s), code, p.stderr.String())
		require.Empty(t, p.stdout.String())
	}
	t.Logf("%d done, %d ended by the signal, %v each", done, ended, whole)
	require.NotZero(t, ended)
}

func TestASignalAfterTheEndDoesNotChangeTheExitCode(t *testing.T) {
	_, args := goodFiles(t)
	for _, s := range endingSignals {
		out, err := os.CreateTemp(t.TempDir(), "")
		require.NoError(t, err)
		defer func() { _ = out.Close() }()
		p := start(t, func(c *exec.Cmd) {
			c.Env = append(c.Env, "VKATTN_TEST_LINGER=2s")
			c.Stdout = out
		}, args...)
		require.Eventually(t, func() bool { // the plan is its last deed
			info, err := out.Stat()
			return err == nil && info.Size() > 0
		}, endLimit, time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, p.Process.Signal(s))
		require.Equal(t, exitOK, p.end(t))
	}
}

// A folder that is slow to move files must not turn a replaced output into an
// interrupted one, and a second signal must end what hangs.
func TestASecondSignalEndsWaiting(t *testing.T) {
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
	case <-time.After(grace + grace/2):
	}
	signals <- syscall.SIGINT
	require.Equal(t, 143, <-code)

	a = &app{stdout: &stderr, stderr: &stderr}
	done := make(chan error, 1)
	a.onInterrupt.add(func() {
		time.Sleep(grace + grace/2)
		done <- nil
	})
	require.Equal(t, exitOK, a.ended(syscall.SIGTERM, signals, done))
}

// endless is a benchmark that saves its rows and ends by a signal alone.
func endless(path string, more ...string) []string {
	return tiny(append([]string{"--device", "cpu", "--min-time", "1h", "--save", path}, more...)...)
}

// saving waits until a benchmark has made its temporary file, and returns the new name.
func saving(t *testing.T, dir string, before ...string) string {
	t.Helper()
	var found string
	require.Eventually(t, func() bool {
		for _, name := range hidden(t, dir) {
			for _, b := range before {
				if name == b {
					name = ""
				}
			}
			if name != "" {
				found = name
			}
		}
		if found == "" {
			return false
		}
		// A file that only tries whether the folder can be written to is gone by then.
		time.Sleep(50 * time.Millisecond)
		if slices.Contains(hidden(t, dir), found) {
			return true
		}
		found = ""
		return false
	}, endLimit, 5*time.Millisecond)
	return found
}

func TestASignalEndsABenchmarkAndKeepsTheOldRows(t *testing.T) {
	onceOnly(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "rows.jsonl")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	for _, s := range endingSignals {
		p := start(t, nil, endless(path)...)
		saving(t, dir)
		require.NoError(t, p.Process.Signal(s))
		require.Equal(t, 128+int(s), p.end(t), p.stderr.String())
		require.Empty(t, hidden(t, dir))
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "old", string(b))
	}
}

func TestTheNextRunRemovesWhatAKilledOneLeft(t *testing.T) {
	onceOnly(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "rows.jsonl")
	killed := start(t, nil, endless(path)...)
	left := saving(t, dir)
	require.NoError(t, killed.Process.Kill())
	require.Equal(t, -1, killed.end(t))
	require.Equal(t, []string{left}, hidden(t, dir))
	// A process that lives keeps its file, and the dead one's goes at once.
	live := start(t, nil, endless(path)...)
	temporary := saving(t, dir, left)
	require.Equal(t, []string{temporary}, hidden(t, dir))
	code, _, stderr := call(tiny("--device", "cpu", "--save", path)...)
	require.Equal(t, exitOK, code, stderr)
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
	path := filepath.Join(dir, "rows.jsonl")
	for name, args := range map[string][]string{
		"help":         {"--help"},
		"version":      {"version"},
		"a benchmark":  tiny("--device", "cpu", "-o", "jsonl", "--save", path),
		"of many rows": tiny("--device", "cpu", "-o", "jsonl", "--save", path, "--seqlen", "1-4000+1"),
		"at the end":   tiny("--device", "cpu", "-o", "json", "--save", path),
		"verify":       tinyVerify("--device", "cpu", "-o", "jsonl", "--save", path),
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, nobodyReads(t), args...)
			require.Equal(t, exitPipe, p.end(t))
			require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
			require.Contains(t, p.stderr.String(), "broken pipe")
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, entries)
		})
	}
}

func TestASignalEndsWaitingForAPipe(t *testing.T) {
	dir, args := goodFiles(t)
	pipe := filepath.Join(dir, "o.npy")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	p := start(t, nil, args...)
	time.Sleep(500 * time.Millisecond)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, p.end(t))
	require.Empty(t, hidden(t, dir))
	require.NoFileExists(t, filepath.Join(dir, "lse.npy"))
}

func TestAPipeWhoseReaderLeavesIsOneLine(t *testing.T) {
	dir, args := goodFiles(t)
	enlarge(t, dir, 1, 256) // more than a pipe holds
	pipe := filepath.Join(dir, "o.npy")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	r, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	p := start(t, nil, args...)
	require.Eventually(t, func() bool {
		n, _ := r.Read(make([]byte, 1))
		return n > 0
	}, endLimit, time.Millisecond)
	require.NoError(t, r.Close())
	code := p.end(t)
	assert.Equal(t, exitPipe, code)
	assert.Regexp(t, `^vkattn: writing --o .*: broken pipe\n$`, p.stderr.String())
	require.Empty(t, hidden(t, dir))
	require.NoFileExists(t, filepath.Join(dir, "lse.npy"))
}
