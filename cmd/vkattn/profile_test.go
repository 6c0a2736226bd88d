package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
)

func TestProfileOfOneProblem(t *testing.T) {
	driver(t)
	trace := filepath.Join(t.TempDir(), "trace.json")
	args := []string{"profile", "--tier", "scalar", "--nheads", "1", "--seqlen", "1", "--seqlen-k", "64", "--headdim", "8", "--fixed-split", "2", "-r", "1"}
	code, stdout, stderr := call(append(args, "-o", "json", "--trace", trace)...)
	if code == exitUnsupported {
		require.Contains(t, stderr, "timestamps")
		t.Skip(stderr)
	}
	require.Equal(t, exitOK, code, stderr)
	p := decoded[bench.Profile](t, stdout)
	require.Len(t, p.Dispatches, 2, "the splits and their combination")
	for _, d := range p.Dispatches {
		require.NotEmpty(t, d.Pipeline)
		require.NotZero(t, d.LocalSize)
		require.LessOrEqual(t, d.MinUs, d.Us)
	}
	require.NotEmpty(t, p.Bound)
	require.Positive(t, p.Ceilings.CopyTBs)
	if p.Ceilings.DispatchUs > 0 { // the device has the kernels that measure it
		require.Positive(t, p.Ceilings.PeakTFLOPs)
		require.Positive(t, p.OfPeak)
		require.False(t, p.Ceilings.PeakGiven)
	}
	require.Equal(t, bench.OK, p.Row.Status)

	text := readFile(t, trace)
	var events struct {
		TraceEvents []struct {
			Ph string
			Ts float64
		}
	}
	require.NoError(t, json.Unmarshal(text, &events))
	complete := 0
	last := -1.0
	for _, e := range events.TraceEvents {
		if e.Ph == "X" {
			complete++
			require.GreaterOrEqual(t, e.Ts, last, "in the order of time")
			last = e.Ts
		}
	}
	require.Equal(t, 20, complete, "two dispatches of ten runs")

	var out strings.Builder
	require.NoError(t, printProfile(&out, &p))
	require.Contains(t, out.String(), "bound by "+p.Bound)
	require.Contains(t, out.String(), p.Dispatches[1].Pipeline)
	require.NotContains(t, out.String(), "(given)")

	stdout, _ = succeeds(t, "profile", "--preset", "gpt3", "--tier", "scalar", "--batch-size", "1", "--nheads", "1", "--seqlen", "16", "--headdim", "8", "--run-once", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(stdout), &p))
	require.Len(t, p.Row.Samples, 1)
	require.True(t, p.Run.Timing.Once)

	stdout, _ = succeeds(t, append(args, "--peak-tflops", "2")...)
	require.Contains(t, strings.Join(strings.Fields(stdout), " "), "products 2 TFLOP/s (given)")
}

// The page of profile says that it takes the flags of bench but for these.
func TestProfileTakesTheFlagsOfBench(t *testing.T) {
	flags := func(name string) *pflag.FlagSet {
		c, _, err := (&app{}).root().Find([]string{name})
		require.NoError(t, err)
		c.InheritedFlags() // adds them to Flags
		return c.Flags()
	}
	page := sourceFile(t, "docs/profiling.md")
	_, without, _ := strings.Cut(string(page), "`profile` takes the flags of `bench` except ")
	without, _, found := strings.Cut(without, ". ")
	require.True(t, found)
	profile := flags("profile")
	flags("bench").VisitAll(func(f *pflag.Flag) {
		if strings.Contains(without, "`--"+f.Name+"`") {
			require.Nil(t, profile.Lookup(f.Name), f.Name)
			return
		}
		has := profile.Lookup(f.Name)
		require.NotNil(t, has, "--%s", f.Name)
		require.Equal(t, f.Value.Type(), has.Value.Type(), "--%s", f.Name)
		require.Equal(t, f.Shorthand, has.Shorthand, "--%s", f.Name)
	})
}

// Problems are named as in bench.
func TestCommandsNameProblemsAlike(t *testing.T) {
	var bench benchFlags
	want := pflag.NewFlagSet("", pflag.ContinueOnError)
	bench.problemFlags(want)
	for _, name := range []string{"batch-size", "seqlen-k", "causal", "preset", "suite", "device"} {
		require.NotNil(t, want.Lookup(name), name)
	}
	for _, name := range []string{"bench", "verify", "tune", "profile"} {
		c, _, err := (&app{}).root().Find([]string{name})
		require.NoError(t, err)
		want.VisitAll(func(f *pflag.Flag) { require.NotNil(t, c.Flags().Lookup(f.Name), "%s --%s", name, f.Name) })
	}
}

func TestProfileRefuses(t *testing.T) {
	for says, args := range map[string][]string{
		"a profile is of one tier":      {"--tier", "scalar,coopmat"},
		"a profile is of one tile":      {"--tile", "", "--tile", "kv_tile=32"},
		"--bwd-tile: a profile":         {"--pass", "bwd", "--bwd-tile", "", "--bwd-tile", "kv.row_tile=48"},
		"--variant: a profile":          {"--variant", "all"},
		"--warmup -1s":                  {"--warmup", "-1s"},
		"unknown preset":                {"--preset", "none"},
		"--preset and --suite exclude":  {"--preset", "gpt3", "--suite", "forward"},
		"only vkattn bench measures it": {"--suite", "ceilings"},
		`--tier: "cpu" is none of auto, no-cuda, scalar, coopmat, coopmat2, cubin`: {"--tier", "cpu"},
		"-r 0":                          {"-r", "0"},
		"--peak-tflops -1":              {"--peak-tflops", "-1"},
		"--peak-tflops +Inf":            {"--peak-tflops", "inf"},
		"--peak-tflops NaN":             {"--peak-tflops", "nan"},
		"unknown output format \"csv\"": {"-o", "csv"},
		"--seqlen":                      {"--seqlen", "x"},
	} {
		refused(t, exitInput, says, append([]string{"profile"}, args...)...)
	}
	driver(t)
	refused(t, exitInput, "the flags give 2 problems", "profile", "--seqlen", "8,16")
	refused(t, exitInput, "the flags give 2 problems", "profile", "--preset", "gpt3,short")
	refused(t, exitInput, "--trace none/t.json", "profile", "--seqlen", "8", "--trace", "none/t.json")
	refused(t, exitInput, "--headdim/--headdim-v is 300", "profile", "--seqlen", "8", "--headdim", "300")
}
