package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/internal/hostmem"
	"vkattn/vk"
)

// tinyTune is a tuning of one quick problem.
func tinyTune(more ...string) []string {
	return append([]string{"tune", "--batch-size", "1", "--nheads", "2", "--seqlen", "40", "--headdim", "8",
		"--causal", "none", "--dtype", "f32", "--tier", "scalar", "--candidates", "2", "--budget", "10h"}, more...)
}

func TestTuneRefusesBadFlags(t *testing.T) {
	for _, c := range [][]string{
		{"not a positive number", "--seqlen", "0"},
		{"unknown causal mask", "--causal", "maybe"},
		{"unknown dtype", "--dtype", "f64"},
		{`--tier: "fast" is none of auto, no-cuda, scalar, coopmat, coopmat2`, "--tier", "fast"},
		{`--tier: "cpu" is none of auto, no-cuda, scalar, coopmat, coopmat2`, "--tier", "auto,cpu"},
		{`--tier: "cuda" is none of auto, no-cuda, scalar, coopmat, coopmat2`, "--tier", "cuda"},
		{"--tier all: name the tiers to tune: auto, no-cuda, scalar, coopmat, coopmat2", "--tier", "all"},
		{"unknown output format", "-o", "csv"},
		{"positive duration", "--budget", "-1s"},
		{"positive duration", "--budget", "0"},
		{"positive number", "--candidates", "-1"},
		{"positive number", "--candidates", "0"},
		{"percentage", "--tolerance", "-1"},
		{"percentage", "--tolerance", "NaN"},
		{`--pass: "fwdbwd" is none of fwd, bwd`, "--pass", "fwd,fwdbwd"},
		{`--pass: "back" is none of fwd, bwd`, "--pass", "back"},
		{"--headdim/--headdim-v is 300/300", "--headdim", "300"},
		{`unexpected argument "8": the value of --check is written --check=8`, "--check", "8"},
		{"exclude each other", "--list", "--clear"},
		{"exclude each other", "--check", "--dry-run"},
		{"over 10000 problems", "--seqlen", "1-4000+1", "--batch-size", "1-10+1"},
		{`unexpected argument "extra"`, "extra"},
	} {
		refused(t, exitInput, c[0], tinyTune(c[1:]...)...)
	}
}

func TestTuneNeedsADevice(t *testing.T) {
	refused(t, exitUnsupported, "does not run on --device cpu", tinyTune("--device", "cpu")...)
	refused(t, exitUnsupported, "vkattn: tune does not run on --device cpu", "tune", "--list", "--device", "cpu")
	refused(t, exitUnsupported, "vkattn: tune does not run on --device cpu", "tune", "--clear", "--device", "cpu")
	refused(t, exitUnsupported, "vkattn: profile does not run on --device cpu", "profile", "--device", "cpu")
}

// What is stored can be read on a machine without the device.
func TestTheTunedTilesAreListedWithoutADevice(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(vk.CacheDirEnv, dir)
	t.Setenv("VKATTN_LIBVULKAN", filepath.Join(dir, "none.so"))
	stdout, _ := succeeds(t, "tune", "--list")
	require.Equal(t, filepath.Join(dir, "tuning-v2")+"\nnothing is tuned\n", stdout)

	require.NoError(t, os.Mkdir(filepath.Join(dir, "tuning-v2"), 0o755))
	for name, text := range map[string]string{
		"a-00000001.json": `{"format": 2, "device": {"name": "Example GPU", "uuid": "a", "driver": "example 1.2", "driver_version": 1}, "classes": {
			"scalar_bda f32 d8/8 none": {"tile": "", "name": "64x32 128t", "ms": 0.5, "heuristic_ms": 1, "shape": "B1 H1 S16", "when": "2026-11-20T10:00:00Z"}}}`,
		"b-00000001.json": "{",
		"c-00000001.json": `{"format": 1, "device": {"name": "Old GPU"}}`,
		"notes.txt":       "not one of them",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tuning-v2", name), []byte(text), 0o644))
	}
	stdout, _ = succeeds(t, "tune", "--list")
	require.Contains(t, stdout, "Example GPU, driver example 1.2\n"+filepath.Join(dir, "tuning-v2", "a-00000001.json")+"\n\nclass scalar_bda f32 d8/8 none, state stale: the SPIR-V has changed\n\n| tile ")
	require.Contains(t, stdout, "| 64x32 128t | 0.5 | 2.000 | B1 H1 S16   |\n")
	require.Contains(t, stdout, "b-00000001.json ignored: damaged: unexpected end of JSON input\n")
	require.Contains(t, stdout, "c-00000001.json ignored: format 1, this build reads 2\n")
	require.NotContains(t, stdout, "notes.txt")
	stdout, _ = succeeds(t, "tune", "--list", "--wide")
	require.Contains(t, stdout, "| scalar_bda f32 d8/8 none | 64x32 128t | 0.5 | 2.000 | B1 H1 S16   | 2026-11-20 10:00 | stale: the SPIR-V has changed |\n")
	stdout, _ = succeeds(t, "tune", "--list", "-o", "json")
	list := decoded[[]attention.TuningCache](t, stdout)
	require.Len(t, list, 3)
	require.Equal(t, "Example GPU", list[0].Device)
	require.Len(t, list[0].Classes, 1)

	t.Setenv(vk.CacheDirEnv, "off")
	refused(t, exitFailure, "there is no cache folder", "tune", "--list")
}

func TestTuneTakesTheWordsOfBench(t *testing.T) {
	a := &app{}
	words, tune := a.benchCommand().Flags(), a.tuneCommand().Flags()
	for _, name := range []string{"batch-size", "nheads", "nheads-kv", "seqlen", "seqlen-k", "headdim", "headdim-v", "causal", "dtype", "suite", "preset", "device"} {
		require.NotNil(t, words.Lookup(name), name)
		require.Equal(t, strings.TrimSuffix(words.Lookup(name).Usage, withoutVulkan), tune.Lookup(name).Usage, name)
	}
}

// Calls with options take the heuristic's tiles: there is nothing to tune for them.
func TestTuneLeavesOutProblemsWithOptions(t *testing.T) {
	for _, flags := range []benchFlags{{suite: "decode"}, {preset: "gpt3,deepseek-v3-mla"}} {
		var stderr strings.Builder
		a := &app{stderr: &stderr}
		o := tuneFlags{benchFlags: flags, tolerance: 1}
		o.format, o.changed = "md", func(string) bool { return false }
		plan, err := o.validate()
		require.NoError(t, err)
		list, err := a.tuneProblems(&o, plan, nil)
		require.NoError(t, err)
		require.NotEmpty(t, list)
		for i, p := range list {
			require.True(t, p.Plain(), "%v", p)
			require.Zero(t, p.Config.FixedSplit)
			require.NotContains(t, list[:i], p)
		}
		require.Regexp(t, `^vkattn: \d+ of \d+ problems are left out: they have options, and such calls use the heuristic's tiles\n$`, stderr.String())
	}
}

func TestTheVerdictOfATuning(t *testing.T) {
	gain := func(g float64) *tuneRow { return &tuneRow{Status: bench.OK, Report: attention.TuneReport{Gain: g}} }
	verdict := func(check bool, stopped error, rows ...*tuneRow) int {
		p := tunePrinter{check: check, tolerance: 10}
		p.doc.Rows = rows
		return exitCode(p.verdict(stopped))
	}
	require.Equal(t, exitOK, verdict(true, nil, gain(1.09), gain(1)))
	require.Equal(t, exitFailure, verdict(true, nil, gain(1.11), gain(1)))
	require.Equal(t, exitOK, verdict(false, nil, gain(1.5)), "that is what tuning is for")
	require.Equal(t, exitUnsupported, verdict(false, nil, &tuneRow{Status: bench.Unsupported, Reason: "no"}))
	require.Equal(t, exitOK, verdict(false, nil, &tuneRow{Status: bench.Unsupported, Reason: "no"}, gain(1)))
	require.Equal(t, exitUnsupported, verdict(false, nil, &tuneRow{Status: bench.OOM, Reason: "no"}))
	require.Equal(t, exitUnsupported, verdict(false, nil, &tuneRow{Status: bench.OOM, Reason: "no"}, &tuneRow{Status: bench.Unsupported, Reason: "no"}))
	require.Equal(t, exitOK, verdict(false, nil, &tuneRow{Status: bench.OOM, Reason: "no"}, gain(1)))
	require.Equal(t, exitDevice, verdict(false, nil, &tuneRow{Status: bench.Broken, Reason: "no"}, gain(1)))
	require.Equal(t, exitOK, verdict(false, errors.New("interrupted")))
}

func TestATuningThatStoresNothingFails(t *testing.T) {
	stored := &tuneRow{Status: bench.OK, Report: attention.TuneReport{Gain: 1, Stored: "cache.json"}}
	lost := &tuneRow{Status: bench.OK, Report: attention.TuneReport{Gain: 1, Notes: []string{"something else", "not stored: read-only file system"}}}
	verdict := func(stores bool, stopped error, rows ...*tuneRow) error {
		p := tunePrinter{stores: stores, tolerance: 10}
		p.doc.Rows = rows
		return p.verdict(stopped)
	}
	require.NoError(t, verdict(true, nil, stored))
	require.NoError(t, verdict(true, nil, stored, &tuneRow{Status: bench.Unsupported, Reason: "no"}))
	require.NoError(t, verdict(false, nil, lost), "a dry run has nothing to store")
	require.EqualError(t, verdict(true, nil, lost), "1 of 1 results are not stored: read-only file system")
	require.EqualError(t, verdict(true, nil, stored, lost), "1 of 2 results are not stored: read-only file system")
	require.Equal(t, exitFailure, exitCode(verdict(true, nil, lost)))
	require.Equal(t, exitDevice, exitCode(verdict(true, nil, lost, &tuneRow{Status: bench.Broken, Reason: "lost"})))
	require.EqualError(t, verdict(true, nil), "nothing was tuned")
	require.NoError(t, verdict(true, errors.New("interrupted")), "that is what it says")
}

// Tables of tune have at most 100 columns unless they are wide. A row of --check is printed when it is finished.
func TestTablesOfTune(t *testing.T) {
	const tile, reason = "256x96/16 16x16 8sg2 contiguous", "tile 256x128 512t needs 110592 bytes of shared memory, the device has 32768"
	problem := func(length int, pass bench.Pass) bench.Problem {
		return bench.Problem{Shape: attention.Shape{B: 128, Hq: 32, Hkv: 8, Sq: length, Sk: length},
			Config: attention.Config{HeadDim: 192, HeadDimV: 128}, Pass: pass, LSE: pass == bench.PassForward}
	}
	candidate := attention.TuneCandidate{Tile: tile, Status: attention.TuneFinalist, Heuristic: true, Winner: true, SharedBytes: 110592,
		Estimate: 255, Registers: 255, SpillBytes: 1024, SpillShared: 512, CompileMs: 1234.5, Ms: 1.2345, Runs: 1000, TFLOPs: 0.0012345}
	report := attention.TuneReport{Class: strings.Repeat("aligned8 ", 12), Tier: attention.TierCoopMat2, Outputs: "dK dV", Winner: tile,
		Heuristic: tile, Gain: 1.5, Seconds: 12.3, Stored: "file", Notes: []string{strings.Repeat("note ", 30)}, Candidates: []attention.TuneCandidate{
			candidate, {Tile: tile, Status: attention.TunePruned, Reason: reason}}}
	narrow := func(text string) {
		t.Helper()
		for line := range strings.Lines(text) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), markdown.Width, line)
		}
	}
	print := func(p tunePrinter) string {
		var out strings.Builder
		p.w, p.tolerance = &out, 10
		var rows []*tuneRow
		for _, r := range []*tuneRow{newTuneRow(problem(4096, 0), report), newTuneRow(problem(512, bench.PassBackward), report)} {
			plan := *r
			plan.Report = attention.TuneReport{Tier: report.Tier}
			rows = append(rows, r, &plan)
		}
		rows[3].Status, rows[3].Reason = bench.OOM, "needs "+strings.Repeat("bytes ", 30)
		p.plan([]*tuneRow{rows[1], rows[3]})
		for _, r := range []*tuneRow{rows[0], rows[2], rows[3]} {
			was := out.Len()
			require.NoError(t, p.add(r))
			require.Contains(t, out.String()[was:], "\n", "a row is printed when it is finished")
		}
		require.NoError(t, p.close())
		if !p.wide {
			narrow(out.String())
		}
		return out.String()
	}
	list := print(tunePrinter{all: true})
	require.Contains(t, list, "| "+tile+" | winner, heuristic | 1.234 |")
	require.Contains(t, list, "in wide tables: ")
	require.Contains(t, list, "\n"+tile+": pruned: tile 256x128 512t needs")
	require.Contains(t, print(tunePrinter{all: true, wide: true}), " | pruned   | "+reason+" |")
	check := print(tunePrinter{check: true})
	require.Contains(t, check, "B 128, Hq 32, Hkv 8, D 192, Dv 128, causal none, dtype f16\n")
	require.Contains(t, check, "| slower      |")
	require.Contains(t, check, "| OOM         |")
	require.NotContains(t, check, "| heuristic ")
	require.Contains(t, print(tunePrinter{check: true, wide: true}), "| heuristic ")
	classes := []attention.TunedClass{{Class: report.Class, Stale: true}, {Class: "another " + report.Class}}
	classes[0].Tile, classes[1].Tile = tile, tile
	narrow(classTable(classes, false))
	require.Contains(t, classTable(classes, false), "- [1] class aligned8")
	require.Contains(t, classTable(classes, true), "| "+report.Class+"  ")
}

// The cache's folder may be a file, or there may be none; a problem may be too large.
func TestTuneSaysWhyNothingIsStored(t *testing.T) {
	quickDriver(t)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	t.Setenv(vk.CacheDirEnv, file)
	code, stdout, stderr := call(tinyTune()...)
	require.Equal(t, exitFailure, code, stderr)
	require.Contains(t, stdout, "note: not stored: ")
	lines := strings.Split(stderr, "\n")
	require.Len(t, lines, 3, stderr)
	require.Regexp(t, `^vkattn: pipeline cache .* ignored: not a directory$`, lines[0])
	require.Regexp(t, `^vkattn: 1 of 1 results are not stored: .+`, lines[1])
	require.Empty(t, lines[2])

	t.Setenv(vk.CacheDirEnv, t.TempDir())
	code, _, stderr = call(tinyTune("--batch-size", "2147483647", "--nheads", "2147483647", "--seqlen", "2")...)
	require.Equal(t, exitUnsupported, code, stderr)
	require.Contains(t, stderr, "vkattn: no problem ")
	t.Setenv(hostmem.Variable, "4MiB") // the driver runs on the CPU
	code, stdout, stderr = call(tinyTune("--seqlen", "20000", "-o", "json")...)
	require.Equal(t, exitUnsupported, code, stderr)
	require.Contains(t, stdout, `"reason": "Tune: needs `)
	require.Contains(t, stderr, "no problem fits the memory: Tune: needs ")
}

func TestTuneOnADevice(t *testing.T) {
	quickDriver(t)
	dir := t.TempDir()
	t.Setenv(vk.CacheDirEnv, dir)
	stdout, _ := succeeds(t, "tune", "--list")
	require.Contains(t, stdout, "nothing is tuned")

	stdout, _ = succeeds(t, tinyTune("--dry-run", "-o", "json")...)
	doc := decoded[tuneDoc](t, stdout)
	require.Len(t, doc.Rows, 1)
	require.Greater(t, len(doc.Rows[0].Report.Candidates), 20)
	require.Zero(t, doc.Rows[0].Report.Gain)

	stdout, stderr := succeeds(t, tinyTune()...)
	require.Empty(t, stderr)
	require.Contains(t, stdout, "winner")
	require.Contains(t, stdout, "more were pruned")
	require.Contains(t, stdout, "stored in "+dir)

	stdout, _ = succeeds(t, "tune", "--list", "-o", "json")
	caches := decoded[[]attention.TuningCache](t, stdout)
	require.Len(t, caches, 1)
	cache := caches[0]
	require.Len(t, cache.Classes, 1)
	require.Contains(t, cache.Classes[0].Class, "f32 d8/8 none")

	// A damaged file: a note, and the next tuning replaces it.
	require.NoError(t, os.WriteFile(cache.Path, []byte("{"), 0o644))
	stdout, _ = succeeds(t, "tune", "--list")
	require.Contains(t, stdout, "note: tuning cache "+cache.Path+" ignored: damaged")
	succeeds(t, tinyTune()...)
	data := readFile(t, cache.Path)
	require.True(t, json.Valid(data))

	stdout, _ = succeeds(t, tinyTune("--check", "--tolerance", "1000000")...)
	require.Contains(t, strings.Join(strings.Fields(stdout), " "), "geometric mean of 1 problem")
	again := readFile(t, cache.Path)
	require.Equal(t, data, again, "a check stores nothing")

	_, stderr = succeeds(t, "tune", "--clear")
	require.Equal(t, "cleared "+cache.Path+"\n", stderr)
	left, err := filepath.Glob(filepath.Join(dir, "tuning-v2", "*.json"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestTuneOfGradientsOnADevice(t *testing.T) {
	quickDriver(t)
	dir := t.TempDir()
	t.Setenv(vk.CacheDirEnv, dir)
	stdout, _ := succeeds(t, tinyTune("--pass", "fwd,bwd", "--dry-run", "-o", "json")...)
	doc := decoded[tuneDoc](t, stdout)
	require.Len(t, doc.Rows, 3)
	for i, want := range []string{"", "dQ", "dK dV"} {
		require.Equal(t, want, doc.Rows[i].Report.Outputs)
		require.Greater(t, len(doc.Rows[i].Report.Candidates), 20)
		require.Zero(t, doc.Rows[i].Report.Gain)
	}
	stdout, _ = succeeds(t, tinyTune("--pass", "bwd")...)
	require.Contains(t, stdout, "kernel of dQ on scalar")
	require.Contains(t, stdout, "kernel of dK dV on scalar")
	require.Equal(t, 2, strings.Count(stdout, "stored in "+dir))
	stdout, _ = succeeds(t, "tune", "--list")
	require.Contains(t, stdout, "backward_scalar_q_")
	require.Contains(t, stdout, "backward_scalar_kv_")
	require.NotContains(t, stdout, "stale")
}

func TestTuneOfNothingSupported(t *testing.T) {
	driver(t)
	t.Setenv(vk.CacheDirEnv, t.TempDir())
	code, stdout, stderr := call(tinyTune("--tier", "coopmat", "--headdim", "512")...) // f32: head dims up to 256
	require.Equal(t, exitUnsupported, code)
	require.Contains(t, stdout, "unsupported: f32 d512 coopmat")
	require.True(t, strings.HasPrefix(stderr, "vkattn: no problem is supported: "), stderr)
}

// run takes what was tuned for exactly its tensors, says so, and does without a
// cache that cannot be read.
func TestRunTakesTheTunedTile(t *testing.T) {
	quickDriver(t)
	t.Setenv(vk.CacheDirEnv, t.TempDir())
	dir, args := goodFiles(t) // with LSE
	// Few queries are decoded, by kernels that have no tiles to tune.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "q.npy"), zeros(2, 4, 20, 8), 0o644))
	plan := func(more ...string) attention.Plan {
		t.Helper()
		stdout, _ := succeeds(t, slices.Concat(with(args, "--device", "auto"), []string{"--json", "--tier", "scalar"}, more)...)
		r := decoded[result](t, stdout)
		return *r.Plan
	}
	require.Equal(t, attention.TileHeuristic, plan().Tuning)
	require.Equal(t, attention.TileTuned, plan("--tuning", "on").Tuning)
	require.Equal(t, attention.TileTuned, plan().Tuning, "this process knows it now")
	off := plan("--tuning", "off")
	require.Equal(t, attention.TileHeuristic, off.Tuning)
	require.Empty(t, off.Notes)

	// Another process, as far as the cache goes: another folder with the file in it.
	from, err := filepath.Glob(filepath.Join(os.Getenv(vk.CacheDirEnv), "tuning-v2", "*.json"))
	require.NoError(t, err)
	require.Len(t, from, 1)
	data := readFile(t, from[0])
	for _, c := range []struct {
		data   []byte
		tuning string
		notes  int
	}{{data, attention.TileCached, 0}, {data[:len(data)/2], attention.TileHeuristic, 1}} {
		t.Setenv(vk.CacheDirEnv, t.TempDir())
		to := filepath.Join(os.Getenv(vk.CacheDirEnv), "tuning-v2", filepath.Base(from[0]))
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		require.NoError(t, os.WriteFile(to, c.data, 0o644))
		p := plan()
		require.Equal(t, c.tuning, p.Tuning)
		require.Len(t, p.Notes, c.notes, "%v", p.Notes)
	}
}
