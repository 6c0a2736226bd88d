package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

func TestLSECrossesForwardPasses(t *testing.T) {
	p := smallProblem(attention.F16)
	list, err := Lists("pass=fwd,bwd,fwdbwd").cross([]Problem{p})
	require.NoError(t, err)
	list = append(list, Problem{Ceiling: CeilingCopy})
	same, err := Sweep{}.cross(list)
	require.NoError(t, err)
	require.Equal(t, list, same)
	both, err := Lists("lse=false,true").cross(list)
	require.NoError(t, err)
	with := p
	with.LSE = true
	require.Equal(t, append([]Problem{p, with}, list[1:]...), both)
	_, err = Lists("lse=false,true").cross(make([]Problem, maxProblems))
	require.ErrorContains(t, err, "over 10000 problems")
}

// A row with LSE and a row without are different rows for readers, compare and --baseline.
func TestARowSaysThatItReturnsLSE(t *testing.T) {
	p := smallProblem(attention.F16)
	without := p.row("cpu")
	p.LSE = true
	with := p.row("cpu")
	require.Equal(t, "LSE", with.OptionText)
	require.True(t, with.LSE)
	require.True(t, p.Plain(), "peers get the problem")
	require.Contains(t, p.String(), " with LSE")
	require.Contains(t, with.Who(), " with LSE")
	require.NotEqual(t, without.Key().String(), with.Key().String())
	require.Contains(t, with.Key().String(), "/options=LSE/")
	text, err := json.Marshal(with)
	require.NoError(t, err)
	require.Contains(t, string(text), `"lse":true`)
	var back Row
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, with.Key(), back.Key())
	require.Equal(t, p, back.Problem())
	text, err = json.Marshal(without)
	require.NoError(t, err)
	require.NotContains(t, string(text), "lse")

	p.Config.Softcap = 3
	require.Equal(t, "softcap 3, LSE", p.row("cpu").OptionText)

	info := &RunInfo{}
	last := columns[len(columns)-1]
	require.Equal(t, "lse", last.name)
	for row, want := range map[*Row]string{with: "true", without: "false"} {
		require.Equal(t, want, last.cell(row, info))
	}
	var sql bytes.Buffer
	printer := NewPrinter("sql", &sql, info)
	require.NoError(t, printer.Row(with))
	require.NoError(t, printer.Close(info))
	require.Contains(t, sql.String(), `"lse" BOOLEAN`)
	require.Contains(t, sql.String(), ", true);")
}

func TestRowsWithLSEAreVerified(t *testing.T) {
	checked := map[Baseline]int{}
	for _, p := range append(withOptions(), smallProblem(attention.F16), smallProblem(attention.BF16), smallProblem(attention.F32)) {
		p.LSE = true
		b := &Bench{CPU: "cpu", Timing: Timing{Repeats: 2, Warmup: -1, WarmCache: true}, Seed: 5, Specs: []Spec{{Tier: attention.TierCPU}},
			Baselines: []Baseline{BaselineByMask, BaselineContiguous, BaselineSeparate}}
		rows := measured(t, b, p)
		for _, r := range rows {
			if r.Baseline == BaselineByMask && r.Status == Unsupported {
				continue
			}
			require.Equal(t, OK, r.Status, "%s, %v: %s", r.Who(), p, r.Reason)
			require.True(t, r.LSE)
			require.Positive(t, r.Ms.Median)
			checked[r.Baseline]++
			if r.Checked.LSEError > 0 {
				require.Less(t, float64(r.Checked.LSEError), 1e-2, "%v", p)
			}
		}
	}
	require.NotZero(t, checked[BaselineByMask])
	require.NotZero(t, checked[BaselineContiguous])
	require.Zero(t, checked[BaselineSeparate], "a call of one sequence cannot place LSE")
}

func TestAWrongLSEIsFound(t *testing.T) {
	lengths := Lengths("20/33,1/9,40/40")
	packed, padded := smallProblem(attention.F16), smallProblem(attention.F16)
	packed.Lengths, packed.Packed, padded.Lengths = lengths, true, lengths
	lengths.bound(&packed.Shape)
	lengths.bound(&padded.Shape)
	for name, p := range map[string]Problem{"f16": smallProblem(attention.F16), "f32": smallProblem(attention.F32), "packed": packed, "padded": padded} {
		p.LSE = true
		d := newData(p, 3)
		truth, err := newTruth(d, 3)
		require.NoError(t, err)
		op, err := attention.New(nil, p.Config)
		require.NoError(t, err)
		out, err := onCPU(t, d).results(context.Background(), &work{op: op})
		require.NoError(t, err)
		o, lse := out["O"], out["LSE"]
		checked, err := d.judge(truth, o, lse)
		require.NoError(t, err, name)
		require.Positive(t, float64(checked.LSEError))
		// The last row of the last head exists in each of the problems.
		last := lse[len(lse)-4:]
		value := math.Float32frombits(binary.LittleEndian.Uint32(last))
		for _, wrong := range []float32{float32(math.NaN()), float32(math.Inf(-1)), 0, value * float32(math.Log2E), value + 0.1} {
			binary.LittleEndian.PutUint32(last, math.Float32bits(wrong))
			_, err = d.judge(truth, o, lse)
			require.ErrorContains(t, err, "LSE: ", "%s, %v in place of %v", name, wrong, value)
		}
	}
}
