package bench

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/peer"
)

// timedRow is a row of a problem that took so long.
func timedRow(p Problem, s Spec, ms float64) *Row {
	r := (&Bench{Label: "Example GPU"}).row(p, s)
	r.Device, r.Status, r.Ms, r.SparseRatio = "Example GPU", OK, Summarize([]float64{ms}), 1
	r.Samples, r.Timer, r.Sets = []float64{ms}, "device", 2
	r.TFLOPs, r.TBs = TFLOPs(p, ms), float64(r.KVBytes)/ms/1e9
	r.Checked = Checked{Rows: 64, Of: p.rows(), MaxError: 1e-4, NMSE: 1e-7}
	return r
}

func servingRows() (rows []*Row) {
	for i, p := range serving() {
		group := []*Row{timedRow(p, Spec{Tier: attention.TierCoopMat2}, 0.5), timedRow(p, Spec{Tier: attention.TierScalar, Baseline: BaselineByMask}, 20)}
		if i == 3 {
			group = append(group, timedRow(p, Spec{Tier: attention.TierCUDA, Kernel: "ref", Baseline: BaselineCUDARef}, 8))
		}
		for _, r := range group {
			r.Result = &Result{Elements: 1000, MaxAbs: 1.0302734375, From: map[string]Number{"by-mask": 0.0009765625, "cuda-ref": 0}}
			if p.Options.SparseRatio > 0 {
				r.SparseRatio = 0.01997607291090003
			}
		}
		switch i {
		case 1: // a reference that was refused
			group[1].Status, group[1].Reason, group[1].Result, group[1].Ms = Unsupported, "a mask of 2 GiB", nil, Summary{}
			group[0].Result.From = nil
		case 2: // a wrong row
			group[0].Status, group[0].Reason, group[0].Ms, group[0].Result.NaN = Fail, "3 of 1000 elements are NaN", Summary{}, 3
		case 4: // nothing to compare with
			group = group[:1]
		}
		compare(group)
		rows = append(rows, group...)
	}
	return rows
}

func decodeRows() (rows []*Row) {
	for i, p := range decode()[:11] {
		auto := timedRow(p, Spec{Tier: attention.TierAuto}, 0.07+float64(i)/1000)
		auto.Tier, auto.Splits = "coopmat2", 4
		group := []*Row{auto, timedRow(p, Spec{Tier: attention.TierAuto, Baseline: BaselineCopy}, 0.0625)}
		if p.Plain() {
			flash := timedRow(p, Spec{}, 0.1)
			flash.Tier, flash.Peer = "flash", true
			copied := timedRow(p, Spec{}, 0.06)
			copied.Tier, copied.Peer = "torch-copy", true
			group = append(group, flash, copied)
		}
		if i == 10 {
			auto.Status, auto.Reason, auto.Ms, auto.TBs = Unsupported, "SparseTokens with pages on this tier", Summary{}, 0
		}
		compare(group)
		rows = append(rows, group...)
	}
	return rows
}

func TestTablesOfInferenceMatchTheirGoldenFiles(t *testing.T) {
	for name, rows := range map[string][]*Row{"serving": servingRows(), "decode": decodeRows()} {
		t.Run(name, func(t *testing.T) {
			info := &RunInfo{Program: "vkattn", Version: "test", Seed: 42, Suite: name, Baselines: []string{"copy"}}
			if name == "decode" {
				info.Peers = []peer.Info{{Name: "flash"}, {Name: "torch-copy"}}
			}
			for _, f := range []Format{"md", "csv", "jsonl"} {
				var out bytes.Buffer
				info.Planned = planned(rows)
				p := NewPrinter(f, &out, info)
				for _, r := range rows {
					require.NoError(t, p.Row(r))
				}
				require.NoError(t, p.Close(info))
				require.NotEmpty(t, out.String())
				if f != "md" {
					continue
				}
				isGolden(t, name+".md", out.String())
			}
		})
	}
}

func TestInferenceSuites(t *testing.T) {
	lines := map[string]int{}
	for _, name := range []string{"serving", "decode"} {
		list := suiteProblems(t, name, attention.F16, attention.BF16)
		seen := map[string]bool{}
		for _, p := range list {
			require.NotEmpty(t, p.Line)
			require.False(t, seen[p.String()], "%v is there twice", p)
			seen[p.String()] = true
			lines[name]++
			if p.Lengths != "" {
				s := p.Shape
				p.Lengths.bound(&s)
				require.Equal(t, s, p.Shape, "%v", p)
				again, err := ParseLengths(string(p.Lengths), 0)
				require.NoError(t, err)
				require.Equal(t, p.Lengths, again)
			}
		}
	}
	require.Equal(t, 14, lines["serving"], "seven lines in two types")
	// The first problem of suite decode has 256 MiB of K and V.
	for _, p := range decode()[:1] {
		require.EqualValues(t, 256<<20, p.KVBytes())
	}
}
