package tests

import (
	"encoding/binary"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/cases"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
)

func tableGradientCases() []modifiedGradients {
	shape, square := attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 70, Sk: 90}, attention.Shape{B: 3, Hq: 4, Hkv: 1, Sq: 60, Sk: 60}
	list := []modifiedGradients{
		{modified: modified{name: "bias and slopes", shape: shape, mask: "j <= i",
			score: "s + bias[h, clamp(i - j, -4, 4) + 4] - slopes[h] * float(abs(i - j)) * 0.1"}, dTables: []string{"bias", "slopes"}},
		{modified: modified{name: "4096 entries", shape: shape, score: "s + wide[h, i * 5 % 64, j * 3 % 64] * tanh(s)"}, dTables: []string{"wide"}},
		// Indices are below 0 and beyond the end for most slots.
		{modified: modified{name: "shared by heads", shape: square, score: "s * (1.0 + far[i - j]) + far[j * 2 - 9]"},
			dTables: []string{"far"}, packed: []int{60, 0, 41}},
		{modified: modified{name: "derivatives of weight 0", shape: shape, score: "(i + j) % 2 == 0 ? s + far[j] : -inf * (s * s + 1.0 + abs(far[0]))"},
			dTables: []string{"far"}},
		{modified: modified{name: "other options", shape: shape, score: "sin(s * bias[h, j % 9]) * 2.0", mask: "j % 7 != 2",
			change: func(c *attention.Config, a *attention.Args) {
				c.Causal, c.Softcap, c.Window, c.Dropout, a.DropoutSeed = attention.BottomRight, 3, attention.WindowOf(60, 0), 0.25, 5
			}}, dTables: []string{"bias"}, bias: true},
		{modified: modified{name: "conditions", shape: shape, score: "bias[h, 3] > 0.0 ? s + floor(bias[0, 1]) : max(s, bias[h, j % 3])"}, dTables: []string{"bias"}},
		{modified: modified{name: "NaN", shape: shape, mask: "j % 16 != 5 && j < 80", score: "s + far[j / 3]",
			poison: func(key int) bool { return key%16 == 5 || key >= 80 }}, dTables: []string{"far"}},
	}
	for i := range list {
		list[i].d, list[i].only = 32, !list[i].bias
	}
	return list
}

// Gradients of tables on every tier, against float64. They are the same bits in every run. A driver on the CPU has one or two cases
// a target: the tiers with cooperative matrices take the kernel of tier scalar for them.
func TestTableGradients(t *testing.T) {
	s := openTiers(t)
	for _, tt := range s.available() {
		if !computesGradients(tt.Tier) || slowToCompile(tt) && tt.DType != attention.F16 {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			t.Parallel()
			e := s.newEngine(tt)
			list := tableGradientCases()
			turn := s.turn + int(tt.DType) + 2*int(tt.Tier)
			for n, m := range list {
				if tt.Tier != attention.TierCPU && fewPipelines() && (n%4 != turn%4 || !testlevel.Share(n < 4 && !onMatrices(tt) && tt.DType == attention.F16)) {
					continue
				}
				cfg, before := m.config(t, tt), m.memory(tt.DType)
				after, err := e.runBackward(m, cfg, before)
				require.NoError(t, err, m.name)
				again, err := e.runBackward(m, cfg, before)
				require.NoError(t, err, m.name)
				for _, i := range m.outputs() {
					require.Equal(t, after[i], again[i], "%s: piece %d", m.name, i)
				}
				verdict, err := accuracy.VerifyBackward(problem.Config(cfg), m.BackwardHostArgs(after), accuracy.Options{})
				require.NoError(t, err, m.name)
				require.True(t, verdict.Pass(), "%s: %v", m.name, verdict)
				last := verdict.Tensors[len(verdict.Tensors)-1]
				require.Contains(t, last.Name, "dTables[", m.name)
				require.Empty(t, last.Unjudged, m.name)
			}
			require.NoError(t, e.close())
		})
	}
}

// float64 gradients of tables are derivatives of the output: against central differences of Reference, entry by entry. Entries of
// heads that no query head has, and tables that only conditions read, have 0.
func TestTableGradientsAreDerivatives(t *testing.T) {
	for _, m := range tableGradientCases() {
		if m.name == "4096 entries" || m.change != nil || m.poison != nil || m.name == "derivatives of weight 0" {
			continue
		}
		m.shape.B, m.shape.Sq, m.shape.Sk, m.d, m.packed = 1, 9, 14, 8, nil
		cfg := m.config(t, cases.On(attention.TierCPU, attention.F32))
		images := m.memory(attention.F32)
		a := m.BackwardHostArgs(images)
		want, err := attention.ReferenceBackward(cfg, a)
		require.NoError(t, err)
		loss := func() (sum float64) {
			o, _, err := attention.Reference(cfg, a.Args)
			require.NoError(t, err)
			for i, x := range o {
				sum += x * float64(math.Float32frombits(binary.LittleEndian.Uint32(a.DO.Host[4*i:])))
			}
			return sum
		}
		for at, table := range a.Tables {
			require.Len(t, want.DTables[at], len(table.Host)/4)
			for i, got := range want.DTables[at] {
				word := table.Host[4*i:]
				x := math.Float32frombits(binary.LittleEndian.Uint32(word))
				moved := func(by float32) (f, at float64) {
					binary.LittleEndian.PutUint32(word, math.Float32bits(x+by))
					f = loss()
					binary.LittleEndian.PutUint32(word, math.Float32bits(x))
					return f, float64(x + by)
				}
				high, x1 := moved(0x1p-10)
				low, x0 := moved(-0x1p-10)
				require.InDelta(t, (high-low)/(x1-x0), got, 1e-4*(1+math.Abs(got)), "%s: %s[%d]", m.name, table.Name, i)
			}
		}
	}
}

// What has no gradient is refused by its name, and nothing is written.
func TestTableGradientsRefuse(t *testing.T) {
	m := tableGradientCases()[1]
	m.mask = "doc[j] < 5"
	cfg, images := m.config(t, cases.On(attention.TierCPU, attention.F32)), m.memory(attention.F32)
	op, err := attention.New(nil, cfg)
	require.NoError(t, err)
	table := func(name string, dims ...int) attention.Table {
		x := attention.Table{Name: name, Vector: attention.Vector{Host: images[pieceDTables+5]}}
		copy(x.Dims[:], dims)
		return x
	}
	for _, tt := range []struct {
		name   string
		list   []attention.Table
		sizes  [3]int // of the table wide; 0: its own
		is     error
		phrase string
	}{
		{"another name", []attention.Table{table("bias")}, [3]int{}, attention.ErrInvalid, "DTables[bias] is given, want a table of floats that ScoreMod reads"},
		{"ints", []attention.Table{table("doc")}, [3]int{}, attention.ErrInvalid, "DTables[doc]"},
		{"twice", []attention.Table{table("wide"), table("wide")}, [3]int{}, attention.ErrInvalid, "DTables[wide] is given twice"},
		{"other sizes", []attention.Table{table("wide", 5, 64, 63)}, [3]int{}, attention.ErrInvalid, "[5 64 64], as in Tables"},
		{"no memory", []attention.Table{{Name: "wide"}}, [3]int{}, attention.ErrInvalid, "DTables[wide]"},
		{"short memory", []attention.Table{{Name: "wide", Vector: attention.Vector{Host: make([]byte, 4*5*64*64-4)}}}, [3]int{}, attention.ErrInvalid, "DTables[wide]"},
		{"overlap", []attention.Table{{Name: "wide", Vector: attention.Vector{Host: images[fixedPieces+5]}}}, [3]int{}, attention.ErrInvalid, "DTables[wide]"},
		{"4097 entries", []attention.Table{table("wide")}, [3]int{4, 17, 241}, attention.ErrUnsupported, "gradient of table wide: 4097 entries for a head, at most 4096 have one"},
		{"4096 entries", []attention.Table{table("wide", 1, 1, 4096)}, [3]int{1, 1, 4096}, nil, ""},
	} {
		a := m.BackwardHostArgs(images)
		a.DTables = tt.list
		for i := range a.Tables {
			if a.Tables[i].Name == "wide" && tt.sizes[0] != 0 {
				a.Tables[i].Dims = tt.sizes
			}
		}
		require.NoError(t, op.Forward(nil, a.Args), tt.name)
		err := op.Backward(nil, a)
		if tt.is == nil {
			require.NoError(t, err, tt.name)
			continue
		}
		require.ErrorIs(t, err, tt.is, tt.name)
		require.ErrorContains(t, err, tt.phrase, tt.name)
		for _, b := range images[pieceDTables+5] {
			require.EqualValues(t, 0xff, b, tt.name)
		}
	}
	// A call without sequences has sums over none.
	a := m.BackwardHostArgs(images)
	a.B = 0
	require.NoError(t, op.Backward(nil, a))
	for _, b := range images[pieceDTables+5] {
		require.Zero(t, b)
	}
	require.NoError(t, op.Close())
}

// On the CPU tier the bits do not depend on the number of CPUs.
func TestTableGradientsOnAnyNumberOfCPUs(t *testing.T) {
	m := tableGradientCases()[0]
	m.shape.Sk = 300
	cfg := m.config(t, cases.On(attention.TierCPU, attention.F32))
	var want [][]byte
	for _, n := range []int{1, 2, 5} {
		before := runtime.GOMAXPROCS(n)
		e := &engine{ops: map[attention.Config]*attention.Op{}}
		after, err := e.runBackward(m, cfg, m.memory(attention.F32))
		runtime.GOMAXPROCS(before)
		require.NoError(t, err)
		require.NoError(t, e.close())
		if want == nil {
			want = after
		}
		for _, i := range m.outputs() {
			require.Equal(t, want[i], after[i], "%d CPUs, piece %d", n, i)
		}
	}
}
