package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/verify"
	"vkattn/internal/cases"
)

// tinyVerify is a verification of one quick problem.
func tinyVerify(more ...string) []string {
	return append([]string{"verify", "--batch-size", "1", "--nheads", "2", "--seqlen", "33", "--headdim", "8",
		"--causal", "none", "--dtype", "f16", "--seed", "9"}, more...)
}

// callTouched verifies as the command does, with a hook that sees every result.
func callTouched(t *testing.T, touch func(who string, p *cases.Problem, after [][]byte), args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var o verifyFlags
	f := pflag.NewFlagSet("verify", pflag.ContinueOnError)
	o.add(f)
	require.NoError(t, f.Parse(args[1:]))
	plan, err := o.plan()
	require.NoError(t, err)
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs}
	dev, err := a.openAny(o.device, plan.tiers, needOfTiers(plan.tiers, true), firstTier(plan.tiers))
	require.NoError(t, err)
	defer closeAny(dev)
	v := newVerifier(&o, plan, dev)
	v.Touch = touch
	code = a.exit(a.verifyWith(t.Context(), &o, plan, v))
	return code, out.String(), errs.String()
}

func TestVerifyRefusesBadFlags(t *testing.T) {
	for _, c := range [][]string{
		{"not a positive number", "--seqlen", "0"},
		{"unknown tier", "--tier", "fast"},
		{"--tier auto", "--tier", "auto"},
		{"unknown family", "--cuda-kernel", "fa9"},
		{"presets, modifiers, conformance, options", "--suite", "everything"},
		{"did you mean conformance?", "--suite", "conformanse"},
		{"--suite conformance stands alone", "--suite", "conformance,forward"},
		{"--suite options stands alone", "--suite", "decode,options"},
		{"unknown output format", "-o", "csv"},
		{"positive number", "--repeat", "0"},
		{"--timeout 0s: want a positive duration", "--timeout", "0s"},
		{"needs --suite", "--case", "x"},
		{"--case", "--suite", "conformance", "--case", "("},
		{"select no problem", "--suite", "conformance", "--case", "no such case"},
		{"ends in none", "--save", "rows.csv"},
		{"divisor", "--nheads", "3", "--nheads-kv", "2"},
		{`--mask-mod: score: at 6 of "j <= ": end in place of an expression`, "--mask-mod", "j <= "},
		{`--score-mod: score: at 5 of "s + t[h]": no table "t"`, "--score-mod", "s + t[h]"},
		{"--table t: neither --score-mod nor --mask-mod reads it", "--score-mod", "s", "--table", "t=4"},
		{"--table \"t=none.npy\": t=none.npy: no such file", "--score-mod", "s + t[h]", "--table", "t=none.npy"},
		{"--score-mod does not narrow a suite", "--suite", "forward", "--score-mod", "2 * s"},
		{"--mask-mod does not narrow a suite", "--suite", "conformance", "--mask-mod", "j <= i"},
		{"--align needs --window, --alibi, --score-mod or --mask-mod", "--align", "top-left"},
		{"--mask-mod and --ranks exclude one another", "--ranks", "2", "--mask-mod", "j <= i"},
	} {
		refused(t, exitInput, c[0], append([]string{"verify", "--device", "cpu"}, c[1:]...)...)
	}
	refused(t, exitUnsupported, "does not run on --device cpu", "verify", "--device", "cpu", "--tier", "coopmat")
}

// verify computes no options: a problem of a suite that has some is not verified without them.
func TestVerifyLeavesOutProblemsWithOptions(t *testing.T) {
	var errs bytes.Buffer
	a := &app{stderr: &errs}
	o := verifyFlags{benchFlags: benchFlags{changed: func(string) bool { return false }, suite: "decode", format: "md", lists: axisTexts{"batch-size": "1", "headdim": "128"}}, times: 1}
	p, err := o.plan()
	require.NoError(t, err)
	list, err := a.verifyProblems(p, nil, 1, true)
	require.NoError(t, err)
	require.NotEmpty(t, list)
	for i, x := range list {
		for _, y := range list[:i] {
			require.False(t, x.Shape == y.Shape && x.D == y.D && x.Causal == y.Causal && x.dtype == y.dtype, "%v is there twice", x.Shape)
		}
	}
	require.Regexp(t, `^vkattn: \d+ of \d+ problems are left out: they have options`, errs.String())
	_, err = a.withoutOptions([]bench.Problem{{LSE: true}, {Ceiling: bench.CeilingCopy}}, true, onlyBench, func(bench.Problem) bool { return false })
	require.EqualError(t, err, "all 2 problems are left out: "+onlyBench)
	require.Equal(t, exitInput, exitCode(err))
}

func TestVerifyOnTheCPU(t *testing.T) {
	saved := filepath.Join(t.TempDir(), "rows.jsonl")
	stdout, stderr := succeeds(t, tinyVerify("--device", "cpu", "--repeat", "2", "--save", saved, "--wide")...)
	require.Equal(t, "1 problem, 1 row, seed 9\n", stderr)
	require.Contains(t, stdout, "| float64   |")
	var line struct {
		verify.Row
		Run bench.RunInfo
	}
	text := readFile(t, saved)
	require.NoError(t, json.Unmarshal(text, &line))
	require.Equal(t, bench.OK, line.Status)
	require.Equal(t, "cpu", line.Who)
	require.Equal(t, 2, line.Runs)
	require.EqualValues(t, 9, line.Run.Seed)

	again, _ := succeeds(t, tinyVerify("--device", "cpu", "--repeat", "2", "--wide")...)
	require.Equal(t, stdout, again, "the seed decides everything")
}

// A result that is changed on its way is printed as FAIL, is exit code 1, and
// leaves the rows of the others as they are.
func TestVerifyFindsAWrongResult(t *testing.T) {
	code, stdout, stderr := callTouched(t, func(_ string, p *cases.Problem, after [][]byte) {
		after[cases.TensorO][2*40+1] ^= 0x40
	}, tinyVerify("--device", "cpu", "-o", "json")...)
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "\nvkattn: 1 of 1 rows are wrong: cpu, f16 d8 B1 H2 S33: ")
	rows := documentRows[verify.Row](t, stdout)
	require.Equal(t, bench.Fail, rows[0].Status)
	require.NotEmpty(t, rows[0].Reasons)

	code, stdout, _ = callTouched(t, func(_ string, p *cases.Problem, after [][]byte) {
		if p.Case.String() == "d1.none.B1.H1.1x1.tight.normal.lse" {
			after[cases.TensorLSE][3] ^= 0x40
		}
	}, "verify", "--device", "cpu", "--suite", "conformance", "--dtype", "f32", "--case", `^d1\.none\.B1\.H1|^d1\.top-left`)
	require.Equal(t, exitFailure, code)
	require.Regexp(t, `\| (implementation|who) +\| dtype \|`, stdout)
	require.Equal(t, 1, strings.Count(stdout, "| FAIL        |"), stdout)
	require.Contains(t, stdout, "d1.none.B1.H1.1x1.tight.normal.lse")
}

// modifiedVerify is a verification of calls with modifiers that read a table.
func modifiedVerify(more ...string) []string {
	return append([]string{"verify", "--batch-size", "1", "--nheads", "4", "--nheads-kv", "2", "--seqlen", "40", "--seqlen-k", "70", "--headdim", "16",
		"--causal", "none", "--dtype", "f16", "--seed", "9", "-o", "json", "--score-mod", "s + bias[h, clamp(i - j, 0, 31)]",
		"--mask-mod", "j <= i && i - j < 30", "--table", "bias=4x32"}, more...)
}

// checkModified checks the rows of modifiedVerify, and that a wrong result is found.
func checkModified(t *testing.T, where ...string) {
	stdout, _ := succeeds(t, modifiedVerify(where...)...)
	rows := documentRows[verify.Row](t, stdout)
	require.NotEmpty(t, rows)
	for _, r := range rows {
		require.Equal(t, bench.OK, r.Status, r.Note())
		require.Equal(t, "table bias=4x32, score-mod s + bias[h, min(max(i - j, 0), 31)], mask-mod j <= i && i - j < 30", r.OptionText)
		require.Equal(t, r.Of, int64(r.Float64.Rows))
	}
	code, _, stderr := callTouched(t, func(_ string, p *cases.Problem, after [][]byte) {
		after[cases.TensorO][2*100+1] ^= 0x40
	}, modifiedVerify(where...)...)
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "rows are wrong")

	stdout, _ = succeeds(t, modifiedVerify(append(where, "--pass", "bwd")...)...)
	rows = documentRows[verify.Row](t, stdout)
	for _, r := range rows {
		require.Equal(t, bench.OK, r.Status, r.Note())
		require.Contains(t, r.Gradients, "dTables[bias]")
		require.Len(t, r.Gradients, 4)
		require.Empty(t, r.Unjudged)
	}
	code, stdout, _ = callTouched(t, func(_ string, p *cases.Problem, after [][]byte) {
		after[len(after)-1][4*7+3] ^= 0x40
	}, modifiedVerify(append(where, "--pass", "bwd")...)...)
	require.Equal(t, exitFailure, code)
	require.Contains(t, stdout, "dTables[bias] versus float64: ")
}

func TestVerifyModifiersOnTheCPU(t *testing.T) {
	onceOnly(t)
	checkModified(t, "--device", "cpu")

	// The masks of two alignments differ, and both are right.
	for _, align := range []string{"top-left", "bottom-right"} {
		stdout, _ := succeeds(t, tinyVerify("--device", "cpu", "--seqlen-k", "50", "--mask-mod", "j <= i", "--align", align, "-o", "json")...)
		require.Equal(t, "mask-mod j <= i, align "+align, documentRows[verify.Row](t, stdout)[0].OptionText)
	}
	// Gradients that nothing judges are named.
	stdout, _ := succeeds(t, tinyVerify("--device", "cpu", "--pass", "bwd", "--score-mod", "s + t[j]", "--table", "t=4097")...)
	require.Contains(t, stdout, "dTables[t] not judged: it has over 4096 entries for a head")
}

func TestVerifyModifiersOnADevice(t *testing.T) {
	driver(t)
	checkModified(t, "--tier", "scalar")
}

func TestVerifyTheConformanceTable(t *testing.T) {
	stdout, _ := succeeds(t, "verify", "--device", "cpu", "--suite", "conformance", "--dtype", "f16", "--headdim", "40", "-o", "jsonl")
	require.Greater(t, strings.Count(stdout, "\n"), 2)
	for _, line := range strings.Split(strings.TrimSpace(stdout), "\n") {
		r := decoded[verify.Row](t, line)
		require.Equal(t, bench.OK, r.Status, r.Note())
		require.NotEmpty(t, r.Case)
		require.Equal(t, r.Of, int64(r.Float64.Rows))
	}
}

// Every tier of the driver under test, compared with the others.
func TestVerifyOnADevice(t *testing.T) {
	driver(t)
	code, stdout, stderr := call(tinyVerify("--dtype", "f16,f32", "--headdim", "16", "--causal", "bottom-right", "--seqlen", "40", "--seqlen-k", "70", "-o", "json", "--repeat", "2")...)
	require.Equal(t, exitOK, code, "%s\n%s", stderr, stdout)
	rows := documentRows[verify.Row](t, stdout)
	require.NotEmpty(t, rows)
	scalar := 0
	for _, r := range rows {
		if r.Who == "scalar" {
			scalar++
			require.Equal(t, bench.OK, r.Status, r.Note())
		}
		require.NotContains(t, []bench.Status{bench.Fail, bench.Broken}, r.Status)
		if r.Status == bench.OK {
			require.Equal(t, 2, r.Runs)
		}
	}
	require.Equal(t, 2, scalar)

	code, _, stderr = callTouched(t, func(_ string, p *cases.Problem, after [][]byte) {
		after[cases.TensorO][2*100+1] ^= 0x40
	}, tinyVerify("--tier", "scalar")...)
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "rows are wrong")
}

func TestVerifyGradientsOnTheCPU(t *testing.T) {
	onceOnly(t)
	args := []string{"verify", "--device", "cpu", "--pass", "bwd", "--batch-size", "1", "--nheads", "2", "--seqlen", "40", "--headdim", "16", "--dtype", "f16,f32", "--seed", "3"}
	stdout, _ := succeeds(t, append(args, "-o", "json")...)
	rows := documentRows[verify.Row](t, stdout)
	require.Len(t, rows, 4)
	for _, r := range rows {
		require.Equal(t, bench.OK, r.Status)
		require.Equal(t, bench.PassBackward, r.Pass)
		require.Len(t, r.Gradients, 3)
	}
	refused(t, exitInput, `--pass: "fwdbwd" is none of fwd, bwd`, "verify", "--device", "cpu", "--pass", "fwdbwd")
	refused(t, exitInput, `--pass: unknown pass "back"`, "bench", "--device", "cpu", "--pass", "back")
	stdout, _ = succeeds(t, "verify", "--device", "cpu", "--pass", "bwd", "--suite", conformance, "--case", `^d40\.`, "--dtype", "bf16")
	require.Contains(t, stdout, "| cpu | bf16 ")
}
