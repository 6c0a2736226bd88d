package main

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
)

// tiny is a benchmark of one quick problem.
func tiny(more ...string) []string {
	return append([]string{"bench", "--batch-size", "1", "--nheads", "2", "--seqlen", "33", "--headdim", "8",
		"--causal", "none", "--dtype", "f32", "-r", "2", "--seed", "9"}, more...)
}

func TestBenchRefusesBadFlags(t *testing.T) {
	for _, c := range [][]string{
		{"not a positive number", "--seqlen", "0"},
		{"not a positive number", "--batch-size", "two"},
		{"vkattn: --tile: \"x=1\": no tile has a field", "--tile", "x=1"},
		{"want field=number", "--tile", "kv_tile"},
		{"exclude one another", "--tile", "kv_tile=32", "--bwd-tile", "q.kv_tile=32"},
		{"vkattn: --bwd-tile: \"q.x=1\": no tile has a field", "--bwd-tile", "q.x=1"},
		{"has no tile", "--bwd-tile", "", "--bwd-tile", "delta.rows=1"},
		{"first-last*mult", "--nheads", "1-8"},
		{"ends before", "--nheads-kv", "8-1+1"},
		{"at least 2", "--seqlen-k", "1-8*1"},
		{"over 4096 values", "--headdim", "1-99999+1"},
		{"not a positive number", "--headdim-v", "64,"},
		{"unknown causal mask", "--causal", "maybe"},
		{"unknown dtype", "--dtype", "f16,f64"},
		{"unknown tier", "--tier", "fast"},
		{"unknown output format", "-o", "xml"},
		{"positive number", "-r", "0"},
		{"positive number", "-r", "-3"},
		{"-r", "-r", "many"},
		{"--min-time -1s: want a duration of 0 or more", "--min-time", "-1s"},
		{"--min-time", "--min-time", "soon"},
		{"positive duration", "--timeout", "0s"},
		{"vkattn: --warmup -1s: want a duration of 0 or more", "--warmup", "-1s"},
		{"vkattn: --delay -1s: want a duration of 0 or more", "--delay", "-1s"},
		{"not a percentage", "--max-noise", "many"},
		{"exclude one another", "--run-once", "--warmup", "1s"},
		{"unknown suite", "--suite", "forward,backward"},
		{"--list prints Markdown", "--list", "-o", "json"},
		{"--save and --list exclude one another", "--list", "--save", "rows.md"},
		{"--plot and --list exclude one another", "--list", "--plot", "rows.svg"},
		{"--monitor and --list exclude one another", "--list", "--monitor", "clocks.csv"},
		{"--cuda-kernel needs --tier cuda or all", "--cuda-kernel", "fa2"},
		{"--cuda-kernel needs --tier cuda or all", "--cuda-kernel", "fa2", "--tier", "auto,cpu"},
		{"--peer-timeout needs --peer", "--peer-timeout", "1s"},
		{"unknown variant", "--variant", "v9"},
		{"unknown ablation", "--ablate", "everything"},
		{"positive duration", "--peer-timeout", "0s"},
		{"over 10000 problems", "--seqlen", "1-4000+1", "--batch-size", "1-10+1"},
	} {
		refused(t, exitInput, c[0], tiny(append(c[1:], "--device", "cpu")...)...)
	}
}

func TestBenchPrintsEveryFormat(t *testing.T) {
	onceOnly(t)
	stdout, stderr := succeeds(t, tiny("--device", "cpu", "-o", "md")...)
	require.Equal(t, "1 row, seed 9\n", stderr)
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	require.Len(t, lines, 5)
	require.Equal(t, "device cpu, B 1, H 2, S 33, D 8, causal none, dtype f32, pass fwd", lines[0])
	for _, l := range lines[2:] {
		require.Len(t, l, len(lines[2]))
	}

	stdout, _ = succeeds(t, tiny("--device", "cpu", "-o", "csv", "--tier", "cpu")...)
	records, err := csv.NewReader(strings.NewReader(stdout)).ReadAll()
	require.NoError(t, err)
	require.Len(t, records, 2)

	code, stdout, _ := call(tiny("--device", "cpu", "-o", "json", "--seqlen", "17-34*2", "--tier", "auto,scalar")...)
	require.Equal(t, exitOK, code, "a row that is refused is no failure while another runs")
	var doc struct {
		Run  bench.RunInfo
		Rows []bench.Row
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
	require.EqualValues(t, 9, doc.Run.Seed)
	require.Len(t, doc.Rows, 4)
	for i, r := range doc.Rows {
		require.Equal(t, 17*(1+i/2), r.Sq)
		if i%2 == 0 {
			require.Equal(t, bench.OK, r.Status)
			require.Len(t, r.Samples, 2)
		} else {
			require.Equal(t, bench.Unsupported, r.Status)
			require.NotEmpty(t, r.Reason)
		}
	}
}

func TestBenchOfNothingSupported(t *testing.T) {
	code, stdout, stderr := call(tiny("--device", "cpu", "--headdim", "576", "--headdim-v", "512", "--pass", "bwd", "-o", "jsonl")...)
	require.Equal(t, exitUnsupported, code)
	require.Contains(t, stdout, `"status":"unsupported"`)
	require.Contains(t, stderr, "\nvkattn: no row is supported: unsupported: no tier computes gradients at head dims 576/512")
	refused(t, exitUnsupported, "does not run on --device cpu", tiny("--device", "cpu", "--tier", "coopmat")...)
}

func TestBenchOfEveryTier(t *testing.T) {
	stdout, _ := succeeds(t, tiny("--device", "cpu", "--tier", "all", "-o", "json")...)
	rows := documentRows[bench.Row](t, stdout)
	require.Len(t, rows, 1)
	require.Equal(t, "cpu", rows[0].Tier)
	refused(t, exitUnsupported, "tier cuda", tiny("--device", "cpu", "--tier", "cuda")...)
	refused(t, exitInput, "unknown family", tiny("--cuda-kernel", "fa9")...)
	refused(t, exitInput, "--tier all", "tune", "--tier", "all")
}

// Where tier cuda cannot run, its rows say why, and the others run.
func TestBenchOfTierCUDABesideOthers(t *testing.T) {
	driver(t)
	stdout, _ := succeeds(t, tiny("--tier", "scalar,cuda", "--cuda-kernel", "fa2,ref", "-o", "json")...)
	var doc struct {
		Run  bench.RunInfo
		Rows []bench.Row
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
	require.Len(t, doc.Rows, 3)
	require.Equal(t, []string{"cuda fa2", "cuda ref"}, doc.Run.Baselines)
	require.Equal(t, bench.OK, doc.Rows[0].Status)
	for _, r := range doc.Rows[1:] {
		if r.Status != bench.OK {
			require.Equal(t, bench.Unsupported, r.Status)
			require.NotEmpty(t, r.Reason)
		}
	}
}

func TestTheOutcomeOfRows(t *testing.T) {
	sum := func(status ...bench.Status) error {
		var o outcome
		for _, s := range status {
			o.add(&bench.Row{Status: s, Reason: "why"})
		}
		return o.err()
	}
	require.Equal(t, exitOK, exitCode(sum(bench.OK, bench.Unsupported)))
	require.Equal(t, exitFailure, exitCode(sum(bench.OK, bench.Fail)))
	require.Equal(t, exitFailure, exitCode(sum(bench.Broken, bench.Fail)))
	require.Equal(t, exitDevice, exitCode(sum(bench.OK, bench.Broken)))
	require.Equal(t, exitUnsupported, exitCode(sum(bench.Unsupported, bench.Unsupported)))
	var mixed outcome
	mixed.add(&bench.Row{Status: bench.Unsupported})
	mixed.add(&bench.Row{Status: bench.OK, Baseline: bench.BaselineCopy})
	require.Equal(t, exitUnsupported, exitCode(mixed.err()), "a copy is not what was asked for")
	mixed.add(&bench.Row{Status: bench.Unsupported, Baseline: bench.BaselineByMask})
	mixed.add(&bench.Row{Status: bench.OK})
	require.NoError(t, mixed.err())
	mixed.add(&bench.Row{Status: bench.Fail, Baseline: bench.BaselineByMask})
	require.EqualError(t, mixed.err(), "1 of 4 rows are wrong")
	stopped := outcome{stopped: errors.New("x")}
	require.EqualError(t, stopped.err(), "x")
	// The reason is one of the rows that decide the exit code.
	var first outcome
	first.add(&bench.Row{Status: bench.Unsupported, Reason: "no bfloat16"})
	first.add(&bench.Row{Status: bench.Broken, Reason: "the driver failed"})
	require.EqualError(t, first.err(), "1 of 2 rows failed: the driver failed")
}

func TestBenchOnADeviceVerifiesAndTimes(t *testing.T) {
	driver(t)
	stdout, _ := succeeds(t, tiny("--tier", "auto,scalar,cpu", "--dtype", "f16,f32", "-o", "json")...)
	rows := documentRows[bench.Row](t, stdout)
	require.Len(t, rows, 6)
	for _, r := range rows {
		require.Equal(t, bench.OK, r.Status, r.Reason)
		require.Greater(t, r.Ms.Min, 0.0)
	}
	require.Equal(t, "scalar", rows[1].Tier)
	require.Equal(t, "cpu", rows[2].Tier)
}

// Each --bwd-tile is a row, and a tile that cannot run is one with the reason.
func TestBenchNamesBackwardTiles(t *testing.T) {
	quickDriver(t)
	stdout, _ := succeeds(t, tiny("--tier", "scalar", "--pass", "bwd", "-o", "json", "--bwd-tile", "", "--bwd-tile", "q.kv_tile=64", "--bwd-tile", "q.kv_tile=100")...)
	rows := documentRows[bench.Row](t, stdout)
	require.NotEmpty(t, rows)
	for _, r := range rows {
		switch r.Tiles {
		case "":
			require.Equal(t, bench.OK, r.Status, r.Reason)
			require.Contains(t, r.Tile, "dQ 32x32 ")
		case "q.kv_tile=64":
			require.Equal(t, bench.OK, r.Status, r.Reason)
			require.Contains(t, r.Tile, "dQ 32x64 ")
		default:
			require.Equal(t, "q.kv_tile=100", r.Tiles)
			require.Equal(t, bench.Unsupported, r.Status)
			require.Contains(t, r.Reason, "cannot compute head dims")
		}
	}
}

// Each --tile is a row, and a tile that cannot run is one with the reason.
func TestBenchNamesTiles(t *testing.T) {
	quickDriver(t)
	stdout, _ := succeeds(t, tiny("--tier", "scalar", "-o", "json", "--tile", "", "--tile", "kv_tile=16", "--tile", "kv_tile=0")...)
	rows := documentRows[bench.Row](t, stdout)
	tiles := map[string]string{}
	for _, r := range rows {
		if r.Tiles == "kv_tile=0" {
			require.Equal(t, bench.Unsupported, r.Status)
			require.Contains(t, r.Reason, "cannot compute head dims")
			continue
		}
		require.Equal(t, bench.OK, r.Status, r.Reason)
		tiles[r.Tiles] = r.Tile
	}
	require.Len(t, tiles, 2)
	require.NotEqual(t, tiles[""], tiles["kv_tile=16"])
	require.Contains(t, tiles["kv_tile=16"], "x16")
}

// A run whose problems have no row of a baseline that was asked for says so.
func TestABaselineWithoutRowsIsNamed(t *testing.T) {
	_, stderr := succeeds(t, tiny("--device", "cpu", "--causal", "none", "--against", "plain")...)
	require.Contains(t, stderr, "vkattn: --against plain: no problem of this run has such a row on this device\n")
	_, stderr = succeeds(t, tiny("--device", "cpu", "--against", "none")...)
	require.NotContains(t, stderr, "--against")
}
