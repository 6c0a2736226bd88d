//go:build unix

package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/ranks"
	"vkattn/internal/atomicfile"
)

// ownGroup starts a command in a process group of its own, as timeout and shells do.
func ownGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// rankOf waits for the process of a rank that a command has started.
func rankOf(t *testing.T, parent int, rank string) (pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, p := range children(parent) {
			text, _ := os.ReadFile("/proc/" + strconv.Itoa(p) + "/environ")
			if strings.Contains("\x00"+string(text), "\x00RANK="+rank+"\x00") {
				pid = p
			}
		}
		return pid > 0
	}, endLimit, 10*time.Millisecond)
	return pid
}

// However ranks end, no temporary file stays, and no rank lives on. A terminal and timeout send a signal to all
// processes, and the command passes it on: that is one request, and finished rows are saved.
func TestRanksThatEndEarlyLeaveNoTemporaryFile(t *testing.T) {
	onceOnly(t)
	group := func(s syscall.Signal) func(*testing.T, int) {
		return func(t *testing.T, pid int) { require.NoError(t, syscall.Kill(-pid, s)) }
	}
	kill := func(rank string) func(*testing.T, int) {
		return func(t *testing.T, pid int) { require.NoError(t, syscall.Kill(rankOf(t, pid, rank), syscall.SIGKILL)) }
	}
	commands := map[string][]string{
		"verify": {"--repeat", "1000000"},
		"bench":  {"-r", "1", "--warmup", "1h"},
	}
	for _, x := range []struct {
		name string
		end  func(t *testing.T, pid int)
		code int
	}{
		{"SIGINT to all", group(syscall.SIGINT), 130},
		{"SIGTERM to all", group(syscall.SIGTERM), 143},
		{"SIGTERM", func(t *testing.T, pid int) { require.NoError(t, syscall.Kill(pid, syscall.SIGTERM)) }, 143},
		{"SIGHUP", func(t *testing.T, pid int) { require.NoError(t, syscall.Kill(pid, syscall.SIGHUP)) }, 129},
		{"rank 0 killed", kill("0"), exitFailure},
		{"rank 1 killed", kill("1"), exitFailure},
	} {
		for command, flags := range commands {
			if command == "bench" && !strings.HasPrefix(x.name, "SIGINT") && !strings.HasPrefix(x.name, "rank 0") {
				continue // the same code
			}
			t.Run(command+", "+x.name, func(t *testing.T) {
				dir := t.TempDir()
				p := start(t, ownGroup, onRanks(command, 2, append(flags, "--parallel", "ring", "--save", filepath.Join(dir, "rows.jsonl"))...)...)
				until(t, "a temporary file", func() bool { return len(hidden(t, dir)) > 0 })
				ranks := children(p.Process.Pid)
				x.end(t, p.Process.Pid)
				require.Equal(t, x.code, p.end(t), p.stderr.String())
				require.Empty(t, hidden(t, dir))
				for _, pid := range ranks {
					require.Error(t, syscall.Kill(pid, 0), "a rank lives")
				}
				require.LessOrEqual(t, strings.Count(p.stderr.String(), "vkattn: interrupted\n"), 1, p.stderr.String())
			})
		}
	}
}

// The first row is finished when the signal comes, the second one never is.
func TestInterruptedRanksSaveFinishedRows(t *testing.T) {
	onceOnly(t)
	for name, to := range map[string]int{"to all": -1, "to the command": 1} {
		t.Run(name, func(t *testing.T) {
			saved := filepath.Join(t.TempDir(), "rows.jsonl")
			var lines *bufio.Reader
			p := start(t, func(c *exec.Cmd) {
				ownGroup(c)
				c.Stdout = nil
				out, err := c.StdoutPipe()
				require.NoError(t, err)
				lines = bufio.NewReader(out)
			}, "verify", "--ranks", "2", "--device", "cpu", "--nheads", "1", "--seqlen", "16,150000", "--headdim", "16", "--causal", "none", "--dtype", "f16",
				"--parallel", "ring", "-o", "jsonl", "--save", saved)
			first, err := lines.ReadString('\n')
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(to*p.Process.Pid, syscall.SIGINT))
			require.Equal(t, 130, p.end(t), p.stderr.String())
			text := readFile(t, saved)
			rows := rowsOf[ranks.Row](t, text)
			require.Len(t, rows, 1)
			require.Equal(t, bench.OK, rows[0].Status)
			require.Equal(t, rows, rowsOf[ranks.Row](t, first))
			onlyFiles(t, filepath.Dir(saved), "rows.jsonl")
		})
	}
}

// A second request ends every wait, and temporary files go all the same. A signal that comes at once after the
// first is the same request.
func TestASecondSignalRemovesTemporaryFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		var stderr strings.Builder
		a := &app{stdout: &stderr, stderr: &stderr}
		var set atomicfile.Set
		_, err := set.Add(filepath.Join(dir, "rows.jsonl"))
		require.NoError(t, err)
		a.flushed(&set) // the command never returns
		signals, code := make(chan os.Signal), make(chan int)
		go func() { code <- a.ended(syscall.SIGINT, signals, make(chan error)) }()
		signals <- syscall.SIGTERM
		select {
		case <-code:
			t.Fatal("took one request for two")
		case <-time.After(grace + grace/2):
		}
		require.Len(t, hidden(t, dir), 1)
		signals <- syscall.SIGINT
		require.Equal(t, 130, <-code)
		require.Empty(t, hidden(t, dir))
		time.Sleep(2 * flushTime) // every wait of the command ends
	})
}
