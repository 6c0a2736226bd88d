package chart

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/internal/testlevel"
)

// Rows of a file may have any number. A picture of them is drawn or refused with an error,
// within seconds.
func TestHostileNumbersEndInAPictureOrAnError(t *testing.T) {
	r := rand.New(rand.NewPCG(testlevel.Seed(t), 1))
	numbers := []float64{0, 1, -1, Least, Most, 3.5, 1e-300, 5e-324, 1e300, math.MaxFloat64, -math.MaxFloat64}
	counts := []int{0, 1, 2, 64, -1, 1 << 31, math.MaxInt, math.MinInt}
	float := func() float64 { return numbers[r.IntN(len(numbers))] }
	count := func() int { return counts[r.IntN(len(counts))] }
	for range 400 {
		var rows []*bench.Row
		for range 1 + r.IntN(6) {
			row := &bench.Row{Device: "d", Tier: []string{"scalar", "", "a|b<script>"}[r.IntN(3)], Status: bench.OK,
				Variant: []string{"", "", "v1", "v9"}[r.IntN(4)], TFLOPs: float(), TBs: float(), KVBytes: uint64(r.IntN(3)),
				Pass: bench.Pass(r.IntN(3)), Ceiling: []bench.Ceiling{"", "", "", bench.CeilingCopy, bench.CeilingFMA, "other"}[r.IntN(6)],
				Call: fields.Call{B: count(), Hq: count(), Hkv: count(), Sq: count(), Sk: count(), D: count(), Dv: count(), DType: attention.DType(r.IntN(3))}}
			row.Ms.Median = float()
			if r.IntN(2) == 0 {
				row.B, row.Hq, row.Hkv, row.D, row.Dv, row.Sq, row.Tier, row.Pass = 1, 1, 1, 8, 8, 1, "scalar", 0
			}
			rows = append(rows, row)
		}
		done := make(chan any, 1)
		go func() {
			defer func() { done <- recover() }()
			figures := Figures(rows, Ceilings{TFLOPs: []float64{0, Least, Most}[r.IntN(3)], TBs: []float64{0, Least, Most}[r.IntN(3)]})
			if len(figures) > 0 {
				_ = SVG(io.Discard, figures, 2, "")
				_ = PNG(io.Discard, figures, 2, "")
			}
		}()
		select {
		case v := <-done:
			require.Nil(t, v, dump(rows))
		case <-time.After(10 * time.Minute):
			t.Fatal("hangs: ", dump(rows))
		}
	}
}

func dump(rows []*bench.Row) (s string) {
	for _, r := range rows {
		s += fmt.Sprintf("%+v\n", *r)
	}
	return s
}
