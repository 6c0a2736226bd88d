package accuracy_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
)

// noisy is a tensor whose row i attends to keys[i] keys. As in attention, the error
// shrinks with the square root of that number.
func noisy(keys []int, width int, r *rand.Rand) (ref []float64, low []float32) {
	for _, n := range keys {
		scale := 1 / math.Sqrt(float64(n))
		for range width {
			v := r.NormFloat64() * scale
			ref = append(ref, v)
			low = append(low, float32(v+1e-2*r.NormFloat64()*scale))
		}
	}
	return ref, low
}

func TestAnEstimateOfAllRowsIsTheRules(t *testing.T) {
	const width = 64
	var keys []int
	for i := range 500 {
		keys = append(keys, 1+i)
	}
	ref, low := noisy(keys, width, rand.New(rand.NewPCG(1, 1)))
	l := accuracy.Forward(attention.F16)
	e := accuracy.NewEstimate(l, width, keys, ref, low, int64(len(ref)))
	whole := accuracy.Judge(l, width, low, ref, low).Whole
	var size float64
	for _, v := range ref {
		size = max(size, math.Abs(v))
	}
	most, mean, nmse := e.Whole(size)
	require.Equal(t, whole.LimMax, most)
	require.InEpsilon(t, whole.LimMean, mean, 1e-12)
	require.InEpsilon(t, whole.LimNMSE, nmse, 1e-12)
}

// A few rows say what others may be off by: what is like low passes in every block,
// and twice that does not.
func TestAnEstimateHoldsForRowsThatWereNotSeen(t *testing.T) {
	const width, rows, block = 64, 8192, 64
	r := rand.New(rand.NewPCG(7, 7))
	all := make([]int, rows)
	for i := range all {
		all[i] = i + 1
	}
	ref, low := noisy(all, width, r)
	var keys []int
	var someRef []float64
	var someLow []float32
	for range 400 {
		i := int(math.Exp(r.Float64()*math.Log(rows))) - 1
		keys = append(keys, all[i])
		someRef = append(someRef, ref[i*width:(i+1)*width]...)
		someLow = append(someLow, low[i*width:(i+1)*width]...)
	}
	e := accuracy.NewEstimate(accuracy.Forward(attention.BF16), width, keys, someRef, someLow, int64(len(ref)))
	wrong := func(factor float64) (most, mean int) {
		for at := 0; at < rows; at += block {
			var m, sum float64
			for i := at * width; i < (at+block)*width; i++ {
				err := factor * math.Abs(float64(low[i])-ref[i])
				m, sum = max(m, err), sum+err
			}
			limMax, limMean := e.Block(all[at], all[at+block-1], 0)
			if m > limMax {
				most++
			}
			if sum/(block*width) > limMean {
				mean++
			}
		}
		return most, mean
	}
	for _, factor := range []float64{0, 0.5, 1, 1.02} {
		most, mean := wrong(factor)
		require.Zero(t, most, "rule 1 at %v times low", factor)
		require.Zero(t, mean, "rule 2 at %v times low", factor)
	}
	_, mean := wrong(2.5)
	require.Greater(t, mean, rows/block*9/10, "rule 2")
	most, _ := wrong(5)
	require.Greater(t, most, rows/block*9/10, "rule 1")
}

func TestAnEstimateOfAFewRows(t *testing.T) {
	// Rows with nothing to attend to are exact and say nothing of the others.
	ref := []float64{0, 0, 1, 2}
	low := []float32{0, 0, 1.01, 2.01}
	e := accuracy.NewEstimate(accuracy.Forward(attention.F16), 2, []int{0, 5}, ref, low, 1000)
	empty, _ := e.Block(0, 0, 0)
	some, _ := e.Block(9, 1<<20, 2)
	require.Less(t, empty, 1e-3)
	require.Greater(t, some, 2*0.01)
	noise := accuracy.Forward(attention.F32)
	noise.Noise = []float64{0, 0, 1, 0}
	e = accuracy.NewEstimate(noise, 2, []int{0, 5}, ref, low, 1000)
	some, _ = e.Block(5, 5, 2)
	require.Greater(t, some, 2.0, "noise counts for low")
}
