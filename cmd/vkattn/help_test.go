package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/compare"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/cmd/vkattn/internal/ranks"
	"vkattn/cmd/vkattn/internal/verify"
)

// No help is wider than a table. That of bench is one screen, and names every flag: with a line, or with the page that
// explains it.
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
		text, _ := succeeds(t, "help", p.name)
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
	for _, timed := range []bool{true, false} {
		rows := []*ranks.Row{{Call: fields.Call{Sk: 1, Dv: 1}, OptionText: "a"}}
		require.NoError(t, ranks.NewPrinter("md", &out, wide, timed, rows).Row(rows[0]))
	}
	timed := []*bench.Row{{Call: fields.Call{Sk: 1, Dv: 1}, Status: bench.OK, Samples: []float64{1, 2}}}
	require.NoError(t, compare.Runs(timed, timed, compare.Options{Wide: true}).Print(&out))
	tune := tunePrinter{w: &out, wide: true, check: true}
	row := newTuneRow(bench.Problem{Pass: bench.PassBackward, LSE: true}, attention.TuneReport{})
	tune.plan([]*tuneRow{row})
	require.NoError(t, tune.add(row))
	fmt.Fprint(&out, "\n", tune.candidates([]*attention.TuneCandidate{{Tile: "a", Status: "b", Reason: "c", Heuristic: true, Ms: 1,
		SharedBytes: 1, Estimate: 1, Registers: 1, CompileMs: 1, Runs: 1, TFLOPs: 1}}), "\n\n", classTable([]attention.TunedClass{{}}, true))
	known := func(title string) bool {
		for _, p := range []string{"x ", "from "} {
			if strings.HasPrefix(title, p) {
				return true
			}
		}
		if rest, found := strings.CutPrefix(title, "us"); found {
			title = "ms" + rest
		}
		title = strings.TrimSuffix(strings.ReplaceAll(title, "dBias", "dQ"), " |")
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
			case "device", "causal", "dtype", "options", "ceiling", "implementation", "reference": // as flags
			case "GB/s", "25 %", "50 %", "75 %": // with others
			default:
				assert.True(t, known(title), "%q is on no page", title)
			}
		}
	}
	require.Equal(t, 11, tables)
}
