package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
)

func TestBenchLists(t *testing.T) {
	code, stdout, stderr := call("bench", "--list", "--device", "none")
	require.Equal(t, exitOK, code, "it opens no device: %s", stderr)
	for _, p := range bench.Presets {
		require.Contains(t, stdout, "\n| "+p.Name+" ")
	}
	for _, s := range bench.Suites {
		require.Contains(t, stdout, "\n| "+s.Name+" ")
	}
	stdout, _ = succeeds(t, "bench", "--list", "--preset", "mistral-7b,bert-base", "--seqlen", "128,256", "--pass", "fwd,bwd")
	require.Regexp(t, `\n\| mistral-7b +\| +1 \| +32 \| +8 \| +256 \| +128 \| bottom-right \| bwd +\| window 4095,0 \| +32 \|\n`, stdout)
	_, stdout, _ = call("bench", "--list", "--suite", "models")
	require.Contains(t, stdout, "| small ")
}

func TestBenchOfAPreset(t *testing.T) {
	onceOnly(t)
	rows := benchRows(t, "--device", "cpu", "--preset", "gemma2-9b,bert-base", "--seqlen", "40", "--batch-size", "1", "--warmup", "0")
	require.Len(t, rows, 3)
	require.Equal(t, "gemma2-9b", rows[0].Line)
	require.Equal(t, "window 4095,0, softcap 50", rows[0].OptionText)
	require.Equal(t, 12, rows[2].Layers)
	require.Equal(t, 4, rows[2].Hq, "the command line replaces what the preset has")
	refused(t, exitInput, `unknown preset "gpt2", did you mean gpt2-small or gpt3?`, "bench", "--preset", "gpt2")
	refused(t, exitInput, `unknown suite "foward", did you mean forward?`, "bench", "--suite", "foward")
	refused(t, exitInput, "--preset and --suite exclude one another", "bench", "--preset", "short", "--suite", "forward")
}

func TestPublishedSuitesAreSmallOnACPU(t *testing.T) {
	for _, c := range []struct {
		flags  benchFlags
		small  bool
		shrunk bool
	}{
		{benchFlags{suite: "ladder"}, true, true},
		{benchFlags{suite: "ladder"}, false, false},
		{benchFlags{suite: "ladder", lists: axisTexts{"seqlen": "4096"}}, true, false}, // what is asked for is run
		{benchFlags{suite: "forward"}, true, false},
	} {
		c.flags.format = "md"
		p, err := parsedPlan(c.flags)
		require.NoError(t, err)
		p.small = c.small
		list, err := p.problems(bench.Sweep{})
		require.NoError(t, err)
		require.Equal(t, c.shrunk, p.shrunk)
		require.Equal(t, c.shrunk, list[0].Shape.B == 1)
	}
}
