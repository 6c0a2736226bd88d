package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
)

func TestBenchRefusesBadOptions(t *testing.T) {
	for _, c := range [][]string{
		{"--page-size", "-1"},
		{"--page-size", "16,x"},
		{"unknown K/V type", "--kv-dtype", "int8,int4"},
		{"share above 0", "--sparse-ratio", "0"},
		{"share above 0", "--sparse-ratio", "1.5"},
		{"number from 0 to 256", "--fixed-split", "300"},
		{"want two numbers from -1 to 2147483647", "--window", "5"},
		{"want two numbers from -1 to 2147483647", "--window", "2147483648,1"},
		{"--kv-layout needs --page-size", "--kv-layout", "hnd"},
		{"--kv-layout needs --page-size", "--kv-layout", "hnd", "--page-size", "0"},
		{"--block-size needs --block-ratio", "--block-size", "32,32"},
		{"--block-size needs --block-ratio", "--block-size", "32,32", "--block-ratio", "1"},
		{"--block-size 3,16: want powers of two, at least 16", "--block-ratio", "0.5", "--block-size", "3,16"},
		{"--align needs --window, --alibi, --score-mod or --mask-mod", "--align", "top-left"},
		{"finite number above 0", "--softcap", "-1"},
		{"probability of at least 0", "--dropout", "1"},
		{"unknown baseline", "--against", "torch"},
		{"--peer needs a command", "--peer", " "},
		{"--padded needs --varlen", "--padded"},
		{"--batch-size and --varlen", "--varlen", "5,7"},
		{"neither true nor false", "--lse=1"},
		{"--lse needs --pass fwd", "--lse", "--pass", "bwd,fwdbwd"},
		{"--lse and --ranks exclude one another", "--lse", "--ranks", "2"},
		{"in whose rows it lies", "--shared-kv", "--headdim-v", "9"},
	} {
		args := c[1:]
		if c[0][0] == '-' && len(c) == 2 {
			args = c
		}
		refused(t, exitInput, c[0], tiny(append(args, "--device", "cpu")...)...)
	}
	alone := func(more ...string) []string { return append([]string{"bench", "--device", "cpu"}, more...) }
	refused(t, exitInput, "want KEYS", alone("--varlen", "5,x")...)
	refused(t, exitInput, "--seqlen-k and --varlen", alone("--varlen", "5", "--seqlen-k", "7")...)
	refused(t, exitInput, "with --varlen give one number", alone("--varlen", "5", "--seqlen", "1,2")...)
	refused(t, exitInput, "--window does not narrow a suite", alone("--suite", "decode", "--window", "5,5")...)
	refused(t, exitInput, "--varlen does not narrow a suite", alone("--suite", "serving", "--varlen", "5")...)
	refused(t, exitInput, "select no problem", alone("--suite", "decode", "--page-size", "17")...)
}

// benchRows runs the benchmark of one small problem and returns its rows.
func benchRows(t *testing.T, args ...string) []bench.Row {
	t.Helper()
	code, stdout, stderr := call(append([]string{"bench", "-o", "json", "-r", "2", "--seed", "9", "--nheads", "4", "--nheads-kv", "2", "--headdim", "32",
		"--dtype", "f16"}, args...)...)
	require.Equal(t, exitOK, code, "%s%s", stdout, stderr)
	rows := documentRows[bench.Row](t, stdout)
	for _, r := range rows {
		require.Equal(t, bench.OK, r.Status, "%s: %s", r.OptionText, r.Reason)
		if r.Baseline != bench.BaselineCopy {
			require.NotZero(t, r.Checked.Rows)
		}
	}
	return rows
}

func TestBenchOfOptions(t *testing.T) {
	onceOnly(t)
	t.Parallel()
	benchOfOptions(t, "--device", "cpu")
}

// Two rows of one kernel: what is compiled again for each option takes a CPU long.
func TestBenchOfOptionsOnADevice(t *testing.T) {
	quickDriver(t)
	rows := benchRows(t, "--tier", "scalar", "--varlen", "70,3,0", "--page-size", "16", "--causal", "bottom-right", "--against", "contiguous,separate,copy")
	require.Len(t, rows, 4)
	rows = benchRows(t, "--tier", "scalar", "--varlen", "70,3,0", "--causal", "top-left", "--lse")
	require.Len(t, rows, 1)
	require.True(t, rows[0].LSE)
	require.Positive(t, float64(rows[0].Checked.LSEError))
}

func benchOfOptions(t *testing.T, where ...string) {
	run := func(args ...string) []bench.Row { return benchRows(t, append(args, where...)...) }
	rows := run("--batch-size", "2", "--seqlen", "1", "--seqlen-k", "70", "--causal", "none", "--page-size", "0,16,1", "--kv-dtype", "same,int8",
		"--against", "by-mask,contiguous,copy")
	baselines := map[bench.Baseline]int{}
	for _, r := range rows {
		baselines[r.Baseline]++
		require.Greater(t, r.TBs, 0.0)
		if r.Baseline == "" {
			require.Contains(t, r.Versus, "copy")
			require.Equal(t, r.KV == "", r.Result != nil)
		}
		if r.Baseline == "" && r.Result != nil {
			require.Less(t, float64(r.Result.From["by-mask"]), 1e-2)
			require.Zero(t, r.Result.NaN)
			require.Equal(t, 2*4*32, r.Result.Elements)
		}
	}
	require.Equal(t, map[bench.Baseline]int{"": 6, bench.BaselineByMask: 3, bench.BaselineContiguous: 4, bench.BaselineCopy: 6}, baselines)

	rows = run("--varlen", "40,0,2*9/20", "--causal", "none,top-left", "--window", "7,3", "--softcap", "5", "--sinks", "--against", "separate,by-mask")
	require.Len(t, rows, 6)
	require.Equal(t, "window 7,3, softcap 5, packed 40/40,0/0,2*9/20, sinks", rows[0].OptionText)
	require.EqualValues(t, 4*58, rows[0].Checked.Of)

	rows = run("--seqlen", "1", "--seqlen-k", "200", "--batch-size", "2", "--causal", "bottom-right", "--sparse-ratio", "1,0.1", "--kv-dtype", "q8_0", "--alibi", "--fixed-split", "2")
	require.Len(t, rows, 2)
	require.InDelta(t, 0.1, rows[1].SparseRatio, 1e-9)
	require.Equal(t, rows[0].KVBytes, 10*rows[1].KVBytes)

	rows = run("--seqlen", "1", "--seqlen-k", "100", "--batch-size", "2", "--causal", "none", "--headdim", "96", "--headdim-v", "64", "--shared-kv")
	require.Len(t, rows, 1)
	require.EqualValues(t, 2*2*100*96*2, rows[0].KVBytes)

	rows = run("--seqlen", "40", "--batch-size", "2", "--causal", "none", "--softcap", "5", "--lse=false,true", "--pass", "fwd,bwd")
	require.Len(t, rows, 3, "a backward pass has no row without")
	require.Equal(t, []bool{false, true, false}, []bool{rows[0].LSE, rows[1].LSE, rows[2].LSE})
	require.Equal(t, "softcap 5, LSE", rows[1].OptionText)
	require.Positive(t, float64(rows[1].Checked.LSEError))
}

// Lists and presets keep their meaning with --lse: it narrows nothing.
func TestLSEOfSuitesAndPresets(t *testing.T) {
	count := func(o benchFlags) (without, with int) {
		for _, x := range planned(t, o) {
			if x.LSE {
				with++
			} else {
				without++
			}
		}
		return without, with
	}
	for _, c := range []struct {
		o             benchFlags
		without, with int
	}{
		{benchFlags{suite: "forward"}, 20, 0},
		{benchFlags{suite: "forward", lists: axisTexts{"lse": "true"}}, 0, 20},
		{benchFlags{suite: "forward", lists: axisTexts{"lse": "false,true"}}, 20, 20},
		{benchFlags{suite: "models", lists: axisTexts{"lse": "true"}}, 6, 3},
		{benchFlags{suite: "ceilings,ladder", takesCeilings: true, lists: axisTexts{"lse": "true"}}, 8, 22},
		{benchFlags{preset: "gpt3,short", lists: axisTexts{"lse": "false,true"}}, 2, 2},
	} {
		without, with := count(c.o)
		require.Equal(t, [2]int{c.without, c.with}, [2]int{without, with}, "%+v", c.o)
	}
}

func TestSuiteServingOnTheCPU(t *testing.T) {
	onceOnly(t)
	t.Parallel()
	stdout, _ := succeeds(t, "bench", "--suite", "serving", "--device", "cpu", "--seqlen", "1", "--headdim", "64", "-r", "2")
	require.Contains(t, stdout, "decode, lengths, paged")
	require.Contains(t, stdout, "| by-mask  |")
	require.Contains(t, stdout, "\nby-mask: tier scalar on padded")
}

// A value that no problem of a sweep can have is refused in one line, before any row.
func TestValuesThatNoProblemHas(t *testing.T) {
	for says, args := range map[string][]string{
		`unexpected argument "false,true": the value of --lse is written --lse=false,true`: {"--lse", "false,true"},
		"--headdim/--headdim-v is 257/257":                                                 {"--headdim", "64,257"},
		"--headdim/--headdim-v is 64/300":                                                  {"--headdim", "64", "--headdim-v", "64,300"},
		"--nheads-kv is 3, want a divisor of --nheads (8)":                                 {"--nheads", "8,4", "--nheads-kv", "1,3"},
		"--headdim/--headdim-v is 100/100, want multiples of 32":                           {"--headdim", "100", "--kv-dtype", "same,q8_0"},
		"--dropout is 0.5 with K and V of type int8":                                       {"--dropout", "0.5", "--kv-dtype", "same,int8"},
	} {
		code, stdout, stderr := call(tiny(append(args, "--device", "cpu")...)...)
		require.Equal(t, exitInput, code, "%v: %s", args, stderr)
		require.Empty(t, stdout)
		require.Contains(t, stderr, says)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
	refused(t, exitInput, "--headdim/--headdim-v is 300/300", "bench", "--preset", bench.Presets[0].Name, "--headdim", "300")
	// A value that some problem can have stays a row.
	stdout, _ := succeeds(t, tiny("--headdim", "64,320", "--headdim-v", "64,256", "--device", "cpu", "-o", "jsonl")...)
	require.Contains(t, stdout, "--headdim/--headdim-v is 320/64")
	require.Contains(t, stdout, `"status":"ok"`)
}

// Reasons of rows name flags, as refusals do.
func TestReasonsOfRowsNameFlags(t *testing.T) {
	for _, c := range []struct {
		says   string
		args   []string
		verify bool // it has the flags too
	}{
		{"--sparse-ratio is given together with --block-ratio", []string{"--sparse-ratio", "0.5", "--block-ratio", "0.5"}, false},
		{"--sparse-topk excludes --sparse-ratio", []string{"--sparse-ratio", "0.5", "--sparse-topk", "5"}, false},
		{"--nheads-kv is 3, want a divisor of --nheads (8)", []string{"--nheads", "8", "--nheads-kv", "3"}, true},
		{"--headdim/--headdim-v is 8/8, want multiples of 32 for q8_0", []string{"--headdim", "8", "--kv-dtype", "q8_0"}, false},
		{"--headdim/--headdim-v is 300/8, want each at most 256", []string{"--headdim", "300", "--headdim-v", "8"}, true},
	} {
		for _, command := range []string{"bench", "verify"} {
			if command == "verify" && !c.verify {
				continue
			}
			args := append([]string{command, "--device", "cpu", "--batch-size", "1", "--seqlen", "64", "-o", "jsonl"}, c.args...)
			for flag, value := range map[string]string{"--nheads": "2", "--headdim": "32"} {
				if !slices.Contains(args, flag) {
					args = append(args, flag, value)
				}
			}
			code, stdout, stderr := call(args...)
			require.NotEqual(t, exitOK, code)
			require.Contains(t, stdout+stderr, c.says, "%v", args)
			for _, line := range strings.Split(stdout, "\n") {
				var row struct{ Reason string }
				if json.Unmarshal([]byte(line), &row) == nil {
					noIdentifiers(t, row.Reason)
				}
			}
			noIdentifiers(t, stderr)
		}
	}
}

// What lists alone make impossible is refused before a device is opened, whatever the defaults
// of the device; the rest is not.
func TestImpossibleListsNeedNoDevice(t *testing.T) {
	for _, command := range []string{"bench", "tune", "verify", "profile"} {
		for says, args := range map[string][]string{
			"--headdim/--headdim-v is 300/300":                 {"--headdim", "300"},
			"--headdim/--headdim-v is 300/300, want":           {"--headdim-v", "300"},
			"--nheads-kv is 3, want a divisor of --nheads (8)": {"--nheads", "8", "--nheads-kv", "3"},
		} {
			code, _, stderr := call(slices.Concat([]string{command, "--device", "no such device"}, args)...)
			require.Equal(t, exitInput, code, "%s %v: %s", command, args, stderr)
			require.Contains(t, stderr, says)
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		}
	}
	for _, o := range []benchFlags{{lists: axisTexts{"nheads-kv": "3"}}, {lists: axisTexts{"headdim-v": "512"}}, {lists: axisTexts{"headdim": "576", "headdim-v": "512"}},
		{lists: axisTexts{"kv-dtype": "q8_0"}}} {
		o.format = "md"
		_, err := parsedPlan(o)
		require.NoError(t, err)
	}
}
