package main

import (
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/verify"
	"vkattn/vk/hostmem"
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
		{"--varlen", "65536*" + most + "/1", "--kept-ratio", "0.5"},
		{"--batch-size", most, "--seqlen", "1", "--seqlen-k", most},
		{"--batch-size", most, "--nheads", most, "--nheads-kv", "1", "--seqlen", "1"},
		{"--nheads", most, "--seqlen", most},
		{"--seqlen", most, "--block-ratio", "0.1"},
		{"--seqlen", most, "--kv-dtype", "q4_0", "--page-size", most},
		{"--seqlen", "1", "--page-size", most},
		{"--seqlen", most, "--kept-ratio", "0.001", "--sinks", "--alibi"},
		{"--seqlen", most, "--headdim", "576", "--headdim-v", "512", "--shared-kv"},
		{"--seqlen", "2000000000", "--against", "by-mask,contiguous,separate,copy", "--page-size", "16"},
		{"--batch-size", most, "--nheads", most, "--seqlen", most},
	} {
		code, stdout, stderr := call(append([]string{"bench", "--device", "cpu", "-o", "json", "--dtype", "f32", "--causal", "top-left"}, args...)...)
		require.Equal(t, exitUnsupported, code, "%v: %s", args, stderr)
		noCrash(t, code, stderr)
		var doc struct{ Rows []bench.Row }
		require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
		require.NotEmpty(t, doc.Rows)
		for _, r := range doc.Rows {
			require.Contains(t, []bench.Status{bench.OOM, bench.Unsupported}, r.Status, "%v", args)
			if r.Status == bench.OOM {
				require.Regexp(t, `needs (\d+|over 2\^64) bytes of host memory, \d+ are available`, r.Reason)
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
		code, stdout, stderr := call(tiny("--device", "cpu", "--seqlen", "33,30000000,17", "--seqlen-k", "20", "-o", format)...)
		require.Equal(t, exitOK, code, stderr)
		return stdout, stderr
	}
	stdout, stderr := sweep("json")
	require.Equal(t, "3 rows, 1 OOM, seed 9\n", stderr)
	var doc struct{ Rows []bench.Row }
	require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
	require.Len(t, doc.Rows, 3)
	for i, want := range []bench.Status{bench.OK, bench.OOM, bench.OK} {
		require.Equal(t, want, doc.Rows[i].Status)
	}
	require.Regexp(t, `needs \d+ bytes of host memory, 268435456 are available`, doc.Rows[1].Reason)
	require.NotZero(t, doc.Rows[1].Memory)

	stdout, _ = sweep("jsonl")
	require.Equal(t, 1, strings.Count(stdout, `"status":"OOM"`))
	stdout, _ = sweep("csv")
	records, err := csv.NewReader(strings.NewReader(stdout)).ReadAll()
	require.NoError(t, err)
	require.Len(t, records, 4)
	require.Contains(t, records[2], "OOM")
	stdout, _ = sweep("md")
	require.Regexp(t, `\|\s+OOM \|`, stdout)
	require.Contains(t, stdout, "| OOM: problem: needs ")
}

func TestVerifyGoesOnOverAProblemThatDoesNotFit(t *testing.T) {
	onceOnly(t)
	t.Setenv(hostmem.Variable, "64MiB")
	for format, status := range map[string]string{"md": "| OOM ", "json": `"status": "OOM"`, "jsonl": `"status":"OOM"`} {
		code, stdout, stderr := call(tinyVerify("--device", "cpu", "--seqlen", "33,30000000,17", "--seqlen-k", "20", "-o", format)...)
		require.Equal(t, exitOK, code, stderr)
		require.Equal(t, "3 problems, 3 rows, 1 OOM, seed 9\n", stderr)
		require.Equal(t, 1, strings.Count(stdout, status), stdout)
		require.Contains(t, stdout, "bytes of host memory, 67108864 are available")
	}
	code, stdout, stderr := call(tinyVerify("--device", "cpu", "--seqlen", "2147483647", "-o", "json")...)
	require.Equal(t, exitUnsupported, code)
	require.Contains(t, stderr, "no problem fits the memory: ")
	var doc struct{ Rows []verify.Row }
	require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
	require.Equal(t, bench.OOM, doc.Rows[0].Status)
}
