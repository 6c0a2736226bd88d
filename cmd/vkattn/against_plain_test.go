//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/hostmem"
)

// Plain attention is a row of the table, as each tier is: verified, timed, with the memory of its scores
// and the tier's speed relative to it. Where the scores do not fit it is an OOM row, and the
// run goes on.
func TestPlainAttentionIsARowOfTheTable(t *testing.T) {
	driver(t)
	const large = 1024
	run := func(lengths, memory string) (rows []bench.Row) {
		t.Helper()
		t.Setenv(hostmem.Variable, memory)
		_, stdout, _ := call(tiny("--tier", "scalar", "--seqlen", lengths, "--against", "plain", "-o", "json")...)
		return documentRows[bench.Row](t, stdout)
	}
	scores := func(r *bench.Row) uint64 { return 2 * 4 * uint64(r.Sq) * uint64(r.Sk) } // 2 heads, 4 bytes
	// What the tier's row needs, from its refusal, whose number is rounded. The scores need more.
	refused := run(strconv.Itoa(large), "1KiB")[0]
	require.Equal(t, bench.OOM, refused.Status)
	found := regexp.MustCompile(`needs (\d+) MiB`).FindStringSubmatch(refused.Reason)
	require.Len(t, found, 2, refused.Reason)
	needs, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	rows := run(fmt.Sprintf("65,%d,33", large), fmt.Sprintf("%dMiB", needs+1))
	require.Len(t, rows, 6)
	for i := 0; i < len(rows); i += 2 {
		tier, plain := rows[i], rows[i+1]
		require.Equal(t, bench.OK, tier.Status, tier.Reason)
		require.Equal(t, bench.BaselinePlain, plain.Baseline)
		require.GreaterOrEqual(t, plain.Memory-tier.Memory, scores(&plain))
		require.Less(t, plain.Memory-tier.Memory, scores(&plain)+1<<16, "scores, and little else")
		if plain.Sq == large {
			require.Equal(t, bench.OOM, plain.Status)
			require.Regexp(t, `needs [\d.]+ [KMGT]iB of host memory`, plain.Reason)
			require.Empty(t, tier.Versus)
			continue
		}
		require.Equal(t, bench.OK, plain.Status, plain.Reason)
		require.NotNil(t, plain.Checked, "compared with the reference")
		require.InEpsilon(t, plain.Ms.Median/tier.Ms.Median, tier.Versus[string(bench.BaselinePlain)], 1e-9)
	}
}

// cells are the cells of a Markdown table by the names of their columns.
func cells(t *testing.T, table string) (out []map[string]string) {
	t.Helper()
	var names []string
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "|") {
			if names == nil { // above the table
				continue
			}
			break
		}
		fields := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range fields {
			fields[i] = strings.TrimSpace(fields[i])
		}
		switch {
		case names == nil:
			names = fields
			continue
		case strings.Trim(fields[0], ":-") == "":
			continue
		}
		row := map[string]string{}
		for i, name := range names {
			row[name] = fields[i]
		}
		out = append(out, row)
	}
	return out
}

// Ctrl-C keeps the rows of the problems that are done, with the speedup over plain attention.
// The rows that follow would take minutes.
func TestAnInterruptedRunAgainstPlainKeepsWhatItMeasured(t *testing.T) {
	driver(t)
	dir := t.TempDir()
	program, err := filepath.Abs(os.Args[0])
	require.NoError(t, err)
	args := append(strings.Fields(os.Getenv("VKATTN_EXEC")), program)
	args = append(args, tiny("--tier", "scalar", "--seqlen", "33,1000000", "--against", "plain", "--warmup", "10ms", "-o", "jsonl",
		"--save", filepath.Join(dir, "rows.md"))...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "VKATTN_TEST_IS_COMMAND=1")
	stdout, stderr := interruptAfterARow(t, syscall.SIGINT, cmd, func() {}) // and demands exit code 130
	require.Contains(t, stderr, "2 of 4 rows, seed 9\n")
	require.Contains(t, stderr, "vkattn: interrupted\n")
	var rows []bench.Row
	for line := range strings.Lines(stdout) {
		r := decoded[bench.Row](t, line)
		rows = append(rows, r)
	}
	require.Len(t, rows, 4)
	for i, want := range []bench.Status{bench.OK, bench.OK, bench.Interrupted, bench.Interrupted} {
		require.Equal(t, want, rows[i].Status, rows[i].Reason)
	}
	onlyFiles(t, dir, "rows.md")
	table := readFile(t, filepath.Join(dir, "rows.md"))
	lines := cells(t, string(table))
	require.Len(t, lines, 4)
	speedup, err := strconv.ParseFloat(lines[0]["x plain"], 64)
	require.NoError(t, err)
	require.InDelta(t, rows[1].Ms.Median/rows[0].Ms.Median, speedup, 0.001)
	require.Equal(t, "plain", lines[1]["tier"])
	require.Equal(t, "1.000", lines[1]["x plain"])
	for _, line := range lines[2:] {
		require.Equal(t, "-", line["x plain"])
		require.Equal(t, "interrupted", line["verdict"])
	}
}
