//go:build unix

package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/ranks"
)

// onRanks is a command over processes of this host, on the CPU tier.
func onRanks(name string, n int, more ...string) []string {
	return append([]string{name, "--ranks", strconv.Itoa(n), "--device", "cpu", "--nheads", "4", "--seqlen", "60", "--headdim", "16",
		"--causal", "bottom-right", "--dtype", "f16"}, more...)
}

// The command starts its ranks, and rank 0 alone prints and saves.
func TestVerifyOverRanks(t *testing.T) {
	saved := filepath.Join(t.TempDir(), "rows.md")
	p := start(t, nil, onRanks("verify", 3, "--parallel", "ring,allgather,auto", "--schedule", "gather", "--repeat", "2", "-o", "jsonl", "--save", saved, "--seed", "7")...)
	require.Equal(t, exitOK, p.end(t), "%s", p.stderr.String())
	require.Equal(t, "1 problem, 3 rows, 3 ranks, transport tcp, seed 7\n", p.stderr.String())
	rows := rowsOf[ranks.Row](t, p.stdout.String())
	require.Len(t, rows, 3)
	for i, mode := range []string{"ring", "allgather", "auto"} {
		r := rows[i]
		require.Equal(t, mode, r.Mode.String())
		require.Equal(t, bench.OK, r.Status)
		require.Equal(t, 3, r.Ranks)
		require.Equal(t, []string{"gather", "auto", r.Schedule.String()}[i], r.Schedule.String())
		require.NotZero(t, r.Verified.SentBytes)
		require.Equal(t, 2, r.Verified.Runs)
		require.LessOrEqual(t, r.Verified.O.Max, r.Verified.O.Limit)
	}
	table := readFile(t, saved)
	require.Contains(t, string(table), "| allgather |")
}

// A mode that cannot share the problem is a row with the reason, and the others go on.
func TestRanksRefuseAMode(t *testing.T) {
	p := start(t, nil, onRanks("verify", 3, "-o", "jsonl")...)
	require.Equal(t, exitOK, p.end(t), "%s", p.stderr.String())
	rows := rowsOf[ranks.Row](t, p.stdout.String())
	require.Len(t, rows, 3)
	require.Equal(t, bench.Unsupported, rows[1].Status)
	require.Contains(t, rows[1].Note(), "Hq")
	require.Equal(t, bench.OK, rows[2].Status)
}

// bench prints times, bytes and the time of transfers.
func TestBenchOverRanks(t *testing.T) {
	p := start(t, nil, onRanks("bench", 2, "-r", "3", "--warmup", "1ms", "-o", "jsonl")...)
	require.Equal(t, exitOK, p.end(t), "%s", p.stderr.String())
	rows := rowsOf[ranks.Row](t, p.stdout.String())
	require.Len(t, rows, 3)
	for _, r := range rows {
		x := r.Timed
		require.Equal(t, bench.OK, r.Status)
		require.Positive(t, x.Ms.Median)
		require.Positive(t, x.OneMs)
		require.Positive(t, x.Share)
		require.Equal(t, x.Planned, x.SentBytes)
		if x.ComputeMs > 0 { // the machine was not too busy for a time without transfers
			require.InDelta(t, x.Ms.Median-x.ComputeMs, x.ExposedMs, 1e-9)
		}
	}
}

// A row names its options. Flags that several ranks do not have are refused, not ignored.
func TestOptionsOverRanks(t *testing.T) {
	p := start(t, nil, onRanks("bench", 2, "-r", "1", "--warmup", "0", "--window", "5,0", "--parallel", "ring", "-o", "jsonl")...)
	require.Equal(t, exitOK, p.end(t), "%s", p.stderr.String())
	require.Equal(t, "window 5,0", rowsOf[ranks.Row](t, p.stdout.String())[0].OptionText)
	for _, flags := range [][]string{{"--page-size", "16"}, {"--kv-dtype", "int8"}, {"--sinks"}, {"--alibi"}, {"--sparse-ratio", "0.5"},
		{"--block-ratio", "0.5"}, {"--shared-kv"}, {"--timeout", "1s"}, {"--delay", "1s"}, {"--warm-cache"}, {"--of-peak"}} {
		refused(t, exitInput, flags[0]+" and --ranks exclude one another", onRanks("bench", 2, flags...)...)
	}
	refused(t, exitInput, "--timeout and --ranks exclude one another", onRanks("verify", 2, "--timeout", "1s")...)
	refused(t, exitInput, "--varlen and --ranks exclude one another", "bench", "--ranks", "2", "--device", "cpu", "--varlen", "8")
}

// --split is a list like the others: a row for each, which names it. A mode that takes none refuses it.
func TestSplitsOverRanks(t *testing.T) {
	onceOnly(t)
	splits := []string{"contiguous", "zigzag", "striped"}
	for _, pass := range []string{"fwd", "bwd"} {
		for command, flags := range map[string][]string{"verify": {"--repeat", "3"}, "bench": {"-r", "1", "--warmup", "0"}} {
			p := start(t, nil, onRanks(command, 2, append(flags, "--pass", pass, "--parallel", "ring,ulysses", "--split", strings.Join(splits, ","), "-o", "jsonl")...)...)
			require.Equal(t, exitOK, p.end(t), "%s", p.stderr.String())
			rows := rowsOf[ranks.Row](t, p.stdout.String())
			require.Len(t, rows, 2*len(splits))
			for i, r := range rows {
				require.Equal(t, bench.OK, r.Status, "%v", r.Reasons)
				require.Equal(t, splits[i%3], r.Split.String())
				require.Contains(t, r.Name(), splits[i%3])
				if command == "verify" {
					require.Equal(t, 3, r.Verified.Runs)
					continue
				}
				require.Equal(t, r.Timed.Planned, r.Timed.SentBytes)
				require.LessOrEqual(t, r.Timed.ScratchBytes, r.Timed.PlannedScratch)
				require.Positive(t, r.Timed.ScratchBytes)
			}
		}
	}
	// Without the flag, a causal mask has a zigzag split. All keys of a row of a striped one are a call of their own.
	p := start(t, nil, "verify", "--ranks", "2", "--device", "cpu", "--nheads", "2", "--seqlen", "2100", "--headdim", "8", "--causal", "none,bottom-right", "--dtype", "f16",
		"--parallel", "allgather,decode", "--split", "auto,striped", "-o", "jsonl")
	require.Equal(t, exitOK, p.end(t), "%s", p.stderr.String())
	rows := rowsOf[ranks.Row](t, p.stdout.String())
	require.Len(t, rows, 8)
	for i, want := range []struct {
		split  string
		status bench.Status
		note   string
	}{
		{"contiguous", bench.OK, ""}, {"striped", bench.OK, ""},
		{"auto", bench.OK, ""}, {"striped", bench.Unsupported, "mode decode takes no split"},
		{"zigzag", bench.OK, ""}, {"striped", bench.Unsupported, "mode allgather: its rows in this Split take more than 1024 calls"},
		{"auto", bench.OK, ""}, {"striped", bench.Unsupported, "mode decode takes no split"},
	} {
		require.Equal(t, want.status, rows[i].Status, "row %d: %v", i, rows[i].Reasons)
		require.Equal(t, want.split, rows[i].Split.String(), "row %d", i)
		require.Contains(t, rows[i].Note(), want.note)
	}
}

// --inner divides the ranks of a host into groups that share heads.
func TestGroupsOfRanks(t *testing.T) {
	onceOnly(t)
	p := start(t, nil, onRanks("verify", 4, "--parallel", "2d,ring", "--inner", "2", "-o", "jsonl")...)
	require.Equal(t, exitOK, p.end(t), "%s", p.stderr.String())
	rows := rowsOf[ranks.Row](t, p.stdout.String())
	require.Len(t, rows, 2)
	require.Equal(t, []int{2, 0}, []int{rows[0].Inner, rows[1].Inner})
	require.Contains(t, rows[0].Name(), "2d 2 x 2 of 4 ranks")
	p = start(t, nil, onRanks("verify", 4, "--parallel", "2d,ring", "--inner", "3", "-o", "jsonl")...)
	require.Equal(t, exitOK, p.end(t), "%s", p.stderr.String())
	require.Contains(t, rowsOf[ranks.Row](t, p.stdout.String())[0].Note(), "groups of 3 ranks do not divide 4")
}

// Four and eight ranks compute every mode, with two and four ranks that share heads in mode 2d, zigzag and striped.
func TestManyRanks(t *testing.T) {
	onceOnly(t)
	run := func(t *testing.T, n int, command string, flags ...string) []ranks.Row {
		t.Helper()
		p := start(t, nil, append([]string{command, "--ranks", strconv.Itoa(n), "--inner", strconv.Itoa(n / 2), "--device", "cpu", "--headdim", "8", "--dtype", "f16",
			"-o", "jsonl"}, flags...)...)
		require.Equal(t, exitOK, p.end(t), "%s", p.stderr.String())
		return rowsOf[ranks.Row](t, p.stdout.String())
	}
	const modes = "ring,ulysses,allgather,2d"
	call := []string{"--nheads", "8", "--nheads-kv", "4", "--seqlen", "90", "--seqlen-k", "110", "--causal", "none,bottom-right", "--parallel", modes}
	for _, n := range []int{4, 8} {
		for _, pass := range []string{"fwd", "bwd"} {
			rows := run(t, n, "verify", append(call, "--pass", pass, "--split", "zigzag,striped", "--repeat", "2")...)
			require.Len(t, rows, 16)
			for _, r := range rows {
				require.Equal(t, bench.OK, r.Status, "%s: %v", r.Name(), r.Reasons)
			}
			rows = run(t, n, "bench", append(call, "--causal", "bottom-right", "--pass", pass, "-r", "1", "--warmup", "0")...)
			require.Len(t, rows, 4)
			for _, r := range rows {
				require.Equal(t, bench.OK, r.Status, "%s: %v", r.Name(), r.Reasons)
				require.Equal(t, r.Timed.Planned, r.Timed.SentBytes, r.Name())
				require.Positive(t, r.Timed.Share, r.Name())
			}
		}
		// Six heads over three: groups of two and four ranks do not divide them.
		rows := run(t, n, "verify", "--nheads", "6", "--nheads-kv", "3", "--seqlen", "40", "--causal", "none", "--parallel", modes)
		for i, status := range []bench.Status{bench.OK, bench.Unsupported, bench.OK, bench.Unsupported} {
			require.Equal(t, status, rows[i].Status, "%s: %v", rows[i].Name(), rows[i].Reasons)
			if status != bench.OK {
				require.Contains(t, rows[i].Note(), "share heads")
			}
		}
		// Eight ranks have four blocks of tokens.
		for _, r := range run(t, n, "verify", "--inner", "0", "--nheads", "4", "--nheads-kv", "2", "--seqlen", "1,3", "--seqlen-k", "230", "--causal", "none,bottom-right",
			"--parallel", "decode", "--repeat", "3") {
			require.Equal(t, bench.OK, r.Status, "%s: %v", r.Name(), r.Reasons)
		}
	}
}

// One of eight ranks that is killed is named, and the others end.
func TestOneOfManyRanksIsKilled(t *testing.T) {
	onceOnly(t)
	dir := t.TempDir()
	p := start(t, nil, onRanks("verify", 8, "--repeat", "1000000", "--parallel", "ring", "--save", filepath.Join(dir, "rows.md"))...)
	until(t, "a temporary file", func() bool { return len(hidden(t, dir)) > 0 })
	list := children(p.Process.Pid)
	require.Len(t, list, 8)
	require.NoError(t, syscall.Kill(rankOf(t, p.Process.Pid, "5"), syscall.SIGKILL))
	require.Equal(t, exitFailure, p.end(t))
	require.Contains(t, p.stderr.String(), "vkattn: rank 5: left the group")
	require.Contains(t, p.stderr.String(), "vkattn: rank 5: signal: killed\n")
	require.Empty(t, hidden(t, dir))
	for _, pid := range list {
		require.Error(t, syscall.Kill(pid, 0), "a rank lives")
	}
}

// --pass bwd verifies and times gradients, and decode has none.
func TestGradientsOverRanks(t *testing.T) {
	more := []string{"--pass", "bwd", "--parallel", "ring,ulysses,allgather,decode", "-o", "jsonl"}
	for command, flags := range map[string][]string{"verify": {"--repeat", "2"}, "bench": {"-r", "3", "--warmup", "1ms"}} {
		p := start(t, nil, onRanks(command, 2, append(flags, more...)...)...)
		require.Equal(t, exitOK, p.end(t), "%s", p.stderr.String())
		rows := rowsOf[ranks.Row](t, p.stdout.String())
		require.Len(t, rows, 4)
		for _, r := range rows[:3] {
			require.Equal(t, bench.OK, r.Status, "%v", r.Reasons)
			require.Equal(t, bench.PassBackward, r.Pass)
			switch command {
			case "verify":
				require.Zero(t, r.Verified.O)
				require.Equal(t, 2, r.Verified.Runs)
				for _, d := range []ranks.Diff{r.Verified.DQ, r.Verified.DK, r.Verified.DV} {
					require.Positive(t, d.Limit)
					require.LessOrEqual(t, d.Max, d.Limit)
				}
			default:
				require.Equal(t, r.Timed.Planned, r.Timed.SentBytes)
				require.Positive(t, r.Timed.OneMs)
			}
		}
		require.Equal(t, bench.Unsupported, rows[3].Status)
		require.Contains(t, rows[3].Note(), "decode has no gradients")
	}
}

// fwdbwd sends what the plan tells of both passes, with the LSE that the gradients need.
func TestBothPassesOverRanks(t *testing.T) {
	p := start(t, nil, onRanks("bench", 2, "-r", "1", "--warmup", "0", "--pass", "fwdbwd", "--parallel", "ulysses", "-o", "jsonl")...)
	require.Equal(t, exitOK, p.end(t), "%s", p.stderr.String())
	for _, r := range rowsOf[ranks.Row](t, p.stdout.String()) {
		require.Equal(t, bench.PassBoth, r.Pass)
		require.Equal(t, r.Timed.Planned, r.Timed.SentBytes)
	}
}

// decode verifies and times few rows over a cache that is sharded by tokens.
func TestDecodeOverRanks(t *testing.T) {
	for _, command := range []string{"verify", "bench"} {
		p := start(t, nil, command, "--ranks", "3", "--device", "cpu", "--parallel", "decode", "--batch-size", "2", "--nheads", "4", "--nheads-kv", "2",
			"--seqlen", "1,3", "--seqlen-k", "1000", "--headdim", "16", "--causal", "none,bottom-right", "--dtype", "f16", "-o", "jsonl")
		require.Equal(t, exitOK, p.end(t), "%s", p.stderr.String())
		rows := rowsOf[ranks.Row](t, p.stdout.String())
		require.Len(t, rows, 4)
		for _, r := range rows {
			require.Equal(t, bench.OK, r.Status, "%v", r)
			require.True(t, r.Mode.Decode)
		}
		if command == "bench" {
			require.Equal(t, rows[0].Timed.Planned, rows[0].Timed.SentBytes)
		}
	}
}

// Processes that a launcher has started join its world.
func TestRanksJoinAWorld(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	require.NoError(t, l.Close())
	var list []*process
	for r := range 2 {
		list = append(list, start(t, func(c *exec.Cmd) {
			c.Env = append(c.Env, "RANK="+strconv.Itoa(r), "WORLD_SIZE=2", "LOCAL_RANK="+strconv.Itoa(r), "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port)
		}, onRanks("verify", 2, "-o", "jsonl")...))
	}
	for r, p := range list {
		require.Equal(t, exitOK, p.end(t), "%s", p.stderr.String())
		require.Equal(t, r == 0, p.stdout.Len() > 0)
	}
	other := start(t, func(c *exec.Cmd) {
		c.Env = append(c.Env, "RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port)
	},
		onRanks("verify", 2)...)
	require.Equal(t, exitInput, other.end(t))
	require.Contains(t, other.stderr.String(), "a world of 4 ranks")
}

// What all ranks refuse is said once.
func TestRanksReportAnErrorOnce(t *testing.T) {
	p := start(t, nil, onRanks("bench", 2, "--tier", "coopmat")...)
	require.Equal(t, exitUnsupported, p.end(t))
	require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), "%s", p.stderr.String())
	require.True(t, strings.HasPrefix(p.stderr.String(), "vkattn: tier coopmat"), "%s", p.stderr.String())
}

// A rank that is killed ends the others, and is named. A signal ends all.
func TestARankThatIsKilled(t *testing.T) {
	// together waits until both ranks have joined: each has mapped the memory of both.
	together := func(p *process) (list []int) {
		until(t, "both ranks have joined", func() bool {
			list = children(p.Process.Pid)
			joined := 0
			for _, pid := range list {
				text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
				if strings.Count(string(text), "memfd:vkattn") >= 2 {
					joined++
				}
			}
			return joined == 2
		})
		return list
	}
	p := start(t, nil, onRanks("verify", 2, "--repeat", "1000000", "--parallel", "ring")...)
	for _, pid := range together(p) {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if strings.Contains("\x00"+string(text), "\x00RANK=1\x00") {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	require.Equal(t, exitFailure, p.end(t))
	require.Contains(t, p.stderr.String(), "vkattn: rank 1: left the group")
	require.Contains(t, p.stderr.String(), "vkattn: rank 1: signal: killed\n")

	p = start(t, nil, onRanks("verify", 2, "--repeat", "1000000", "--parallel", "ring")...)
	list := together(p)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	require.Equal(t, exitSignal+int(syscall.SIGTERM), p.end(t))
	for _, pid := range list {
		require.Error(t, syscall.Kill(pid, 0), "a rank lives")
	}
}

// children are the processes that a process has started.
func children(pid int) (list []int) {
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	for _, file := range tasks {
		text, _ := os.ReadFile(file)
		for _, word := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(word); err == nil {
				list = append(list, n)
			}
		}
	}
	return list
}

func TestRanksRefuseBadFlags(t *testing.T) {
	for _, name := range []string{"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"} {
		t.Setenv(name, "")
		require.NoError(t, os.Unsetenv(name))
	}
	for _, c := range [][]string{
		{"1 to 1024", "verify", "--ranks", "-1"},
		{"unknown mode", "verify", "--ranks", "2", "--parallel", "star"},
		{"unknown transport", "bench", "--ranks", "2", "--transport", "mpi"},
		{"unknown schedule", "bench", "--ranks", "2", "--schedule", "later"},
		{"needs --ranks", "bench", "--parallel", "ring"},
		{"needs --ranks", "verify", "--transport", "tcp"},
		{"needs --ranks", "bench", "--schedule", "gather"},
		{"needs --ranks", "verify", "--split", "striped"},
		{"needs --ranks", "bench", "--inner", "2"},
		{"unknown order", "verify", "--ranks", "2", "--split", "random"},
		{"1 to 1024", "verify", "--ranks", "2", "--parallel", "2d", "--inner", "-1"},
		{"--inner needs --parallel 2d", "verify", "--ranks", "2", "--inner", "2"},
		{"--peer and --ranks", "bench", "--ranks", "2", "--peer", "true"},
		{"unknown output format", "bench", "--ranks", "2", "-o", "csv"},
		{"not a positive number", "verify", "--ranks", "2", "--seqlen", "0"},
	} {
		refused(t, exitInput, c[0], c[1:]...)
	}
}
