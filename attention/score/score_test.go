package score_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	. "vkattn/attention/score"
	"vkattn/internal/randscore"
	"vkattn/internal/testlevel"
)

var (
	doc    = IntTable("doc", 1)
	bias   = FloatTable("bias", 2)
	cube   = FloatTable("cube", 3)
	tables = []Table{doc, bias, cube}
)

// memory is the memory of those tables.
func memory(r *rand.Rand) []Memory {
	var list []Memory
	for i, dims := range [][MaxRank]int{{17}, {4, 5}, {2, 3, 2}} {
		n := dims[0] * max(1, dims[1]) * max(1, dims[2])
		m := Memory{Name: tables[i].Name(), Dims: dims}
		for range n {
			bits := math.Float32bits(float32(r.NormFloat64()))
			if i == 0 {
				bits = uint32(r.IntN(5) - 1)
			}
			m.Data = binary.LittleEndian.AppendUint32(m.Data, bits)
		}
		list = append(list, m)
	}
	return list
}

func seeded(t *testing.T) *rand.Rand {
	seed := testlevel.Seed(t)
	return rand.New(rand.NewPCG(seed, 0))
}

func random(r *rand.Rand) *Slots {
	at := &Slots{Slope: float64(float32(r.Float64())), B: r.IntN(3), Head: r.IntN(8), KVHead: r.IntN(2), Row: r.IntN(30), Rows: 30,
		Keys: 40, Tables: memory(r)}
	at.I = at.Row + 10
	for j := range 33 {
		at.S = append(at.S, float64(float32(3*r.NormFloat64())))
		at.J = append(at.J, j)
		at.Bias = append(at.Bias, float32(r.NormFloat64()))
	}
	return at
}

func evaluate(e Expr, at *Slots, round func(float64) float64) []float64 {
	x := make([]float64, len(at.J))
	NewEvaluator(e, round).Eval(x, at)
	return x
}

func parse(t *testing.T, text string) Expr {
	t.Helper()
	e, err := Parse(text, tables...)
	require.NoError(t, err)
	return e
}

// What a text means, and its canonical form.
func TestTexts(t *testing.T) {
	for text, want := range map[string]struct {
		text string
		x    float64 // at s = 2, i = 7, j = 10
	}{
		"s":                              {"s", 2},
		"s+1":                            {"s + 1.0", 3},
		"s + 0.1 * min(i - j, 8)":        {"s + 0.1 * float(min(i - j, 8))", 2 + float64(float32(0.1))*-3},
		"j<=i && i-j<128":                {"j <= i && i - j < 128", 0},
		"j > i":                          {"i < j", 1},
		"j >= i ? s : -inf":              {"i <= j ? s : -inf", 2},
		"i - j - 1":                      {"i - j - 1", -4},
		"i - (j - 1)":                    {"i - (j - 1)", -2},
		"(i - j) / 2":                    {"(i - j) / 2", -2},
		"(i - j) % 2":                    {"(i - j) % 2", 1},
		"i / 0 + i % 0":                  {"i / 0 + i % 0", 0},
		"1 << 33":                        {"1 << 33", 2},
		"-8 >> 1":                        {"-8 >> 1", -4},
		"2147483647 + 1":                 {"2147483647 + 1", math.MinInt32},
		"-2147483648 / -1":               {"-2147483648 / -1", math.MinInt32},
		"abs(-2147483648)":               {"abs(-2147483648)", math.MinInt32},
		"i & 3 == 3":                     {"error", 0}, // as in C, == binds more tightly
		"(i & 3) == 3":                   {"(i & 3) == 3", 1},
		"i | 8 ^ 4 & 12":                 {"i | 8 ^ 4 & 12", 15},
		"~i":                             {"~i", -8},
		"!(i < j)":                       {"!(i < j)", 0},
		"- - i":                          {"--i", 7},
		"-(3)":                           {"-3", -3},
		"1e2":                            {"100.0", 100},
		".5 + 2.":                        {"0.5 + 2.0", 2.5},
		"clamp(i-j, -2, 2)":              {"min(max(i - j, -2), 2)", -2},
		"i < j ? j < 5 ? 1 : 2 : 3":      {"i < j ? j < 5 ? 1 : 2 : 3", 2},
		"(i < j ? true1[0] : 2)":         {"error", 0},
		"doc[i] == doc[j]":               {"doc[i] == doc[j]", 0},
		"bias[h, i]":                     {"bias[h, i]", 3},
		"sign(s) + floor(2.5) + sqrt(4)": {"sign(s) + floor(2.5) + sqrt(4.0)", 5},
		"i < j == (s > 1)":               {"i < j == 1.0 < s", 1},
		"bias[h, 100] + bias[h, -5]":     {"bias[h, 100] + bias[h, -5]", 4},
	} {
		e, err := Parse(text, tables...)
		if want.text == "error" {
			require.Error(t, err, text)
			continue
		}
		require.NoError(t, err, text)
		require.Equal(t, want.text, e.String(), text)
		again, err := Parse(e.String(), tables...)
		require.NoError(t, err)
		require.True(t, e == again, text)
		at := &Slots{S: []float64{2}, J: []int{10}, I: 7, Tables: []Memory{
			{Name: "doc", Dims: [3]int{20}, Data: bytesOf(0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2)},
			{Name: "bias", Dims: [3]int{1, 4}, Data: bytesOf(1.0, 2.0, 2.5, 3.0)}}}
		require.Equal(t, want.x, evaluate(e, at, nil)[0], text)
	}
}

// bytesOf are ints and floats as memory.
func bytesOf(list ...any) (b []byte) {
	for _, x := range list {
		switch x := x.(type) {
		case int:
			b = binary.LittleEndian.AppendUint32(b, uint32(x))
		case float64:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
		}
	}
	return b
}

func TestErrorsNameThePlace(t *testing.T) {
	for text, want := range map[string]string{
		"":                  `at 1 of "": end in place of an expression`,
		"s +":               "at 4 of \"s +\": end in place",
		"s + k":             `at 5 of "s + k": no variable "k"`,
		"s s":               `at 3 of "s s": unexpected "s"`,
		"(s":                "at 3 of \"(s\": end in place of ')'",
		"2 * (i < j)":       `at 1 of "2 * (i < j)": * takes numbers, not int and bool: 2 * (i < j)`,
		"s + doc[s]":        "at 5 of \"s + doc[s]\": an index of table doc is float, not int: s",
		"s + pages[j]":      `no table "pages"`,
		"bias[i]":           "table bias has 2 axes",
		"doc[i, j, i, j]":   `"," in place of "]"`,
		"min(s)":            "min takes 2 arguments, not 1",
		"erf(s)":            `no function "erf"`,
		"s % 2.0":           "% takes ints, not float and float",
		"i ? s : 0":         "takes a bool and two of one type",
		"i < j ? s : i < j": "takes a bool and two of one type",
		"4294967296":        "4294967296 is no int32",
		"1e39":              "no float32 constant",
		"1e999":             "too large",
		"0x10":              "0x10 is no number",
		"nan":               `no variable "nan"`,
		"!i":                "! takes a bool, not int",
		"~(i < j)":          "~ takes a int, not bool",
		"i && j":            "&& takes bools, not int and int",
		"s & 1":             "&& takes bools",
		"i = j":             `unexpected "="`,
		"s\x00":             "unexpected",
		"\xff":              "in place of an expression",
	} {
		_, err := Parse(text, tables...)
		require.ErrorContains(t, err, want, text)
	}
	require.ErrorContains(t, Num(math.NaN()).Err(), "NaN is no float32 constant")
	require.ErrorContains(t, Int(1<<31).Err(), "no int32")
	require.ErrorContains(t, Add(S, Mul(Expr{}, S)).Err(), "no expression")
	require.ErrorContains(t, IntTable("a b", 1).At(I).Err(), "no name of a table")
	require.ErrorContains(t, IntTable("min", 1).At(I).Err(), "no name of a table")
	require.ErrorContains(t, IntTable("t", 4).At(I, I, I, I).Err(), "table t has 4 axes")
	require.ErrorContains(t, Causal().CheckScore(), "the expression is bool, not float: j <= i")
	require.ErrorContains(t, S.CheckMask(), "float, not bool")
	require.ErrorContains(t, Lt(S, Num(0)).CheckMask(), "reads s")
	require.ErrorContains(t, Slope.CheckScore(), "reads slope")
	require.NoError(t, parse(t, "s + bias[h, j] * cube[0, 1, doc[i]]").CheckScore())
	_, err := TablesOf(Add(doc.At(I), doc.At(J)), FloatTable("doc", 1).At(I))
	require.ErrorContains(t, err, "two different tables are named doc")
	_, err = TablesOf(doc.At(I), bias.At(I, I), cube.At(I, I, I), IntTable("d", 1).At(I), IntTable("e", 1).At(I))
	require.ErrorContains(t, err, "5 tables, at most 4")
}

// Huge and deep expressions are refused, before they take long.
func TestHostileExpressions(t *testing.T) {
	e := S
	for range 200 { // 2^200 operations in the text
		e = Add(e, e)
	}
	require.ErrorContains(t, e.Err(), "more than")
	e = S
	for range 1000 {
		e = Tanh(e)
	}
	require.ErrorContains(t, e.CheckScore(), "more than")
	wide := S
	for range 10 {
		wide = Add(wide, wide)
	}
	require.ErrorContains(t, wide.CheckScore(), "at most 1024 are possible")
	require.Less(t, len(wide.CheckScore().Error()), 400)
	product := S
	for range 8 {
		product = Mul(product, Tanh(product))
	}
	require.NoError(t, product.CheckScore())
	for _, text := range []string{strings.Repeat("(", 1e5), strings.Repeat("-", 1e5) + "s", strings.Repeat("s+", 1e5) + "s",
		strings.Repeat("i<j?s:", 1e5) + "s", strings.Repeat("tanh(", 1e5), strings.Repeat("9", 1e5), strings.Repeat("x", 1e5)} {
		_, err := Parse(text, tables...)
		if err == nil {
			require.Error(t, parse(t, text).CheckScore(), "%.20q", text)
		} else {
			require.Less(t, len(err.Error()), 1000)
		}
	}
}

// Equal expressions are equal values with equal texts, and a text gives the expression back.
func TestRandomTexts(t *testing.T) {
	r := seeded(t)
	for range 3000 {
		e := randscore.Draw(r, TypeFloat, 5, true, tables...)
		require.NoError(t, e.Err())
		again := parse(t, e.String())
		require.True(t, e == again, "%v is read as %v", e, again)
		d := e.Diff()
		require.NoError(t, d.Err())
		require.True(t, d == parse(t, d.String()), "%v", d)
	}
}

// The derivative is the limit of differences, where these have one.
func TestDiffIsTheDerivative(t *testing.T) {
	r := seeded(t)
	list := []Expr{Mul(S, S), Div(Num(3), Add(Mul(S, S), Num(1))), Mul(Tanh(S), Tanh(Mul(S, Slope))), Softcap(Softcap(S, 9), 5),
		Softcap(S, 4).Diff(), Mul(Bias, Abs(Sub(S, J))), ALiBi(Add(Softcap(S, 3), Bias), Slope), Sqrt(Add(Mul(S, S), Num(1))),
		Log(Add(Mul(S, S), Num(1))), Cos(Exp(Sin(S))), Select(Lt(S, Num(0)), Mul(S, S), Neg(S)), Min(S, Max(Mul(S, S), Num(0.5)))}
	for range 1500 {
		list = append(list, randscore.DrawSmooth(r, TypeFloat, 4, true, tables...)) // a steep staircase looks like a slope
	}
	const h = 1e-5
	judged, undefined := 0, 0
	for _, e := range list {
		at := random(r)
		diff, base, mid := evaluate(e.Diff(), at, nil), at.S, evaluate(e, at, nil)
		shifted := func(by float64) []float64 {
			at.S = make([]float64, len(base))
			for i, x := range base {
				at.S[i] = x + by
			}
			return evaluate(e, at, nil)
		}
		above, below, near := shifted(h), shifted(-h), shifted(h/4)
		for i := range diff {
			left, right := (mid[i]-below[i])/h, (above[i]-mid[i])/h
			room := 1e-3 * max(1, math.Abs(left), math.Abs(mid[i]))
			nearer := (near[i] - mid[i]) / (h / 4)
			if !(math.Abs(left-right) < room && math.Abs(nearer-right) < room) || math.Abs(mid[i]) > 1e6 {
				continue // a kink, a step, or a pole
			}
			if math.IsNaN(diff[i]) { // Inf within, whose derivative is none
				undefined++
				continue
			}
			judged++
			require.InDelta(t, (left+right)/2, diff[i], 2*room, "%v at %v, whose derivative is %v", e, base[i], e.Diff())
		}
	}
	require.Greater(t, judged, 20000)
	require.Less(t, undefined, judged/20)
	for _, x := range []float64{0, 1, 20, 300, 1e6} { // without cancellation
		cosh := math.Cosh(x)
		require.Equal(t, 1/(cosh*cosh), evaluate(Softcap(S, 1).Diff(), &Slots{S: []float64{x}, J: []int{0}}, nil)[0])
	}
	require.Equal(t, Num(1), ALiBi(Add(S, Bias), Slope).Diff())
	require.Equal(t, "sech2(s / 30.0)", ALiBi(Add(Softcap(S, 30), Bias), Slope).Diff().String())
}

// Every value lies within the bounds, in float64 and in float32, and masks of positions have exact ones.
func TestBoundsHoldEveryValue(t *testing.T) {
	r := seeded(t)
	known := 0
	for range 4000 {
		typ := []Type{TypeFloat, TypeInt, TypeBool}[r.IntN(3)]
		e := randscore.Draw(r, typ, 4, true, tables...)
		at := random(r)
		tile := Tile{I0: at.I - r.IntN(3), I1: at.I + r.IntN(3), J0: 8, J1: 8 + r.IntN(8)}
		at.S, at.J, at.Bias = at.S[:tile.J1-7], at.J[8:tile.J1+1], at.Bias[8:tile.J1+1]
		b := e.Bounds(tile)
		if b.Lo == b.Hi {
			known++
		}
		for _, round := range []func(float64) float64{nil, Float32} {
			for _, x := range evaluate(e, at, round) {
				if math.IsNaN(x) {
					require.True(t, b.NaN, "%v is NaN in %v", e, tile)
				} else {
					require.True(t, b.Lo <= x && x <= b.Hi, "%v is %v in %v, bounds %v", e, x, tile, b)
				}
			}
		}
	}
	require.Greater(t, known, 100)
	for _, c := range []struct {
		mask Expr
		tile Tile
		want Interval
	}{
		{Causal(), Tile{0, 63, 64, 127}, Interval{0, 0, false}},
		{Causal(), Tile{64, 127, 0, 63}, Interval{1, 1, false}},
		{Causal(), Tile{0, 63, 0, 63}, Interval{0, 1, false}},
		{SlidingWindow(100, 0), Tile{256, 319, 0, 63}, Interval{0, 0, false}},
		{SlidingWindow(100, 0), Tile{64, 79, 0, 63}, Interval{1, 1, false}},
		{Chunked(64), Tile{0, 63, 64, 127}, Interval{0, 0, false}},
		{Chunked(64), Tile{64, 127, 64, 127}, Interval{1, 1, false}},
	} {
		require.Equal(t, c.want, c.mask.Bounds(c.tile), "%v in %v", c.mask, c.tile)
	}
}

// An evaluator needs no memory beyond its first row, and results may lie where scores do.
func TestEvaluatingRowsAllocatesNothing(t *testing.T) {
	at := random(seeded(t))
	w := NewEvaluator(ALiBi(Add(Softcap(S, 30), Bias), Slope), nil)
	fresh := make([]float64, len(at.S))
	w.Eval(fresh, at)
	require.Zero(t, testing.AllocsPerRun(10, func() { w.Eval(fresh, at) }))
	w.Eval(at.S, at)
	require.Equal(t, fresh, at.S)
}

// NaN reaches the result, but through a comparison.
func TestNaNOfExpressions(t *testing.T) {
	at := &Slots{S: []float64{math.NaN()}, J: []int{0}}
	for text, want := range map[string]float64{"s != s": 1, "s == s": 0, "s < 0.0": 0, "s < 0.0 ? 1.0 : 2.0": 2} {
		require.Equal(t, want, evaluate(parse(t, text), at, nil)[0], text)
	}
	for _, text := range []string{"min(s, 0.0)", "min(0.0, s)", "max(s, 0.0)", "max(0.0, s)", "abs(s)", "sign(s)", "tanh(s)", "exp(s)",
		"floor(s)", "sqrt(s)", "s * 0.0", "clamp(s, -1.0, 1.0)"} {
		require.True(t, math.IsNaN(evaluate(parse(t, text), at, nil)[0]), text)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"s + 0.1 * min(i - j, 8)", "j <= i && doc[i] == doc[j]", "i < j ? -inf : bias[h, i % 5]", "((((", "1e", "~-!i"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := Parse(text, tables...)
		if err != nil {
			return
		}
		require.NoError(t, e.Err())
		if e.CheckScore() != nil && e.CheckMask() != nil {
			return
		}
		again, err := Parse(e.String(), tables...)
		require.NoError(t, err)
		require.True(t, e == again)
		at := &Slots{S: []float64{0.5}, J: []int{3}}
		x := evaluate(e, at, Float32)[0]
		b := e.Bounds(Tile{0, 0, 3, 3})
		require.True(t, b.NaN && math.IsNaN(x) || b.Lo <= x && x <= b.Hi, "%v: %v, %v", e, x, b)
	})
}
