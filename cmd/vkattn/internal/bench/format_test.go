package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/peer"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// isGolden compares a text with a file of testdata.
func isGolden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	require.Equal(t, string(readFile(t, path)), text)
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

func exampleRows() []*Row {
	good := &Row{Device: "Example GPU", Tier: "coopmat2", Tile: "128x64 16x16 8sg1",
		Call:   fields.Call{B: 16, Hq: 8, Hkv: 2, Sq: 4096, Sk: 4096, D: 128, Dv: 128, Causal: attention.TopLeft, DType: attention.F16},
		Status: OK, Ms: Summarize([]float64{2, 1.9375, 2.5}), TFLOPs: 274.878, MeanTFLOPs: 256.1, PeakTFLOPs: 283.7, Samples: []float64{2, 1.9375, 2.5},
		Sets: 1, Checked: Checked{Rows: 512, Of: 524288, MaxError: 0.000123, NMSE: 1.5e-7}, Memory: 320 << 20}
	refused := *good
	refused.Tier, refused.Tile, refused.DType, refused.Samples = "coopmat", "", attention.F32, nil
	refused.Status, refused.Reason = Unsupported, "no f32 | shape"
	refused.Ms, refused.TFLOPs, refused.Checked = Summary{}, 0, Checked{}
	wrong := refused
	wrong.DType, wrong.Status, wrong.Reason = attention.F16, Fail, `max error 1.5 is over 0.002, "O"`
	wrong.Checked = Checked{Rows: 512, Of: 524288, MaxError: 1.5, NMSE: 0.25}
	return []*Row{good, &refused, &wrong}
}

func TestFormatsMatchTheirGoldenFiles(t *testing.T) {
	info := &RunInfo{Program: "vkattn", Version: "test", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Seed: 42, CPU: "amd64, 2 threads",
		Device: Device{Name: "Example GPU", Type: "discrete", Driver: "Example driver", Version: "1.2.3", API: "1.4.312"}}
	for _, f := range append(slices.Clone(Formats), "wide.md") {
		t.Run(string(f), func(t *testing.T) {
			var out bytes.Buffer
			info := *info
			format, wide := strings.CutPrefix(string(f), "wide.")
			info.Wide, info.Planned = wide, planned(exampleRows())
			p := NewPrinter(Format(format), &out, &info)
			for _, r := range exampleRows() {
				require.NoError(t, p.Row(r))
			}
			require.NoError(t, p.Close(&info))
			isGolden(t, "rows."+string(f), out.String())
		})
	}
}

// ladderRows are rows of the ladder, of ablations or of tiers, with a peer.
func ladderRows(variants, ablations bool) []*Row {
	var rows []*Row
	for _, causal := range []attention.Causal{attention.CausalNone, attention.TopLeft} {
		of := func(tier string, ms float64) *Row {
			r := &Row{Device: "Example GPU", Tier: tier, Call: fields.Call{B: 8, Hq: 8, Hkv: 8, Sq: 1024, Sk: 1024, D: 128, Dv: 128, Causal: causal},
				Status: OK, Ms: Summarize([]float64{ms}), Samples: []float64{ms}, Timer: "device", Sets: 3}
			r.TFLOPs = TFLOPs(r.Problem(), ms)
			return r
		}
		add := func(r *Row) { rows = append(rows, r) }
		if variants {
			one, three, broken := of("coopmat2", 0.5), of("coopmat2", 0.4), of("coopmat2", 0)
			one.Variant, three.Variant, broken.Variant = "v1", "v3", "v7"
			broken.Status, broken.Reason = Fail, "max error 1"
			add(one)
			add(three)
			add(broken)
		}
		if !variants && !ablations {
			add(of("coopmat2", 0.4))
			add(of("coopmat", 0.8))
			broken := of("scalar", 0)
			broken.Status, broken.Reason = Broken, "out of memory"
			add(broken)
		}
		if ablations {
			add(of("coopmat2", 0.4))
			bare, refused := of("coopmat2", 0.25), of("coopmat2", 0)
			bare.Ablation, bare.Status, bare.AblationTFLOPs, bare.TFLOPs = "softmax", Ablated, bare.TFLOPs, 0
			refused.Ablation, refused.Status, refused.Reason = "load", Unsupported, "not on this tier"
			add(bare)
			add(refused)
		}
		flash := of("flash", 0.38)
		flash.Peer, flash.Clock = true, &Clock{SMMHz: 1980, MemoryMHz: 3201, PowerWatts: 512.5, Celsius: 50}
		add(flash)
		compare(rows[len(rows)-4:])
	}
	return rows
}

func TestLadderFormatsMatchTheirGoldenFiles(t *testing.T) {
	info := &RunInfo{Program: "vkattn", Version: "test", Seed: 42, Peers: []peer.Info{{Name: "flash", Command: "python3 peer.py flash"}}}
	for name, rows := range map[string][]*Row{"ladder.md": ladderRows(true, false), "ablation.md": ladderRows(false, true), "ablation.csv": ladderRows(false, true),
		"peers.md": ladderRows(false, false)} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			info.Planned = planned(rows)
			p := NewPrinter(Format(strings.TrimPrefix(filepath.Ext(name), ".")), &out, info)
			for _, r := range rows {
				require.NoError(t, p.Row(r))
			}
			require.NoError(t, p.Close(info))
			isGolden(t, name, out.String())
		})
	}
}

func TestMachineFormatsCanBeReadBack(t *testing.T) {
	info := &RunInfo{Seed: 7}
	for _, count := range []int{0, 3} {
		rows := exampleRows()[:count]
		print := func(f Format) []byte {
			var out bytes.Buffer
			p := NewPrinter(f, &out, info)
			for _, r := range rows {
				require.NoError(t, p.Row(r))
			}
			require.NoError(t, p.Close(info))
			return out.Bytes()
		}
		var doc struct {
			Run  RunInfo
			Rows []Row
		}
		require.NoError(t, json.Unmarshal(print("json"), &doc))
		require.EqualValues(t, 7, doc.Run.Seed)
		require.Len(t, doc.Rows, count)
		for i := range rows {
			require.Equal(t, *rows[i], doc.Rows[i])
		}
		records, err := csv.NewReader(bytes.NewReader(print("csv"))).ReadAll()
		require.NoError(t, err)
		require.Len(t, records, count+1)
		require.Equal(t, count, strings.Count(string(print("jsonl")), "\n"))
	}
}

func TestARowWithoutASpeedNeverShowsOne(t *testing.T) {
	for _, f := range []Format{"md", "csv"} {
		for _, r := range exampleRows()[1:] {
			r.TFLOPs, r.MeanTFLOPs, r.PeakTFLOPs, r.Ms = 123.4, 123.4, 123.4, Summary{567.8, 567.8, 567.8, 567.8, 567.8, 567.8}
			var out bytes.Buffer
			p := NewPrinter(f, &out, &RunInfo{})
			require.NoError(t, p.Row(r))
			require.NoError(t, p.Close(&RunInfo{}))
			require.NotContains(t, out.String(), "123.4")
			require.NotContains(t, out.String(), "567.8")
			require.Contains(t, out.String(), string(r.Status))
		}
	}
}

func TestNumbersOfWrongResultsFitJSON(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		b, err := json.Marshal(Checked{Rows: 1, MaxError: Number(v), NMSE: 0.5})
		require.NoError(t, err)
		require.JSONEq(t, `{"rows": 1, "of": 0, "max_error": null, "nmse": 0.5}`, string(b))
	}
}

func TestSummarize(t *testing.T) {
	require.Equal(t, Summary{}, Summarize(nil))
	require.Equal(t, Summary{Min: 3, Mean: 3, Median: 3, Max: 3}, Summarize([]float64{3}))
	require.Equal(t, Summary{Min: 1, Mean: 2.5, Median: 2.5, Max: 4}, Summarize([]float64{4, 1, 3, 2}))
	samples := []float64{5, 1, 3}
	require.Equal(t, Summary{Min: 1, Mean: 3, Median: 3, Max: 5}, Summarize(samples))
	require.Equal(t, []float64{5, 1, 3}, samples, "the samples keep their order")
	require.True(t, math.IsInf(Summarize(samples).Noise(), 1), "three samples have no interval")
	// Six samples are the fewest with an interval of 95 %: the least and the largest.
	six := Summarize([]float64{6, 5, 4, 3, 2, 1})
	require.Equal(t, [2]float64{1, 6}, [2]float64{six.Low, six.High})
	require.InDelta(t, 2.5/3.5, six.Noise(), 1e-12)
}

// The interval holds the true median in at least 95 of 100 runs, whatever the distribution.
func TestTheIntervalHoldsTheMedian(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const runs = 2000
	held := 0
	for range runs {
		samples := make([]float64, 30)
		for i := range samples {
			samples[i] = r.ExpFloat64()
		}
		if s := Summarize(samples); s.Low <= math.Ln2 && math.Ln2 <= s.High {
			held++
		}
	}
	require.Greater(t, held, runs*94/100)
}

func TestParseFormat(t *testing.T) {
	for _, f := range Formats {
		got, err := ParseFormat(string(f), Formats)
		require.NoError(t, err)
		require.Equal(t, f, got)
	}
	_, err := ParseFormat("xml", Formats)
	require.ErrorContains(t, err, "xml")
}
