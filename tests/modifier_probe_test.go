package tests

import (
	"context"
	_ "embed"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention/score"
	"vkattn/internal/randscore"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// Random expressions on the device, slot by slot: a kernel that calls the functions which score.Rewrite replaces.

//go:embed testdata/modifier_probe.spv
var modifierProbe []byte

// probeSlots are the slots of the probe, with a row of its own for each.
func probeSlots(r *rand.Rand, n int, tables []score.Memory) (slots []*score.Slots, packed []byte) {
	for range n {
		at := &score.Slots{S: []float64{float64(float32(3 * r.NormFloat64()))}, B: r.IntN(3), Head: r.IntN(8), KVHead: r.IntN(2), Row: r.IntN(300),
			Rows: 300, Keys: 1000, Tables: tables}
		at.J, at.I = []int{r.IntN(1000)}, at.Row+700
		if r.IntN(4) == 0 {
			at.I = at.Row - 290 // no keys for some rows
		}
		slots = append(slots, at)
		packed = append(packed, packSlot(at)...)
	}
	return slots, packed
}

// packSlot is a slot as the kernel reads it.
func packSlot(at *score.Slots) (packed []byte) {
	packed = binary.LittleEndian.AppendUint32(packed, math.Float32bits(float32(at.S[0])))
	for _, x := range []int{at.B, at.Head, at.KVHead, at.I, at.J[0], at.Row, at.Rows, at.Keys} {
		packed = binary.LittleEndian.AppendUint32(packed, uint32(x))
	}
	return packed
}

// expected is the value of a float expression and what a device may be off by: more than rounding each operation in
// other ways makes of it. Where these disagree on a number being finite, nothing is expected.
func expected(r *rand.Rand, e score.Expr, at *score.Slots) (want, room float64, ok bool) {
	value := func(round func(float64) float64) float64 {
		x := []float64{0}
		score.NewEvaluator(e, round).Eval(x, at)
		return x[0]
	}
	want = value(nil)
	finite := true
	exact := value(func(x float64) float64 {
		x = float64(float32(x))
		finite = finite && !math.IsNaN(x) && !math.IsInf(x, 0)
		return x
	})
	if !finite {
		return 0, 0, false // Vulkan does not say what 1 / 0 is, nor tanh of it
	}
	room = 1e-5 * math.Abs(want)
	largest := 0x1p120
	if text := e.String(); strings.Contains(text, "sin(") || strings.Contains(text, "cos(") {
		largest = 0x1p24 // of larger angles some devices give anything, such as -Inf
	}
	for n := range 8 {
		x := value(func(x float64) float64 {
			if n == 7 { // numbers that are nearly equal may be equal, and their difference 0
				part, exponent := math.Frexp(x)
				x = math.Ldexp(math.RoundToEven(part*0x1p12)*0x1p-12, exponent)
			} else {
				x *= 1 + (r.Float64()-0.5)*0x1p-12 // GPUs have sines that are off by 2^-11
			}
			tiny := math.Abs(x) < 0x1p-100
			switch {
			case tiny && n%3 == 2:
				return 0 // devices may flush subnormal numbers
			case tiny || math.Abs(x) > largest:
				return math.Inf(1 - n%2*2) // subnormal numbers, overflow, and 0 of either sign: anything may follow
			}
			return x
		})
		for _, x := range []float64{want, x, exact} {
			if math.IsNaN(x) || math.IsInf(x, 0) {
				return 0, 0, false
			}
		}
		room = max(room, 4*math.Abs(x-want), 4*math.Abs(exact-want))
	}
	return want, room + 1e-6, true
}

// probe runs the kernel of testdata/modifier_probe.comp on a device.
type probe struct {
	t        *testing.T
	dev      *vk.Device
	stream   *vk.Stream
	declared []score.Table
	memory   []score.Memory
	tables   []*vk.Buffer // their first elements are number 3
}

func newProbe(t *testing.T, r *rand.Rand) *probe {
	declared := []score.Table{score.IntTable("doc", 1), score.FloatTable("bias", 2), score.FloatTable("cube", 3)}
	var memory []score.Memory
	for i, dims := range [][3]int{{200}, {8, 50}, {3, 4, 5}} {
		m := score.Memory{Name: declared[i].Name(), Dims: dims}
		for range max(1, dims[0]) * max(1, dims[1]) * max(1, dims[2]) {
			bits := math.Float32bits(float32(r.NormFloat64()))
			if i == 0 {
				bits = uint32(r.IntN(20) - 3)
			}
			m.Data = binary.LittleEndian.AppendUint32(m.Data, bits)
		}
		memory = append(memory, m)
	}
	return newProbeOf(t, declared, memory)
}

func newProbeOf(t *testing.T, declared []score.Table, memory []score.Memory) *probe {
	s := openDevice(t)
	if s.compileOnly {
		t.Skip("the device does not execute")
	}
	stream, err := s.dev.NewStream("probe")
	require.NoError(t, err)
	p := &probe{t: t, dev: s.dev, stream: stream, declared: declared, memory: memory}
	for _, m := range memory {
		p.tables = append(p.tables, p.buffer(append(make([]byte, 12), m.Data...)))
	}
	t.Cleanup(func() {
		for _, b := range p.tables {
			require.NoError(t, b.Close())
		}
		require.NoError(t, stream.Close())
	})
	return p
}

func (p *probe) buffer(data []byte) *vk.Buffer {
	b, err := p.dev.NewBuffer(uint64(len(data)), vk.BufferOptions{})
	require.NoError(p.t, err)
	require.NoError(p.t, p.stream.Upload(b, 0, data))
	return b
}

// run returns a score, its derivative and a mask of n slots.
func (p *probe) run(packed []byte, n int, e, mask score.Expr) (x, slope []float64, yes []bool) {
	t := p.t
	list, err := score.TablesOf(e, mask)
	require.NoError(t, err)
	code, err := score.Rewrite(modifierProbe, score.Modifiers{Score: e, Mask: mask}, score.TableLayout{ParamsBinding: 2, FirstBinding: 3})
	require.NoError(t, err)
	params := make([]byte, 64)
	bindings := []vk.BufferRange{{Buffer: p.buffer(packed)}, {Buffer: p.buffer(make([]byte, 16*n))}, {}}
	for i, table := range list {
		which := slices.Index(p.declared, table)
		binary.LittleEndian.PutUint32(params[16*i:], 3)
		for axis, n := range p.memory[which].Dims {
			binary.LittleEndian.PutUint32(params[16*i+4+4*axis:], uint32(n))
		}
		bindings = append(bindings, vk.BufferRange{Buffer: p.tables[which]})
	}
	bindings[2] = vk.BufferRange{Buffer: p.buffer(params)}
	pipeline, err := p.dev.Pipeline(&vk.PipelineDesc{Name: "modifier probe", Code: code, StorageBuffers: uint32(len(bindings)), LocalSize: [3]uint32{64, 1, 1}})
	require.NoError(t, err, "%v; %v", e, mask)
	require.NoError(t, p.stream.Barrier())
	require.NoError(t, p.stream.Dispatch(pipeline, bindings, nil, [3]uint32{uint32(n+63) / 64, 1, 1}))
	require.NoError(t, p.stream.Barrier())
	results := make([]byte, 16*n)
	require.NoError(t, p.stream.Download(context.Background(), results, bindings[1].Buffer, 0))
	require.NoError(t, pipeline.Close())
	for _, b := range bindings[:3] {
		require.NoError(t, b.Buffer.Close())
	}
	for i := range n {
		x = append(x, float64(math.Float32frombits(binary.LittleEndian.Uint32(results[16*i:]))))
		slope = append(slope, float64(math.Float32frombits(binary.LittleEndian.Uint32(results[16*i+8:]))))
		yes = append(yes, results[16*i+4] == 1)
	}
	return x, slope, yes
}

// Scores, their derivatives and masks.
func TestRandomModifiers(t *testing.T) {
	count := map[testlevel.Level]int{testlevel.Brief: 20, testlevel.Default: 100, testlevel.Full: 300, testlevel.All: 1000, testlevel.Exhaustive: 2000}[testlevel.Get()]
	t.Logf("%d expressions", count)
	r := rand.New(rand.NewPCG(testlevel.Seed(t), 0))
	p := newProbe(t, r)
	const n = 256
	slots, packed := probeSlots(r, n, p.memory)
	judged := 0
	for range count {
		e := randscore.DrawSmooth(r, score.TypeFloat, 2+r.IntN(5), true, p.declared...)
		mask := randscore.DrawSmooth(r, score.TypeBool, 1+r.IntN(5), false, p.declared...)
		slope := e.Diff()
		got, gotSlope, gotMask := p.run(packed, n, e, mask)
		for i, at := range slots {
			yes := []float64{0}
			score.NewEvaluator(mask, nil).Eval(yes, at)
			if gotMask[i] != (yes[0] != 0) {
				t.Fatalf("%v is %v at i %d, j %d, row %d, h %d, b %d", mask, gotMask[i], at.I, at.J[0], at.Row, at.Head, at.B)
			}
			for _, x := range []struct {
				score.Expr
				got float64
			}{{e, got[i]}, {slope, gotSlope[i]}} {
				want, room, ok := expected(r, x.Expr, at)
				if !ok {
					continue
				}
				if !(math.Abs(x.got-want) <= room) {
					t.Fatalf("%v is %v, want %v, at s %v, i %d, j %d, row %d, h %d, b %d", x.Expr, x.got, want, at.S[0], at.I, at.J[0], at.Row, at.Head, at.B)
				}
				judged++
			}
		}
	}
	t.Logf("%d of %d values judged", judged, 2*count*n)
	require.Greater(t, judged, count*n)
}

// Minima and maxima with a negated operand, and another one around them: NVIDIA's compiler drops the negation if they are
// SMin and SMax.
func TestMinimaOfNegations(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p := newProbe(t, r)
	const n = 256
	slots, packed := probeSlots(r, n, p.memory)
	for _, text := range []string{"bias[~(s <= float(i) ? 5 : 100), min(doc[row], -sk)]", "bias[h, min(j, -i)]", "bias[h, min(-doc[row], -sk)]",
		"bias[h, min(abs(i), 0 - sk)]", "bias[h, min(j, sk * -1)]", "bias[h, min(i + j, -(i + j))]", "float(min(min(max(i, j + hkv), -sq), 0))",
		"float(min(min(max(i - sk, j), -hkv), 0))", "float(min(min(i, -j), 20))", "float(max(max(i, -j), 20))",
		"bias[h, max(max(doc[row], -i), hkv)]", "bias[h, max(max(j, -i), -hkv)]", "bias[h, min(max(-sk, i - sk), -hkv)]"} {
		e, err := score.Parse(text, p.declared...)
		require.NoError(t, err)
		got, _, _ := p.run(packed, n, e, score.Expr{})
		for i, at := range slots {
			want := []float64{0}
			score.NewEvaluator(e, score.Float32).Eval(want, at)
			require.Equal(t, want[0], got[i], "%s at i %d, j %d, row %d", text, at.I, at.J[0], at.Row)
		}
	}
}

// A score that is NaN stays NaN through every function, and infinite ones have their limits.
func TestModifiersOfNaNAndInf(t *testing.T) {
	p := newProbe(t, rand.New(rand.NewPCG(1, 1)))
	values := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, 1e30, -1e30}
	var packed []byte
	for _, x := range values {
		packed = append(binary.LittleEndian.AppendUint32(packed, math.Float32bits(float32(x))), make([]byte, 32)...)
	}
	for _, text := range []string{"s", "-s", "abs(s)", "sign(s)", "tanh(s)", "exp(s)", "sech2(s)", "min(s, 1.0)", "min(1.0, s)", "max(s, 1.0)",
		"max(1.0, s)", "clamp(s, -2.0, 2.0)", "s + 1.0", "1.0 - s", "s * 2.0", "s / 2.0", "floor(s)", "sqrt(max(s, 0.0))", "s < 1.0 ? 3.0 : s",
		"1.0 < s ? 1.0 : s", "s <= 1.0 ? s : 1.0", "s > 1.0 ? s : 1.0", "!(s > 1.0) ? s : 1.0",
		"s == s ? 1.0 : 2.0", "s != s ? 1.0 : 2.0", "30.0 * tanh(s / 30.0)"} {
		e, err := score.Parse(text)
		require.NoError(t, err)
		got, _, _ := p.run(packed, len(values), e, score.Expr{})
		want := make([]float64, len(values))
		score.NewEvaluator(e, score.Float32).Eval(want, &score.Slots{S: values})
		for i, x := range want {
			if math.IsNaN(x) {
				require.True(t, math.IsNaN(got[i]), "%s of %v is %v", text, values[i], got[i])
			} else {
				require.True(t, x == got[i] || math.Abs(x-got[i]) <= 1e-5*math.Abs(x), "%s of %v is %v, want %v", text, values[i], got[i], x)
			}
		}
	}
}
