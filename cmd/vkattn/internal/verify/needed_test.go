package verify

import (
	"context"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/cases"
	"vkattn/internal/hostmem"
)

func onCPU() *Verifier {
	return &Verifier{Label: "cpu", List: []bench.Spec{{Tier: attention.TierCPU}}, Repeat: 1}
}

func TestTheFootprintIsThatOfTheProblem(t *testing.T) {
	for layout := cases.Tight; layout <= cases.Window; layout++ {
		for _, dtype := range attention.DTypes() {
			c := cases.Case{D: 24, Dv: 40, Shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 33, Sk: 47}, LSE: true, Layout: layout}
			p, err := cases.NewProblem(c, dtype)
			require.NoError(t, err)
			var image, outputs uint64
			for _, b := range p.Image {
				image += uint64(len(b))
			}
			for _, i := range p.Outputs() {
				outputs += uint64(len(p.Image[i]))
			}
			f := footprintOf(c, dtype)
			require.Equal(t, image, f.image, "%v %v", layout, dtype)
			require.GreaterOrEqual(t, f.outputs, outputs)
			if layout == cases.Tight {
				require.Equal(t, outputs, f.outputs)
				wide, err := p.Widened()
				require.NoError(t, err)
				image = 0
				for _, b := range wide.Image {
					image += uint64(len(b))
				}
				require.Equal(t, image, f.wide)
			}
		}
	}
}

func TestAProblemThatDoesNotFitMemoryIsARow(t *testing.T) {
	c := cases.Case{D: 64, Dv: 64, Shape: attention.Shape{B: 1, Hq: 2, Sq: 100, Sk: 300}, LSE: true, Seed: 1}
	t.Setenv(hostmem.Variable, "64KiB")
	rows, err := onCPU().Problem(context.Background(), c, attention.F16)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, bench.OOM, rows[0].Status)
	require.Regexp(t, `needs [\d.]+ [KMGT]iB of host memory, 64 KiB are available`, rows[0].Note())
	var o Outcome
	o.Of(rows)
	require.Equal(t, 1, o.Count[bench.OOM])
	require.Equal(t, 1, o.Uncompared)

	t.Setenv(hostmem.Variable, "64MiB")
	rows, err = onCPU().Problem(context.Background(), c, attention.F16)
	require.NoError(t, err)
	require.Equal(t, bench.OK, rows[0].Status, rows[0].Note())
}

func TestProblemsOfAnySizeAreRefusedAtOnce(t *testing.T) {
	const most = math.MaxInt32
	for _, s := range []attention.Shape{
		{B: most, Hq: 1, Sq: 1, Sk: most}, {B: 1, Hq: 1, Sq: most, Sk: most}, {B: most, Hq: most, Sq: 1, Sk: most},
		{B: most, Hq: most, Hkv: 1, Sq: 1, Sk: most}, {B: 1, Hq: 1, Sq: 1, Sk: most}, {B: most, Hq: most, Sq: most, Sk: most},
	} {
		for layout := cases.Tight; layout <= cases.Window; layout++ {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			rows, err := onCPU().Problem(context.Background(), cases.Case{D: 256, Dv: 256, Shape: s, Layout: layout, LSE: true, Seed: 1}, attention.F32)
			runtime.ReadMemStats(&after)
			require.NoError(t, err)
			require.Equal(t, bench.OOM, rows[0].Status, "%v: %s", s, rows[0].Note())
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
		}
	}
}
