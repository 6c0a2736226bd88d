package tests

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/internal/accuracy"
	"vkattn/internal/cases"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// Tables that modifiers of these tests read, and their sizes. Those of slopes are one less than the heads, and those of wide one
// more.
var modTables = []struct {
	score.Table
	dims func(s attention.Shape) [3]int
}{
	{score.IntTable("doc", 1), func(s attention.Shape) [3]int { return [3]int{s.Sk} }},
	{score.FloatTable("bias", 2), func(s attention.Shape) [3]int { return [3]int{s.Hq, 9} }},
	{score.IntTable("tree", 2), func(s attention.Shape) [3]int { return [3]int{s.Sq, (s.Sq + 31) / 32} }},
	{score.FloatTable("slopes", 1), func(s attention.Shape) [3]int { return [3]int{s.Hq - 1} }},
	{score.FloatTable("far", 1), func(s attention.Shape) [3]int { return [3]int{s.Sk / 2} }},
	{score.FloatTable("wide", 3), func(s attention.Shape) [3]int { return [3]int{s.Hq + 1, 64, 64} }},
}

// parseModifier parses a text that may read those tables.
func parseModifier(text string) (score.Expr, error) {
	var tables []score.Table
	for _, t := range modTables {
		tables = append(tables, t.Table)
	}
	return score.Parse(text, tables...)
}

// modified is a call with modifiers. Its memory is Q, K, V, O, LSE, and the tables.
type modified struct {
	name        string
	shape       attention.Shape
	d           int
	score, mask string
	change      func(*attention.Config, *attention.Args)
	poison      func(key int) bool // keys of NaN, which the mask excludes
}

func (m modified) String() string { return m.name }

func (m modified) config(t *testing.T, tt cases.Target) attention.Config {
	c, err := m.configOf(tt)
	require.NoError(t, err)
	return c
}

func (m modified) configOf(tt cases.Target) (attention.Config, error) {
	c := attention.Config{DType: tt.DType, HeadDim: m.d, Tier: tt.Tier, Tuning: attention.TuningOff}
	for _, x := range []struct {
		text string
		to   *score.Expr
	}{{m.score, &c.ScoreMod}, {m.mask, &c.MaskMod}} {
		if x.text != "" {
			e, err := parseModifier(x.text)
			if err != nil {
				return c, err
			}
			*x.to = e
		}
	}
	if m.change != nil {
		m.change(&c, &attention.Args{})
	}
	return c, nil
}

const fixedPieces = 5 // Q, K, V, O, LSE

func (m modified) args(piece func(int) (attention.Tensor, attention.Vector)) attention.Args {
	a := attention.Args{Shape: m.shape}
	for i, dst := range []*attention.Tensor{&a.Q, &a.K, &a.V, &a.O, &a.LSE} {
		*dst, _ = piece(i)
	}
	c := attention.Config{}
	if m.change != nil {
		m.change(&c, &a)
	}
	names := m.tables()
	for i, t := range modTables {
		if slices.Contains(names, t.Name()) {
			_, v := piece(fixedPieces + i)
			a.Tables = append(a.Tables, attention.Table{Name: t.Name(), Dims: t.dims(m.shape), Vector: v})
		}
	}
	return a
}

// tables are the names of the tables that the call reads.
func (m modified) tables() (names []string) {
	for _, text := range []string{m.score, m.mask} {
		if e, err := parseModifier(text); err == nil {
			list, _ := score.TablesOf(e)
			for _, t := range list {
				names = append(names, t.Name())
			}
		}
	}
	return names
}

func (m modified) HostArgs(images [][]byte) attention.Args {
	return m.args(func(i int) (attention.Tensor, attention.Vector) {
		return attention.Tensor{Host: images[i]}, attention.Vector{Host: images[i]}
	})
}

func (m modified) DeviceArgs(buffers []*vk.Buffer) attention.Args {
	return m.args(func(i int) (attention.Tensor, attention.Vector) {
		return attention.Tensor{Buffer: buffers[i]}, attention.Vector{Buffer: buffers[i]}
	})
}

// memory draws what the call finds.
func (m modified) memory(dtype attention.DType) [][]byte {
	s := m.shape
	images := make([][]byte, fixedPieces+len(modTables))
	for i, rows := range []int{s.B * s.Hq * s.Sq, s.B * s.KVHeads() * s.Sk, s.B * s.KVHeads() * s.Sk, s.B * s.Hq * s.Sq} {
		images[i] = make([]byte, rows*m.d*dtype.Size())
		inputs.Fill(images[i], dtype, inputs.Normal, uint64(i+1))
	}
	if m.poison != nil {
		bad := make([]byte, dtype.Size()*m.d)
		dtype.Encode(bad, slices.Repeat([]float32{nan}, m.d))
		for key := range s.B * s.KVHeads() * s.Sk {
			if m.poison(key % s.Sk) {
				copy(images[1][key*len(bad):], bad)
				copy(images[2][key*len(bad):], bad)
			}
		}
	}
	images[4] = make([]byte, 4*s.B*s.Hq*s.Sq)
	r := rand.New(rand.NewPCG(7, 7))
	for i := range s.Sk {
		images[5] = binary.LittleEndian.AppendUint32(images[5], uint32(i/13))
	}
	for range s.Hq * 9 {
		images[6] = binary.LittleEndian.AppendUint32(images[6], math.Float32bits(float32(r.NormFloat64())))
	}
	for range s.Sq * ((s.Sq + 31) / 32) {
		images[7] = binary.LittleEndian.AppendUint32(images[7], r.Uint32())
	}
	for i := 3; i < len(modTables); i++ {
		for dims := modTables[i].dims(s); len(images[fixedPieces+i]) < 4*dims[0]*max(1, dims[1])*max(1, dims[2]); {
			images[fixedPieces+i] = binary.LittleEndian.AppendUint32(images[fixedPieces+i], math.Float32bits(float32(0.3*r.NormFloat64())))
		}
	}
	return images
}

// Modifiers of every kind on every tier, against float64. On tiers with cooperative matrices the calls of one row
// run the decode kernel. On a driver on the CPU each target has a third of the modifiers. Tier scalar has all of them on
// each driver, each time in another storage type, in make test. Of the tiers with cooperative matrices, and of
// SwiftShader, which compiles longest, make test has one modifier a target, and make test-full the others.
func TestModifiers(t *testing.T) {
	s := openTiers(t)
	prefill, decode := attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 37, Sk: 90}, attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 1, Sk: 700}
	list := []modified{
		{name: "full tiles before partial ones", shape: attention.Shape{B: 1, Hq: 4, Sq: 128, Sk: 640}, d: 16,
			mask: "h == 0 ? 40 <= j && j < 180 : h == 1 ? 320 <= j && j < 400 : h == 2 ? 100 <= j && j < 400 : j < 400"},
		{name: "arithmetic", shape: prefill, d: 32, score: "s + 0.1 * min(i - j, 8) - tanh(s * 0.5) * float(h + 1) / (1.0 + abs(s))"},
		{name: "functions", shape: prefill, d: 32, mask: "(i - j) % 3 != 1 || j < 4",
			score: "exp(min(s, 1.0)) + log(1.5 + s * s) + sqrt(abs(s)) + sin(s + float(b)) + cos(0.1 * float(row)) + (j >> 2 & 3 ^ hkv | 4) * 0.25"},
		{name: "tables", shape: prefill, d: 32, score: "s + bias[h, clamp(i - j, -4, 4) + 4] + bias[-1, 100]", mask: "j <= i && doc[i] == doc[j]"},
		{name: "with other options", shape: prefill, d: 32, score: "s * 1.25 + bias[h, j / 11]", mask: "(tree[row, j / 32] >> j % 32 & 1) == 1 || j < sk - sq",
			change: func(c *attention.Config, a *attention.Args) {
				c.Causal, c.Softcap, c.Window = attention.BottomRight, 3, attention.WindowOf(60, 0)
			}},
		{name: "decode", shape: decode, d: 64, score: "s - 0.01 * float(i - j)", mask: "j < 4 || i - j < 300"},
		{name: "decode with tables", shape: decode, d: 64, score: "s + bias[h, j % 9]", mask: "doc[j] % 2 == 0"},
		{name: "NaN in masked keys", shape: prefill, d: 32, mask: "j % 16 != 5 && j < 80", score: "s + 1.0",
			poison: func(key int) bool { return key%16 == 5 || key >= 80 }},
		{name: "NaN in masked keys of decode", shape: decode, d: 64, mask: "j % 16 != 5", poison: func(key int) bool { return key%16 == 5 }},
		{name: "nothing attended", shape: prefill, d: 32, mask: "i < 60 && j < 0"},
		{name: "infinite scores", shape: prefill, d: 32, score: "(i + j) % 2 == 0 ? s : -inf"},
	}
	for _, tt := range s.available() {
		t.Run(tt.String(), func(t *testing.T) {
			t.Parallel()
			e := s.newEngine(tt)
			for n, m := range list {
				turn, scalar := int(tt.DType)+int(tt.Tier), tt.Tier == attention.TierScalar
				if scalar {
					turn = int(tt.DType) + s.turn
				}
				if fewPipelines() && (n%3 != turn%3 || !testlevel.Share(scalar && s.name != "swiftshader" || n < 3)) {
					continue
				}
				j := &job{Problem: m, cfg: m.config(t, tt), before: m.memory(tt.DType)}
				err := e.run([]*job{j})
				if tt.Tier.WithoutSPIRV() && tt.Tier != attention.TierCPU {
					require.ErrorIs(t, err, attention.ErrUnsupported, m.name)
					require.ErrorContains(t, err, "modifiers", m.name)
					continue
				}
				require.NoError(t, err, m.name)
				verdict, err := accuracy.Verify(problem.Config(j.cfg), m.HostArgs(j.after), accuracy.Options{Rows: -1})
				require.NoError(t, err, m.name)
				require.True(t, verdict.Pass(), "%s: %v", m.name, verdict)
			}
			require.NoError(t, e.close())
		})
	}
}
