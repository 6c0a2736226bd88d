package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/verify"
	"vkattn/internal/hostmem"
)

// noCrash checks what holds of every failure, however large the numbers are.
func noCrash(t *testing.T, code int, stderr string) {
	t.Helper()
	require.Contains(t, []int{exitInput, exitUnsupported}, code, stderr)
	require.NotContains(t, stderr, "internal error")
	require.NotContains(t, stderr, "goroutine")
}

func TestNumbersOfAnySizeAreRefusedInOneLine(t *testing.T) {
	const most = "9223372036854775807"
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{exitInput, "-r " + most + ": want a positive number up to 1000000", []string{"bench", "-r", most}},
		{exitInput, "value out of range", []string{"bench", "-r", most + "0"}},
		{exitInput, "--repeat " + most + ": want a positive number up to 1000000", []string{"verify", "--repeat", most}},
		{exitInput, "--batch-size: \"" + most + "\": " + most + " is over 2147483647", []string{"bench", "--batch-size", most}},
		{exitInput, "--nheads: ", []string{"verify", "--nheads", most}},
		{exitInput, "1000000000000000000 is over", []string{"bench", "--seqlen", "1-1000000000000000000+1"}},
		{exitInput, "over 4096 values", []string{"bench", "--seqlen", "1-2147483647+1"}},
		{exitInput, "is over 2147483647", []string{"tune", "--seqlen-k", "2-" + most + "*2"}},
		{exitInput, "over 10000 problems", []string{"bench", "--seqlen", "1-4000+1", "--nheads", "1-4000+1", "--batch-size", "1-4000+1", "--headdim", "1-4000+1", "--seqlen-k", "1-4000+1"}},
		{exitInput, "over 10000 problems", []string{"bench", "--page-size", "1,2,3,4,5,6,7,8,9,10,11", "--seqlen", "1-1000+1"}},
		{exitInput, "1 to 65536 sequences", []string{"bench", "--varlen", "2147483647*1/1"}},
		{exitInput, most + " is over 2147483647", []string{"bench", "--varlen", most + "*1/1"}},
		{exitInput, "value out of range", []string{"tune", "--candidates", most + "0"}},
		{exitInput, "is not a number from 0 to", []string{"bench", "--page-size", most}},
		{exitInput, "is not a number from 0 to", []string{"bench", "--fixed-split", most}},
		{exitInput, "two numbers", []string{"bench", "--window", most + ",1"}},
	} {
		refused(t, c.code, c.want, append(c.args, "--device", "cpu")...)
	}
}

func TestProblemsOfAnySizeAreRowsWithoutASpeed(t *testing.T) {
	const most = "2147483647"
	for _, args := range [][]string{
		{"--varlen", "1000*2000000000/2000000000"},
		{"--varlen", "65536*" + most + "/" + most, "--padded", "--page-size", "16"},
		{"--varlen", "65536*" + most + "/1", "--sparse-ratio", "0.5"},
		{"--batch-size", most, "--seqlen", "1", "--seqlen-k", most},
		{"--batch-size", most, "--nheads", most, "--nheads-kv", "1", "--seqlen", "1"},
		{"--nheads", most, "--seqlen", most},
		{"--seqlen", most, "--block-ratio", "0.1"},
		{"--seqlen", most, "--kv-dtype", "q4_0", "--page-size", most},
		{"--seqlen", "1", "--page-size", most},
		{"--seqlen", most, "--sparse-ratio", "0.001", "--sinks", "--alibi"},
		{"--seqlen", most, "--headdim", "576", "--headdim-v", "512", "--shared-kv"},
		{"--seqlen", "2000000000", "--against", "by-mask,contiguous,separate,copy", "--page-size", "16"},
		{"--batch-size", most, "--nheads", most, "--seqlen", most},
	} {
		code, stdout, stderr := call(append([]string{"bench", "--device", "cpu", "-o", "json", "--dtype", "f32", "--causal", "top-left"}, args...)...)
		require.Equal(t, exitUnsupported, code, "%v: %s", args, stderr)
		noCrash(t, code, stderr)
		rows := documentRows[bench.Row](t, stdout)
		require.NotEmpty(t, rows)
		for _, r := range rows {
			require.Contains(t, []bench.Status{bench.OOM, bench.Unsupported}, r.Status, "%v", args)
			if r.Status == bench.OOM {
				require.Regexp(t, `needs (over )?[\d.]+ [KMGTPE]iB of host memory, [\d.]+ [KMGTPE]iB are available`, r.Reason)
			}
		}
	}
}

// A sweep goes on: the rows in front of, and behind, the one that is too large have
// their speeds, and the row is there in every format.
func TestASweepGoesOnOverARowThatDoesNotFit(t *testing.T) {
	onceOnly(t)
	t.Setenv(hostmem.Variable, "256MiB")
	sweep := func(format string) (string, string) {
		stdout, stderr := succeeds(t, tiny("--device", "cpu", "--seqlen", "33,30000000,17", "--seqlen-k", "20", "-o", format)...)
		return stdout, stderr
	}
	stdout, stderr := sweep("json")
	require.Equal(t, "3 rows, 1 OOM, seed 9\n", stderr)
	rows := documentRows[bench.Row](t, stdout)
	require.Len(t, rows, 3)
	for i, want := range []bench.Status{bench.OK, bench.OOM, bench.OK} {
		require.Equal(t, want, rows[i].Status)
	}
	require.Regexp(t, `needs [\d.]+ GiB of host memory, 256 MiB are available`, rows[1].Reason)
	require.NotZero(t, rows[1].Memory)

	stdout, _ = sweep("jsonl")
	require.Equal(t, 1, strings.Count(stdout, `"status":"OOM"`))
	stdout, _ = sweep("csv")
	records, err := csv.NewReader(strings.NewReader(stdout)).ReadAll()
	require.NoError(t, err)
	require.Len(t, records, 4)
	require.Contains(t, records[2], "OOM")
	stdout, _ = sweep("md")
	require.Regexp(t, `\| OOM +\|`, stdout)
	require.Contains(t, stdout, ": OOM: problem: needs ")
	require.Regexp(t, `needs [\d.]+ GiB of host memory, 256 MiB are available`, stdout)
}

func TestVerifyGoesOnOverAProblemThatDoesNotFit(t *testing.T) {
	onceOnly(t)
	t.Setenv(hostmem.Variable, "64MiB")
	for format, status := range map[string]string{"md": "| OOM ", "json": `"status": "OOM"`, "jsonl": `"status":"OOM"`} {
		stdout, stderr := succeeds(t, tinyVerify("--device", "cpu", "--seqlen", "33,30000000,17", "--seqlen-k", "20", "-o", format)...)
		require.Equal(t, "3 problems, 3 rows, 1 OOM, seed 9\n", stderr)
		require.Equal(t, 1, strings.Count(stdout, status), stdout)
		require.Contains(t, stdout, "iB of host memory, 64 MiB are available")
	}
	code, stdout, stderr := call(tinyVerify("--device", "cpu", "--seqlen", "2147483647", "-o", "json")...)
	require.Equal(t, exitUnsupported, code)
	require.Contains(t, stderr, "no problem fits the memory: ")
	rows := documentRows[verify.Row](t, stdout)
	require.Equal(t, bench.OOM, rows[0].Status)
}

// sparseFile is a .npy file of zeros that takes no room on the disk.
func sparseFile(t *testing.T, dir, name, descr string, shape ...int) {
	t.Helper()
	head := npyBytes(descr, false, shape, nil)
	size := int64(descr[2] - '0')
	for _, n := range shape {
		size *= int64(n)
	}
	path := filepath.Join(dir, name+".npy")
	require.NoError(t, os.WriteFile(path, head, 0o644))
	require.NoError(t, os.Truncate(path, int64(len(head))+size))
}

// Files of terabytes without a block on the disk are refused by their headers.
func TestRunRefusesFilesLargerThanMemory(t *testing.T) {
	at := func(dir string, names ...string) (args []string) {
		for _, n := range names {
			args = append(args, "--"+n, filepath.Join(dir, n+".npy"))
		}
		return args
	}
	for name, c := range map[string]struct {
		files func(dir string)
		more  []string
	}{
		"Q": {func(dir string) { sparseFile(t, dir, "q", "<f2", 2, 4, 1<<28, 8) }, nil},
		"K": {func(dir string) {
			sparseFile(t, dir, "k", "<f2", 2, 2, 1<<28, 8)
			sparseFile(t, dir, "v", "<f2", 2, 2, 1<<28, 3)
		}, nil},
		"cu-seqlens-q": {func(dir string) {
			sparseFile(t, dir, "q", "<f2", 5, 4, 8)
			sparseFile(t, dir, "cu-seqlens-q", "<i8", 1<<31)
		}, []string{"cu-seqlens-q"}},
		"mask": {func(dir string) {
			sparseFile(t, dir, "mask", "|u1", 2, 4, 1<<20, 6)
			sparseFile(t, dir, "q", "<f2", 2, 4, 1<<20, 8)
		}, []string{"mask"}},
		"block-table": {func(dir string) {
			sparseFile(t, dir, "block-table", "<i4", 2, 1<<30)
			sparseFile(t, dir, "k", "<f2", 2, 6, 2, 8)
			sparseFile(t, dir, "v", "<f2", 2, 6, 2, 3)
		}, []string{"block-table"}},
		"O": {func(dir string) {
			sparseFile(t, dir, "q", "<f2", 2, 4, 1<<20, 8)
			sparseFile(t, dir, "v", "<f2", 2, 2, 6, 256)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(hostmem.Variable, "100MiB")
			dir, args := goodFiles(t)
			c.files(dir)
			got, stdout, stderr := call(append(args, at(dir, c.more...)...)...)
			require.Equal(t, exitUnsupported, got, stderr)
			require.Empty(t, stdout)
			require.Regexp(t, `^vkattn: problem: needs [\d.]+ [KMGT]iB of host memory, 100 MiB are available \(VKATTN_HOST_MEMORY\)\n$`, stderr)
			require.NoFileExists(t, filepath.Join(dir, "o.npy"))
		})
	}
	t.Run("this machine", func(t *testing.T) {
		dir, args := goodFiles(t)
		sparseFile(t, dir, "q", "<f2", 2, 4, 1<<30, 256)
		sparseFile(t, dir, "k", "<f2", 2, 2, 6, 256)
		refused(t, exitUnsupported, "problem: needs ", args...)
	})
}

// The memory that a run is checked for is no less than what it allocates.
func TestRunNeedsWhatItAllocates(t *testing.T) {
	onceOnly(t)
	dir, args := goodFiles(t)
	sparseFile(t, dir, "q", "<f2", 2, 4, 5000, 64)
	sparseFile(t, dir, "k", "<f2", 2, 2, 600, 64)
	sparseFile(t, dir, "v", "<f2", 2, 2, 600, 64)
	const o, q, kv, lse = 2 * 4 * 5000 * 64, 2 * 4 * 5000 * 64, 2 * 2 * 600 * 64, 2 * 4 * 5000
	const needed = 2*(q+2*kv+o) + 4*lse + 4*o
	t.Setenv(hostmem.Variable, "1")
	refused(t, exitUnsupported, "needs "+hostmem.Bytes(needed)+" of host memory, 1 B are available", args...)
	t.Setenv(hostmem.Variable, fmt.Sprint(needed))
	succeeds(t, args...)
	t.Setenv(hostmem.Variable, fmt.Sprint(needed-1))
	refused(t, exitUnsupported, "needs", with(args, "--o", filepath.Join(dir, "other.npy"))...)
}

// Rows of gradients of any size are refused before anything is allocated, and a sweep goes
// on over one that does not fit.
func TestGradientsOfAnySizeAreRows(t *testing.T) {
	const most = "2147483647"
	for _, args := range [][]string{
		{"--seqlen", most},
		{"--batch-size", most, "--nheads", most, "--seqlen", most},
		{"--varlen", "65536*" + most + "/" + most},
		{"--seqlen", most, "--headdim", "256", "--headdim-v", "128", "--shared-kv"},
	} {
		for _, verb := range []string{"bench", "verify"} {
			if verb == "verify" && (args[0] != "--seqlen" || len(args) > 2) {
				continue
			}
			code, stdout, stderr := call(append([]string{verb, "--device", "cpu", "--pass", "bwd", "-o", "json", "--dtype", "f32", "--causal", "top-left"}, args...)...)
			require.Equal(t, exitUnsupported, code, "%s %v: %s", verb, args, stderr)
			noCrash(t, code, stderr)
			require.Regexp(t, `"status": "(OOM|unsupported)"`, stdout, "%s %v", verb, args)
			require.NotContains(t, stdout, `"ok"`)
		}
	}
	onceOnly(t)
	t.Setenv(hostmem.Variable, "256MiB")
	stdout, stderr := succeeds(t, tiny("--device", "cpu", "--pass", "bwd", "--seqlen", "33,10000000,17", "--seqlen-k", "20", "-o", "jsonl")...)
	require.Equal(t, "3 rows, 1 OOM, seed 9\n", stderr)
	require.Equal(t, 3, strings.Count(stdout, "\n"))
}
