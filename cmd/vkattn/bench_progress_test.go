package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
)

func TestTheProgressBarFitsTheTerminal(t *testing.T) {
	for _, width := range []int{20, 40, 60, 80, 200} {
		var out bytes.Buffer
		p := newProgress(&out, 5, 0, func() int { return width })
		require.NoError(t, p.Row(&bench.Row{Status: bench.OK, Tier: "coopmat2", TFLOPs: 300.25}))
		require.NoError(t, p.Row(&bench.Row{Status: bench.OK, Tier: "coopmat", TFLOPs: 200}))
		for range 3 {
			p.say("coopmat2 f16 d128 B16 H8 S16384: warming up " + strings.Repeat("x", 300))
			p.step()
		}
		drawn := out.String()
		p.end()
		require.Contains(t, drawn, "/5")
		if width >= 80 {
			require.Contains(t, drawn, "best 300.2 TFLOP/s (coopmat2)")
		}
		for _, line := range regexp.MustCompile(`[\r\n]`).Split(drawn, -1) {
			if width >= 40 {
				require.LessOrEqual(t, len([]rune(line)), width, "%q", line)
			}
		}
		require.NotContains(t, drawn, "\x1b[3", "no colors")
		require.Regexp(t, `^[[:ascii:]]*$`, drawn, "a terminal of the locale C has no other letters")
	}
}

func TestThereIsNoProgressOnTerminalsThatOnlyPrint(t *testing.T) {
	require.True(t, moves("xterm-256color"))
	require.False(t, moves("dumb"))
	require.False(t, moves(""))
}

func TestThereIsNoProgressOnPipes(t *testing.T) {
	a := &app{stderr: &bytes.Buffer{}}
	p := a.progress(3)
	p.say("x")
	p.step()
	require.NoError(t, p.Row(&bench.Row{Status: bench.OK, TFLOPs: 1}))
	p.end()
	require.Empty(t, a.stderr)
}
