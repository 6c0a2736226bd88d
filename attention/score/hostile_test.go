package score_test

import (
	"encoding/binary"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	. "vkattn/attention/score"
)

// hostile builds an expression from a program: each byte pushes a leaf, or puts an operation in place of its arguments,
// which may have the wrong types, errors, or any size.
func hostile(program []byte) Expr {
	tables := []Table{IntTable("doc", 1), FloatTable("bias", 2), FloatTable("doc", 1), FloatTable("cube", 3), IntTable("s", 1), IntTable("rank4", 4),
		FloatTable("a", 1), FloatTable("c", 1), FloatTable("d", 1)}
	leaves := []Expr{S, B, Head, KVHead, I, J, Row, Rows, Keys, Bias, Slope, {}, Int(0), Int(1), Int(-1), Int(31), Int(math.MaxInt32), Int(math.MinInt32),
		Int(1 << 40), Num(0), Num(math.Copysign(0, -1)), Num(math.NaN()), Num(math.Inf(1)), Num(math.Inf(-1)), Num(1e300), Num(1e-300), Num(30)}
	ones := []func(Expr) Expr{Neg, Not, Abs, Sign, Exp, Log, Tanh, Sin, Cos, Sqrt, Floor, Float, Expr.Diff,
		func(x Expr) Expr { return x.Of(Exp(S)) }, func(x Expr) Expr { return Softcap(x, 30) }, func(x Expr) Expr { return ALiBi(x, x) }}
	twos := []func(x, y Expr) Expr{Add, Sub, Mul, Div, Mod, And, Or, Xor, Shl, Shr, Eq, Ne, Lt, Le, Gt, Ge, Min, Max}
	stack := []Expr{S}
	pop := func() (x Expr) {
		if n := len(stack); n > 0 {
			x, stack = stack[n-1], stack[:n-1]
		}
		return x
	}
	for _, b := range program {
		n := int(b)
		var x Expr
		switch {
		case n < 2*len(leaves):
			x = leaves[n%len(leaves)]
		case n < 2*len(leaves)+4*len(ones):
			x = ones[n%len(ones)](pop())
		case n < 230:
			y := pop()
			x = twos[n%len(twos)](pop(), y)
		case n < 235:
			z, y := pop(), pop()
			x = Select(pop(), y, z)
		case n < 238: // twice the last one: sizes grow as powers of two
			x = pop()
			stack = append(stack, x)
		default:
			t := tables[n%len(tables)]
			var at []Expr
			for range n%3 + 1 {
				at = append(at, pop())
			}
			x = t.At(at...)
		}
		stack = append(stack, x)
	}
	return pop()
}

// hostileMemory are tables of a few elements, which most indices are beyond. As ints and as floats they are large or NaN.
var hostileMemory = func() (list []Memory) {
	for name, dims := range map[string][MaxRank]int{"doc": {3}, "bias": {2, 3}, "cube": {2, 1, 3}, "a": {1}, "c": {2}, "d": {5}} {
		m := Memory{Name: name, Dims: dims}
		for i := range dims[0] * max(dims[1], 1) * max(dims[2], 1) {
			m.Data = binary.LittleEndian.AppendUint32(m.Data, []uint32{0x80000000, 0x7fffffff, 0xffffffff, 0x7f800000, 3, 0x3f800000}[i])
		}
		list = append(list, m)
	}
	return list
}()

// A hostile expression is refused, or it has a value, bounds that hold it, a text that says the same, and instructions.
func FuzzHostileExpressions(f *testing.F) {
	module, err := os.ReadFile("../../tests/testdata/modifier_probe.spv")
	require.NoError(f, err)
	for _, seed := range []string{"", "\x00\xa0", "\x04\x05\x98\x8a", "\x00\x15\x76", "\xec\xb0\xec\xb0\xec\xb0\xec\xb0\xec\xb0\xec\xb0\xec\xb0\xec\xb0\xec\xb0\xec\xb0\xec\xb0",
		"\x04\x05\xf0\x00\x76", "\x05\x11\x79\x0e\x79", "\x00\x4a\x4b\x4c\x4d\x4e"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) > 3000 {
			return
		}
		e := hostile(program)
		_ = e.Err()
		asScore, asMask := e.CheckScore(), e.CheckMask()
		if asScore != nil && asMask != nil {
			require.NotEmpty(t, asScore.Error()+asMask.Error())
			return
		}
		require.False(t, asScore == nil && asMask == nil)
		at := &Slots{S: []float64{0.5}, J: []int{3}, I: 4, Row: 2, Rows: 5, Keys: 7, Head: 1, Tables: hostileMemory}
		x := []float64{0}
		NewEvaluator(e, Float32).Eval(x, at)
		b := e.Bounds(Tile{4, 4, 3, 3})
		require.True(t, b.NaN && math.IsNaN(x[0]) || b.Lo <= x[0] && x[0] <= b.Hi, "%v: %v, %v", e, x, b)
		m := Modifiers{Mask: e}
		if asScore == nil {
			m = Modifiers{Score: e}
		} else if q := e.Tiles(); q.Answer.Err() == nil {
			_ = q.Answer.String()
		}
		tables, err := TablesOf(e)
		require.NoError(t, err)
		again, err := Parse(e.String(), tables...)
		require.NoError(t, err, "%v", e)
		require.True(t, again == e, "%v and %v", e, again)
		code, err := Rewrite(module, m, TableLayout{ParamsBinding: 2, FirstBinding: 3})
		require.NoError(t, err, "%v", e)
		requireInstructions(t, code)
	})
}

// requireInstructions checks what spirv-val checks first: instructions end where the module ends, and ids are below its bound.
func requireInstructions(t *testing.T, code []byte) {
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(code[4*i:]) }
	bound, functions := word(3), 0
	at := 5
	for at < len(code)/4 {
		n, op := int(word(at)>>16), word(at)&0xffff
		require.True(t, n > 0 && at+n <= len(code)/4, "word %d", at)
		if op >= 124 && op <= 200 { // arithmetic and logic: a type, a result and operands
			for i := 1; i < n; i++ {
				require.True(t, word(at+i) > 0 && word(at+i) < bound, "instruction %d at word %d", op, at)
			}
		}
		if op == 56 {
			functions++
		}
		at += n
	}
	require.Equal(t, 4, functions)
}
