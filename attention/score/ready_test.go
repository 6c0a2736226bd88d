package score_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	. "vkattn/attention/score"
)

// Each ready-made mask is its obvious loop.
func TestReadyMadeMasks(t *testing.T) {
	const rows, keys, b = 23, 29, 2
	ints := func(n int, f func(int) int) (list []any) {
		for i := range n {
			list = append(list, f(i))
		}
		return list
	}
	docs := func(i int) int { return i / 7 }
	images := func(i int) int {
		if i >= 9 && i < 15 {
			return 1
		}
		return -1
	}
	parents := func(c int) int { return (c - 1) / 2 } // a binary tree
	ancestor := func(row, c int) bool {
		for row > c && row > 0 {
			row = parents(row)
		}
		return row == c
	}
	words := ints(rows, func(row int) int {
		bits := 0
		for c := range rows {
			if ancestor(row, c) {
				bits |= 1 << c
			}
		}
		return int(int32(uint32(bits)))
	})
	tables := []Memory{{Name: "doc", Dims: [3]int{keys}, Data: bytesOf(ints(keys, docs)...)},
		{Name: "image", Dims: [3]int{keys}, Data: bytesOf(ints(keys, images)...)},
		{Name: "prefix", Dims: [3]int{3}, Data: bytesOf(0, 0, 5)},
		{Name: "tree", Dims: [3]int{rows, 1}, Data: bytesOf(words...)}}
	within := func(i, j, n, kernel int) bool { // NATTEN, by the start of the window
		start := min(max(i-kernel/2, 0), n-kernel)
		return j >= start && j < start+kernel
	}
	for name, c := range map[string]struct {
		mask Expr
		want func(i, j int) bool
	}{
		"causal":         {Causal(), func(i, j int) bool { return j <= i }},
		"window":         {SlidingWindow(4, 2), func(i, j int) bool { return i-j <= 4 && j-i <= 2 }},
		"chunks":         {Chunked(8), func(i, j int) bool { return i/8 == j/8 }},
		"prefix-LM":      {PrefixLM(IntTable("prefix", 1)), func(i, j int) bool { return j < 5 || j <= i }},
		"documents":      {All(Causal(), Documents(IntTable("doc", 1))), func(i, j int) bool { return j <= i && docs(i) == docs(j) }},
		"images":         {Or(Causal(), Images(IntTable("image", 1))), func(i, j int) bool { return j <= i || i >= 9 && i < 15 && j >= 9 && j < 15 }},
		"sinks + window": {SinksWindow(3, 5), func(i, j int) bool { return j <= i && (j < 3 || j > i-5) }},
		"dilated":        {Dilated(3), func(i, j int) bool { return (i-j)%3 == 0 }},
		"strided":        {Strided(4), func(i, j int) bool { return j <= i && (i-j <= 4 || (i-j)%4 == 0) }},
		"NATTEN":         {NATTEN(7), func(i, j int) bool { return within(i, j, keys, 7) }},
		"NATTEN 2-D": {NATTEN2D(5, 6, 3, 5), func(i, j int) bool {
			return within(i/6, j/6, 5, 3) && within(i%6, j%6, 6, 5)
		}},
		"tree": {Tree(IntTable("tree", 2)), func(i, j int) bool {
			return j < keys-rows || ancestor(i-(keys-rows), j-(keys-rows))
		}},
	} {
		require.NoError(t, c.mask.CheckMask(), name)
		for row := range rows {
			at := &Slots{B: b, Row: row, I: row + keys - rows, Rows: rows, Keys: keys, Tables: tables}
			for j := range keys {
				at.J = append(at.J, j)
			}
			for j, x := range evaluate(c.mask, at, Float32) {
				require.Equal(t, c.want(at.I, j), x == 1, "%s: row at %d, key %d: %v", name, at.I, j, c.mask)
			}
		}
	}
}

// Softcap and ALiBi are their formulas, and T5's buckets are those of its own code.
func TestReadyMadeScores(t *testing.T) {
	at := random(seeded(t))
	for j, x := range evaluate(ALiBi(Softcap(S, 5), Num(0.25)), at, nil) {
		require.InDelta(t, 5*math.Tanh(at.S[j]/5)-0.25*math.Abs(float64(at.I-j)), x, 1e-12)
	}
	for _, bidirectional := range []bool{false, true} {
		for _, buckets := range []int{8, 32} {
			const far, keys = 128, 400
			e := T5Bias(S, FloatTable("t5", 2), buckets, far, bidirectional)
			require.NoError(t, e.CheckScore())
			var numbers []any
			for n := range buckets {
				numbers = append(numbers, float64(n))
			}
			at := &Slots{I: 200, S: make([]float64, keys), Tables: []Memory{{Name: "t5", Dims: [3]int{1, buckets}, Data: bytesOf(numbers...)}}}
			for j := range keys {
				at.J = append(at.J, j)
			}
			for j, x := range evaluate(e, at, nil) {
				require.Equal(t, float64(t5Bucket(j-at.I, buckets, far, bidirectional)), x, "distance %d of %d buckets", j-at.I, buckets)
			}
		}
	}
}

// t5Bucket is _relative_position_bucket of T5 in Hugging Face's transformers, in float32 as it is there.
func t5Bucket(relative, buckets, far int, bidirectional bool) int {
	first := 0
	if bidirectional {
		buckets /= 2
		if relative > 0 {
			first = buckets
		}
		relative = max(relative, -relative)
	} else {
		relative = -min(relative, 0)
	}
	exact := buckets / 2
	if relative < exact {
		return first + relative
	}
	x := float32(math.Log(float64(float32(relative)/float32(exact)))) / float32(math.Log(float64(far)/float64(exact))) * float32(buckets-exact)
	return first + min(exact+int(x), buckets-1)
}
