package tests

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/score"
)

// The functions of flash-attention's tests of score_mod and mask_mod (tests/cute/score_mod_definitions.py,
// mask_mod_definitions.py and test_score_mod.py, August 2026), each as an expression and as the loop that it stands for. Their vectorized twins
// say the same. q is our row: they count rows from 0. Positions in packed tensors are sums with the first row or key of the
// sequence, a table.
//
//	first[0, b], first[1, b]  first row and key of a sequence
//	at[n]                     a number of each packed position
//	doc[b, h, n]              a number of each position of each head
//	bias[k, n]                vectors of floats
var flashTables = []score.Table{score.IntTable("first", 2), score.IntTable("at", 1), score.IntTable("doc", 3), score.FloatTable("bias", 2)}

// flashSlot is a slot in their names.
type flashSlot struct{ b, h, q, k, rows, keys int }

func (x flashSlot) firstQ() int { return []int{0, 70, 140}[x.b] }
func (x flashSlot) firstK() int { return []int{0, 90, 180}[x.b] }

func flashAt(n int) int          { return n / 5 % 17 }
func flashDoc(b, h, n int) int   { return n / (3 + b + h) }
func flashBias(k, n int) float64 { return float64(float32(math.Sin(float64(100*k + n)))) }

const flashLength = 300 // of tables

func flashMemory() (list []score.Memory) {
	list = []score.Memory{{Name: "first", Dims: [3]int{2, 3}}, {Name: "at", Dims: [3]int{flashLength}}, {Name: "doc", Dims: [3]int{3, 4, flashLength}},
		{Name: "bias", Dims: [3]int{5, flashLength}}}
	put := func(i int, bits uint32) { list[i].Data = binary.LittleEndian.AppendUint32(list[i].Data, bits) }
	for _, n := range []int{0, 70, 140, 0, 90, 180} {
		put(0, uint32(n))
	}
	for n := range flashLength {
		put(1, uint32(flashAt(n)))
	}
	for at := range 3 * 4 * flashLength {
		put(2, uint32(flashDoc(at/flashLength/4, at/flashLength%4, at%flashLength)))
	}
	for at := range 5 * flashLength {
		put(3, math.Float32bits(float32(flashBias(at/flashLength, at%flashLength))))
	}
	return list
}

func only(yes bool, s float64) float64 {
	if yes {
		return s
	}
	return math.Inf(-1)
}

func distance(x flashSlot) float64 { return math.Abs(float64(x.q - x.k)) }

var flashScores = []struct {
	name, text string
	loop       func(s float64, x flashSlot) float64
}{
	{"identity", "s", func(s float64, _ flashSlot) float64 { return s }},
	{"causal", "row >= j ? s : -inf", func(s float64, x flashSlot) float64 { return only(x.q >= x.k, s) }},
	{"rel_bias", "s + abs(row - j)", func(s float64, x flashSlot) float64 { return s + distance(x) }},
	{"rel_bias_clamped", "s + min(abs(row - j), 256)", func(s float64, x flashSlot) float64 { return s + min(distance(x), 256) }},
	{"rel_bias_x2", "s + 2 * abs(row - j)", func(s float64, x flashSlot) float64 { return s + 2*distance(x) }},
	{"times_two", "s * 2", func(s float64, _ flashSlot) float64 { return s * 2 }},
	{"alibi", "s - exp(-0.6931471805599453 * (h + 1)) * abs(row - j)", func(s float64, x flashSlot) float64 { return s - math.Exp2(-float64(x.h+1))*distance(x) }},
	{"sliding_window", "abs(row - j) <= 256 ? s : -inf", func(s float64, x flashSlot) float64 { return only(distance(x) <= 256, s) }},
	{"block_diagonal", "row / 64 == j / 64 ? s : -inf", func(s float64, x flashSlot) float64 { return only(x.q/64 == x.k/64, s) }},
	{"causal_v2", "row - j >= 0 ? s : -inf", func(s float64, x flashSlot) float64 { return only(x.q-x.k >= 0, s) }},
	{"batch_bias", "s + bias[0, b]", func(s float64, x flashSlot) float64 { return s + flashBias(0, x.b) }},
	{"dual_buffer", "s + bias[0, h] + bias[1, row]", func(s float64, x flashSlot) float64 { return s + flashBias(0, x.h) + flashBias(1, x.q) }},
	{"squared", "s * s", func(s float64, _ flashSlot) float64 { return s * s }},
	{"global_kv_bias", "s + bias[0, j + first[1, b]]", func(s float64, x flashSlot) float64 { return s + flashBias(0, x.k+x.firstK()) }},
	{"global_q_bias", "s + bias[0, row + first[0, b]]", func(s float64, x flashSlot) float64 { return s + flashBias(0, x.q+x.firstQ()) }},
	{"global_rel_plus_kv_bias", "s + 0.1 * abs(row - j) + bias[0, j + first[1, b]]", func(s float64, x flashSlot) float64 {
		return s + 0.1*distance(x) + flashBias(0, x.k+x.firstK())
	}},
	{"global_q_and_kv_bias", "s + bias[0, row + first[0, b]] + bias[1, j + first[1, b]]", func(s float64, x flashSlot) float64 {
		return s + flashBias(0, x.q+x.firstQ()) + flashBias(1, x.k+x.firstK())
	}},
	{"global_logical_rel_plus_kv_bias", "s + 0.01 * abs(row - j) + bias[0, j + first[1, b]]", func(s float64, x flashSlot) float64 {
		return s + 0.01*distance(x) + flashBias(0, x.k+x.firstK())
	}},
	{"stress_complex_arithmetic", "s + 0.0001 * ((row - j) * (row - j)) + bias[0, row + first[0, b]] * (0.001 * ((b + 1) * (h + 1)))", func(s float64, x flashSlot) float64 {
		return s + 0.0001*distance(x)*distance(x) + flashBias(0, x.q+x.firstQ())*0.001*float64((x.b+1)*(x.h+1))
	}},
	{"stress_conditional_mask", "row >= j && abs(row + first[0, b] - j - first[1, b]) <= 512 ? s + bias[0, j + first[1, b]] : -inf", func(s float64, x flashSlot) float64 {
		near := math.Abs(float64(x.q+x.firstQ()-x.k-x.firstK())) <= 512
		return only(x.q >= x.k && near, s+flashBias(0, x.k+x.firstK()))
	}},
	// Five tensors are rows of one table.
	{"stress_multi_buffer", "s * bias[1, h] + bias[0, b] + bias[2, row + first[0, b]] + bias[3, j + first[1, b]] + 0.1 * bias[4, clamp(row - j + 100, 0, 200)]",
		func(s float64, x flashSlot) float64 {
			return s*flashBias(1, x.h) + flashBias(0, x.b) + flashBias(2, x.q+x.firstQ()) + flashBias(3, x.k+x.firstK()) +
				0.1*flashBias(4, min(max(x.q-x.k+100, 0), 200))
		}},
	{"stress_global_offset", "s + bias[1, j + first[1, b]]", func(s float64, x flashSlot) float64 { return s + flashBias(1, x.k+x.firstK()) }},
	{"stress_xor_pattern", "s + 0.001 * ((row ^ j) & 255) + 0.1 * bias[0, j + first[1, b]]", func(s float64, x flashSlot) float64 {
		return s + 0.001*float64((x.q^x.k)&255) + 0.1*flashBias(0, x.k+x.firstK())
	}},
	{"debug_global_idx", "s + 0.001 * (j + first[1, b])", func(s float64, x flashSlot) float64 { return s + 0.001*float64(x.k+x.firstK()) }},
}

var flashMasks = []struct {
	name, text string
	loop       func(x flashSlot) bool
}{
	{"causal", "j <= row + sk - sq", func(x flashSlot) bool { return x.k <= x.q+x.keys-x.rows }},
	{"block_causal", "j <= i", func(x flashSlot) bool { return x.k <= x.q+x.keys-x.rows }},
	{"sliding_window", "i - 20 <= j && j <= i + 5", func(x flashSlot) bool {
		center := x.q + x.keys - x.rows
		return x.k >= center-20 && x.k <= center+5
	}},
	{"block_diagonal", "row / 128 == j / 128", func(x flashSlot) bool { return x.q/128 == x.k/128 }},
	{"mini_causal", "row % 128 >= j % 128", func(x flashSlot) bool { return x.q%128 >= x.k%128 }},
	{"prefix_lm", "row < 512 && j < 512 || row >= j", func(x flashSlot) bool { return x.q < 512 && x.k < 512 || x.q >= x.k }},
	{"dilated_sliding_window", "row >= j && row - j < 256 && (row - j) % 2 == 0", func(x flashSlot) bool { return x.q >= x.k && x.q-x.k < 256 && (x.q-x.k)%2 == 0 }},
	{"document", "doc[b, h, row] == doc[b, h, j]", func(x flashSlot) bool { return flashDoc(x.b, x.h, x.q) == flashDoc(x.b, x.h, x.k) }},
	{"ima", "j >= at[j]", func(x flashSlot) bool { return x.k >= flashAt(x.k) }},
	{"global_packed_doc", "at[row + first[0, b]] == at[j + first[1, b]]", func(x flashSlot) bool { return flashAt(x.q+x.firstQ()) == flashAt(x.k+x.firstK()) }},
	{"global_ima", "j >= at[j + first[1, b]]", func(x flashSlot) bool { return x.k >= flashAt(x.k+x.firstK()) }},
	{"global_causal_window", "j <= row && row - j <= at[row + first[0, b]]", func(x flashSlot) bool { return x.k <= x.q && x.q-x.k <= flashAt(x.q+x.firstQ()) }},
}

// slope is the derivative of a loop with respect to the score, which is at most quadratic in it. It is 0 where the loop
// excludes the slot. Their tests of gradients have it as a function of its own, which nobody writes here.
func (c *flashModifier) slope(s float64, x flashSlot) float64 {
	if math.IsInf(c.loop(s, x), -1) {
		return 0
	}
	return (c.loop(s+0.5, x) - c.loop(s-0.5, x))
}

// The derivative of each is that of its loop.
func TestSlopesOfFlashAttentionsModifiers(t *testing.T) {
	memory := flashMemory()
	for _, c := range flashModifiers(t) {
		if !c.Score.Given() {
			continue
		}
		slope := score.NewEvaluator(c.Score.Diff(), nil)
		for i := range 256 {
			x := flashSlot{b: i % 3, h: i % 4, q: i * 37 % 70, k: i * 53 % 90, rows: 70, keys: 90}
			s := 3 * math.Sin(float64(i))
			got := []float64{0}
			slope.Eval(got, &score.Slots{S: []float64{s}, B: x.b, Head: x.h, KVHead: x.h / 2, I: x.q + 20, J: []int{x.k}, Row: x.q, Rows: 70, Keys: 90, Tables: memory})
			require.InDelta(t, c.slope(s, x), got[0], 1e-9, "%s at %+v", c.name, x)
		}
	}
}

// flashModifier is one of the functions: of scores, or else a mask.
type flashModifier struct {
	name string
	score.Modifiers
	loop func(s float64, x flashSlot) float64 // -Inf where the mask excludes a slot
}

func flashModifiers(t *testing.T) (list []flashModifier) {
	parse := func(text string) score.Expr {
		e, err := score.Parse(text, flashTables...)
		require.NoError(t, err)
		return e
	}
	for _, c := range flashScores {
		list = append(list, flashModifier{"score " + c.name, score.Modifiers{Score: parse(c.text)}, c.loop})
	}
	for _, c := range flashMasks {
		list = append(list, flashModifier{"mask " + c.name, score.Modifiers{Mask: parse(c.text)},
			func(s float64, x flashSlot) float64 { return only(c.loop(x), s) }})
	}
	return list
}

// On tier cpu each is the attention of its loop.
func TestFlashAttentionsModifiers(t *testing.T) {
	shape := attention.Shape{B: 3, Hq: 4, Hkv: 2, Sq: 70, Sk: 90}
	const d = 8
	floats := func(n int, phase float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(math.Sin(float64(i)*1.7 + phase))
		}
		return x
	}
	q, k, v := floats(shape.B*shape.Hq*shape.Sq*d, 0), floats(shape.B*shape.Hkv*shape.Sk*d, 1), floats(shape.B*shape.Hkv*shape.Sk*d, 2)
	encode := func(x []float32) attention.Tensor {
		host := make([]byte, 4*len(x))
		attention.F32.Encode(host, x)
		return attention.Tensor{Host: host}
	}
	var tables []attention.Table
	for _, m := range flashMemory() {
		tables = append(tables, attention.Table{Name: m.Name, Dims: m.Dims, Vector: attention.Vector{Host: m.Data}})
	}
	for _, c := range flashModifiers(t) {
		cfg := attention.Config{DType: attention.F32, HeadDim: d, ScoreMod: c.Score, MaskMod: c.Mask}
		args := attention.Args{Shape: shape, Q: encode(q), K: encode(k), V: encode(v), O: encode(q)}
		list, err := score.TablesOf(c.Score, c.Mask)
		require.NoError(t, err)
		for _, table := range tables {
			for _, read := range list {
				if read.Name() == table.Name {
					args.Tables = append(args.Tables, table)
				}
			}
		}
		op, err := attention.New(nil, cfg)
		require.NoError(t, err, c.name)
		require.NoError(t, op.Forward(nil, args), c.name)
		require.NoError(t, op.Close())
		for at := range shape.B * shape.Hq * shape.Sq {
			x := flashSlot{b: at / shape.Sq / shape.Hq, h: at / shape.Sq % shape.Hq, q: at % shape.Sq, rows: shape.Sq, keys: shape.Sk}
			kv := (x.b*shape.Hkv + x.h/2) * shape.Sk * d
			var sum float64
			var want [d]float64
			for key := range shape.Sk {
				var s float64
				for n := range d {
					s += float64(q[at*d+n]) * float64(k[kv+key*d+n])
				}
				x.k = key
				weight := math.Exp(c.loop(s/math.Sqrt(d), x) - 40)
				sum += weight
				for n := range d {
					want[n] += weight * float64(v[kv+key*d+n])
				}
			}
			for n := range d {
				got := math.Float32frombits(binary.LittleEndian.Uint32(args.O.Host[4*(at*d+n):]))
				if sum == 0 {
					require.Zero(t, got, "%s: a row without keys", c.name)
					continue
				}
				require.InDelta(t, want[n]/sum, got, 2e-5, "%s: sequence %d, head %d, row %d", c.name, x.b, x.h, x.q)
			}
		}
	}
}

// On a device each is its loop, slot by slot.
func TestFlashAttentionsModifiersOnADevice(t *testing.T) {
	p := newProbeOf(t, flashTables, flashMemory())
	var slots []flashSlot
	var packed []byte
	s := func(i int) float64 { return float64(float32(3 * math.Sin(float64(i)))) }
	for i := range 256 {
		x := flashSlot{b: i % 3, h: i % 4, q: i * 37 % 70, k: i * 53 % 90, rows: 70, keys: 90}
		slots = append(slots, x)
		packed = append(packed, packSlot(&score.Slots{S: []float64{s(i)}, B: x.b, Head: x.h, KVHead: x.h / 2, I: x.q + 20, J: []int{x.k}, Row: x.q, Rows: 70, Keys: 90})...)
	}
	for _, c := range flashModifiers(t) {
		got, slope, attends := p.run(packed, len(slots), c.Score, c.Mask)
		for i, x := range slots {
			want := c.loop(s(i), x)
			if c.Mask.Given() {
				require.Equal(t, !math.IsInf(want, -1), attends[i], "%s at %+v", c.name, x)
			} else {
				require.True(t, got[i] == want || math.Abs(got[i]-want) <= 1e-5*math.Abs(want)+1e-5, "%s is %v, want %v at %+v", c.name, got[i], want, x)
				require.InDelta(t, c.slope(s(i), x), slope[i], 1e-4, "the derivative of %s at %+v", c.name, x)
			}
		}
	}
}
