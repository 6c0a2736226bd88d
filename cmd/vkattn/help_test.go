package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/cmd/vkattn/internal/verify"
)

// No help is wider than a table. That of bench is one screen, and names every flag: with a line, or with the page that explains it.
func TestTheHelpOfBenchIsShort(t *testing.T) {
	for _, c := range (&app{}).root().Commands() {
		_, stdout, _ := call(c.Name(), "--help")
		for line := range strings.Lines(stdout) {
			require.LessOrEqual(t, len(line)-1, markdown.Width, "%s: %s", c.Name(), line)
		}
	}
	_, stdout, _ := call("bench", "--help")
	require.LessOrEqual(t, strings.Count(stdout, "\n"), 60, stdout)
	c, _, err := (&app{}).root().Find([]string{"bench"})
	require.NoError(t, err)
	c.InheritedFlags() // adds them to Flags
	pages := map[string]string{}
	for _, p := range topics {
		code, text, _ := call("help", p.name)
		require.Equal(t, exitOK, code)
		for line := range strings.Lines(text) {
			require.LessOrEqual(t, len(line)-1, markdown.Width, line)
		}
		for _, name := range strings.Fields(p.flags + " " + p.more) {
			require.NotNil(t, c.Flags().Lookup(name), name)
			require.Empty(t, pages[name], "--%s is on two pages", name)
			pages[name] = p.name
			require.Contains(t, text, "--"+name+" ", p.name)
		}
	}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && f.Name != "version" {
			require.Contains(t, stdout, "--"+f.Name)
			require.NotEmpty(t, pages[f.Name], "--%s is on no page", f.Name)
		}
	})
	_, list, _ := call("help", "topics")
	for _, p := range topics {
		require.Contains(t, list, "\n  "+p.name+" ")
	}
}

// Every column of a table is on the page that defines them.
func TestThePageOfColumnsHasAll(t *testing.T) {
	_, page, _ := call("help", "columns")
	wide := &bench.RunInfo{Wide: true, OfPeak: true, Baselines: []string{"by-mask"}}
	var out strings.Builder
	wide.Planned = []*bench.Row{{Tier: "cpu", Line: "a", OptionText: "b"}, {Ceiling: bench.CeilingCopy}}
	p := bench.NewPrinter("md", &out, wide)
	require.NoError(t, p.Row(wide.Planned[0]))
	require.NoError(t, p.Row(wide.Planned[1]))
	for _, pass := range []bench.Pass{bench.PassForward, bench.PassBackward} {
		rows := []*verify.Row{{Who: "cpu", Pass: pass}}
		require.NoError(t, verify.NewPrinter("md", &out, wide, false, rows).Row(rows[0]))
	}
	known := func(title string) bool {
		for _, p := range []string{"x ", "from "} {
			if strings.HasPrefix(title, p) {
				return true
			}
		}
		title = strings.TrimSuffix(strings.ReplaceAll(strings.ReplaceAll(title, "us", "ms"), "dBias", "dQ"), " |")
		return strings.Contains(page, strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(title, "dK", "dQ"), "dV", "dQ"), "dSinks", "dQ"))
	}
	lines := strings.Split(out.String(), "\n")
	tables := 0
	for i, line := range lines {
		if i == 0 || !strings.HasPrefix(line, "|:") && !strings.HasPrefix(line, "| -") {
			continue
		}
		tables++
		for _, title := range cellsOf(lines[i-1]) {
			switch title {
			case "device", "causal", "dtype", "options", "ceiling", "implementation", "reference", "GB/s": // as flags, or said above
			default:
				require.True(t, known(title), "%q is on no page", title)
			}
		}
	}
	require.Equal(t, 4, tables)
}
