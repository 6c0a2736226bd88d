package tests

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/cases"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// modifiedGradients is a call with modifiers and gradients. Behind the memory of modified it has dO, dQ, dK, dV, a bias with
// dBias, and cumulative lengths.
type modifiedGradients struct {
	modified
	bias    bool
	dTables []string // tables with gradients
	only    bool     // of them alone
	packed  []int    // lengths of sequences in packed tensors, of rows and keys; nil: padded
}

const (
	pieceDO = fixedPieces + 6 + iota // behind modTables
	pieceDQ
	pieceDK
	pieceDV
	pieceBias
	pieceDBias
	pieceLengths
	pieceDTables
	gradientPieces = pieceDTables + 6
)

func (m modifiedGradients) gradients(piece func(int) (attention.Tensor, attention.Vector)) attention.BackwardArgs {
	a := attention.BackwardArgs{Args: m.args(piece)}
	for i, dst := range []*attention.Tensor{&a.DO, &a.DQ, &a.DK, &a.DV} {
		if i == 0 || !m.only {
			*dst, _ = piece(pieceDO + i)
		}
	}
	if m.bias {
		of, _ := piece(pieceBias)
		a.Bias = &attention.Bias{Tensor: of, Batches: 1, DType: attention.F32}
		a.DBias, _ = piece(pieceDBias)
	}
	for i, t := range modTables {
		if slices.Contains(m.dTables, t.Name()) {
			_, of := piece(pieceDTables + i)
			a.DTables = append(a.DTables, attention.Table{Name: t.Name(), Vector: of})
		}
	}
	if m.packed != nil {
		_, lengths := piece(pieceLengths)
		total := 0
		for _, n := range m.packed {
			total += n
		}
		a.Varlen = &attention.Varlen{CuQ: lengths, CuK: lengths, TotalQ: total, TotalK: total}
	}
	return a
}

func (m modifiedGradients) BackwardHostArgs(images [][]byte) attention.BackwardArgs {
	return m.gradients(func(i int) (attention.Tensor, attention.Vector) {
		return attention.Tensor{Host: images[i]}, attention.Vector{Host: images[i]}
	})
}

func (m modifiedGradients) BackwardDeviceArgs(buffers []*vk.Buffer) attention.BackwardArgs {
	return m.gradients(func(i int) (attention.Tensor, attention.Vector) {
		return attention.Tensor{Buffer: buffers[i]}, attention.Vector{Buffer: buffers[i]}
	})
}

// memory draws what the call finds. Outputs hold NaN.
func (m modifiedGradients) memory(dtype attention.DType) [][]byte {
	images := slices.Grow(m.modified.memory(dtype), gradientPieces)[:gradientPieces]
	s := m.shape
	images[pieceDO] = make([]byte, len(images[3]))
	inputs.Fill(images[pieceDO], dtype, inputs.Normal, 9)
	for i := range 3 {
		images[pieceDQ+i] = make([]byte, len(images[i]))
		for j := range images[pieceDQ+i] {
			images[pieceDQ+i][j] = 0xff
		}
	}
	images[pieceBias] = make([]byte, 4*s.Hq*s.Sq*s.Sk)
	inputs.Fill(images[pieceBias], attention.F32, inputs.Normal, 11)
	images[pieceDBias] = slices.Repeat([]byte{0xff}, len(images[pieceBias]))
	for i := range modTables {
		images[pieceDTables+i] = slices.Repeat([]byte{0xff}, len(images[fixedPieces+i]))
	}
	at := 0
	for _, n := range append([]int{0}, m.packed...) {
		at += n
		images[pieceLengths] = binary.LittleEndian.AppendUint32(images[pieceLengths], uint32(at))
	}
	return images
}

// outputs are the pieces that a call writes.
func (m modifiedGradients) outputs() []int {
	var list []int
	if !m.only {
		list = append(list, pieceDQ, pieceDK, pieceDV)
	}
	if m.bias {
		list = append(list, pieceDBias)
	}
	for i, t := range modTables {
		if slices.Contains(m.dTables, t.Name()) {
			list = append(list, pieceDTables+i)
		}
	}
	return list
}

// modifiedGradientCases have each kind of expression with each option whose kernels differ.
func modifiedGradientCases() []modifiedGradients {
	shape := attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 37, Sk: 90}
	ragged, beyond := attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 140, Sk: 170}, "s * 1.1 + 1.0 / float(140 - row) - 0.01 * float(abs(i - j))"
	square := attention.Shape{B: 3, Hq: 2, Hkv: 1, Sq: 60, Sk: 60}
	list := []modifiedGradients{
		{modified: modified{name: "tables", shape: shape, score: "s * (1.0 + 0.1 * bias[h, j % 9]) + bias[h, clamp(i - j, -4, 4) + 4]", mask: "j <= i && doc[i] == doc[j]"}, dTables: []string{"bias"}},
		{modified: modified{name: "functions", shape: shape, mask: "(i - j) % 3 != 1 || j < 4",
			score: "exp(min(s, 1.0)) - log(1.5 + s * s) + sqrt(0.1 + abs(s)) + sin(s + float(b)) * tanh(s / float(1 + h))"}},
		{modified: modified{name: "with other options", shape: shape, score: "s * 1.25 + bias[h, j / 11] * s * 0.1",
			mask: "(tree[row, j / 32] >> j % 32 & 1) == 1 || j < sk - sq", change: func(c *attention.Config, a *attention.Args) {
				c.Causal, c.Softcap, c.Window = attention.BottomRight, 3, attention.WindowOf(60, 0)
			}}, bias: true},
		{modified: modified{name: "dropout", shape: shape, score: "s > 0.5 ? 2.0 * s : cos(s)", mask: "j % 5 != 2",
			change: func(c *attention.Config, a *attention.Args) { c.Dropout, a.DropoutSeed = 0.25, 5 }}},
		{modified: modified{name: "packed", shape: square, score: "s / (1.0 + 0.1 * float(abs(i - j))) + 0.5 * float(b) * s", mask: "j <= i + 2"}, packed: []int{60, 0, 41}},
		{modified: modified{name: "NaN in masked keys", shape: shape, mask: "j % 16 != 5 && j < 80", score: "s + 1.0",
			poison: func(key int) bool { return key%16 == 5 || key >= 80 }}},
		{modified: modified{name: "NaN in derivatives of weight 0", shape: shape, score: "(i + j) % 2 == 0 ? s : -inf * (s * s + 1.0)"}},
		{modified: modified{name: "nothing attended", shape: shape, mask: "i < 60 && j < 0"}},
		{modified: modified{name: "steps", shape: shape, score: "s + floor(s * 2.0) + sign(s)"}},
		// Tiles that are full, behind them one with rows past the end, whose scores are not finite.
		{modified: modified{name: "no score past the last row", shape: ragged, score: beyond}},
		{modified: modified{name: "the same with a map", shape: ragged, score: beyond, mask: "j < 64 || j >= 128 || j % 3 == 0"}},
	}
	for i := range list {
		list[i].d = 32
	}
	return list
}

// Gradients of calls with modifiers on every tier, against float64. They are the same bits in every run. A driver on the CPU
// compiles five pipelines for each case: a target has one in make test, another in make
// test-full, and those with cooperative matrices one in make test-full.
func TestModifiersBackward(t *testing.T) {
	s := openTiers(t)
	for _, tt := range s.available() {
		if !computesGradients(tt.Tier) || slowToCompile(tt) && tt.DType != attention.F16 {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			t.Parallel()
			e := s.newEngine(tt)
			list := modifiedGradientCases()
			half, turn := 5, 3*s.turn+int(tt.DType) // of the cases, in make test
			if onMatrices(tt) {
				half, turn = len(list), 2*(int(tt.Tier)%2)
			}
			for n, m := range list {
				if tt.Tier != attention.TierCPU && fewPipelines() && (n%half != turn%half || !testlevel.Share(n < 5 && !onMatrices(tt))) {
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
			}
			require.NoError(t, e.close())
		})
	}
}

// A large call is judged by some of its rows and keys, whose heads and sequences count as those of the call.
func TestSamplesOfModifiedGradients(t *testing.T) {
	m := modifiedGradientCases()[0]
	m.dTables = nil
	m.score, m.mask = "s * (0.5 + 0.25 * float(h) + float(b)) + float(hkv) * tanh(s)", "j % (h + 2) != 1"
	tt := cases.On(attention.TierCPU, attention.F16)
	e := &engine{ops: map[attention.Config]*attention.Op{}}
	cfg := m.config(t, tt)
	after, err := e.runBackward(m, cfg, m.memory(tt.DType))
	require.NoError(t, err)
	for seed := range uint64(4) {
		verdict, err := accuracy.VerifyBackward(problem.Config(cfg), m.BackwardHostArgs(after), accuracy.Options{Rows: 40, Seed: seed})
		require.NoError(t, err)
		require.True(t, verdict.Pass(), verdict)
		require.Less(t, verdict.Rows, 100)
	}
	require.NoError(t, e.close())
}
