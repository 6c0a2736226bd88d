package attention_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/internal/half"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// mappedCase is a call with a mask modifier, in float32 on tier scalar and in float16 on the others.
type mappedCase struct {
	name, mask string
	shape      attention.Shape
	change     func(*attention.Config, *attention.Args)
	matrices   bool // for the tiers with cooperative matrices too
}

func mappedCases() []mappedCase {
	shape := attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 150, Sk: 301}
	square := attention.Shape{B: 3, Hq: 2, Hkv: 1, Sq: 260, Sk: 260}
	bits := func(n int) (b []byte) {
		r := rand.New(rand.NewPCG(5, 6))
		for range n {
			b = binary.LittleEndian.AppendUint32(b, r.Uint32()|r.Uint32())
		}
		return b
	}
	return []mappedCase{
		{name: "many rows", shape: attention.Shape{B: 1, Hq: 4, Hkv: 1, Sq: 530, Sk: 130}, mask: "doc[i] == doc[j]", matrices: true}, // over 32 tiles
		{name: "many keys", shape: attention.Shape{B: 1, Hq: 1, Sq: 70, Sk: 2190}, mask: "doc[i] == doc[j]"},
		{name: "documents", shape: shape, mask: "doc[i] == doc[j]"},
		{name: "rows without keys", shape: shape, mask: "doc[i] == doc[j] && i % 128 < 64 && i > 200"},
		{name: "no slot", shape: shape, mask: "doc[i] == doc[j] && j > sk"},
		{name: "every slot", shape: shape, mask: "doc[j] >= 0"},
		{name: "of each head and sequence", shape: shape, mask: "(j / 32 + h + b) % 3 == 0"},
		{name: "causal", shape: square, mask: "j <= i && doc[i] == doc[j] || j < 3"},
		{name: "a window", shape: square, mask: "doc[i] == doc[j] || j % 64 < 5", matrices: true, change: func(c *attention.Config, a *attention.Args) {
			c.Causal, c.Window, a.ALiBi = attention.TopLeft, attention.WindowOf(90, 0), vectorF32(0.25, 0.5)
		}},
		{name: "packed", shape: square, mask: "doc[i] == doc[j]", change: func(c *attention.Config, a *attention.Args) {
			c.Causal = attention.TopLeft
			a.Varlen = &attention.Varlen{CuQ: vectorI32(0, 200, 200, 251), CuK: vectorI32(0, 199, 259, 260), TotalQ: 260, TotalK: 260}
		}},
		{name: "lengths", shape: square, mask: "doc[i] == doc[j]", change: func(c *attention.Config, a *attention.Args) {
			c.Causal = attention.BottomRight
			a.Varlen = &attention.Varlen{UsedQ: vectorI32(259, 0, 70), UsedK: vectorI32(3, 20, 250)}
		}},
		{name: "a mask", shape: square, mask: "doc[i] == doc[j]", change: func(_ *attention.Config, a *attention.Args) {
			a.Mask = &attention.Mask{Batches: 1, Heads: 1, Tensor: attention.Tensor{Host: bits(260 * 260 / 4)}}
		}},
	}
}

// call makes the call, with outputs that hold NaN.
func (m *mappedCase) call(t *testing.T, tier attention.Tier, dtype attention.DType) (attention.Config, attention.BackwardArgs) {
	mask, err := score.Parse(m.mask, score.IntTable("doc", 1))
	require.NoError(t, err)
	cfg := attention.Config{DType: dtype, HeadDim: 16, MaskMod: mask, Tier: tier, Tuning: attention.TuningOff}
	r := rand.New(rand.NewPCG(3, 20))
	s := m.shape
	tensor := func(heads, n int) attention.Tensor {
		v := make([]float32, s.B*heads*n*cfg.HeadDim)
		for i := range v {
			v[i] = float32(r.IntN(255)-127) / 64
		}
		if dtype == attention.F32 {
			return attention.Tensor{Host: encodeF32(v)}
		}
		b := make([]byte, 2*len(v))
		half.EncodeF16(b, v)
		return attention.Tensor{Host: b}
	}
	nan := func(like attention.Tensor) attention.Tensor { return attention.Tensor{Host: nans(len(like.Host) / 4)} }
	var a attention.BackwardArgs
	a.Shape = s
	a.Q, a.K, a.V, a.DO = tensor(s.Hq, s.Sq), tensor(s.KVHeads(), s.Sk), tensor(s.KVHeads(), s.Sk), tensor(s.Hq, s.Sq)
	a.O, a.DQ, a.DK, a.DV = nan(a.Q), nan(a.Q), nan(a.K), nan(a.V)
	a.LSE = attention.Tensor{Host: nans(s.B * s.Hq * s.Sq)}
	doc := make([]int32, s.Sk)
	for i := range doc {
		doc[i] = int32(i * i / 4000) // longer ones, then shorter ones
	}
	if list, _ := score.TablesOf(mask); len(list) > 0 {
		a.Tables = []attention.Table{{Name: "doc", Dims: [3]int{len(doc)}, Vector: vectorI32(doc...)}}
	}
	if m.change != nil {
		m.change(&cfg, &a.Args)
	}
	if a.Varlen != nil && a.Varlen.CuQ.Given() { // packed: one batch of all rows
		for _, x := range []*attention.Tensor{&a.Q, &a.DO, &a.O, &a.DQ, &a.K, &a.V, &a.DK, &a.DV} {
			x.Host = x.Host[:len(x.Host)/s.B]
		}
		a.LSE.Host = a.LSE.Host[:len(a.LSE.Host)/s.B]
	}
	return cfg, a
}

// Gradients are the same with a map of tiles that the call makes, with one that it brings, and without one: in float32 bit for
// bit, and on matrices to the order of sums, where full tiles come behind those that need masks.
func TestGradientsWithMapsOfTiles(t *testing.T) {
	d := newBackwardDevice(t)
	for _, r := range attention.TierReport(d.dev) {
		matrices := r.Tier == attention.TierCoopMat || r.Tier == attention.TierCoopMat2
		if !r.Available || !(r.Tier == attention.TierScalar && r.DType == attention.F32 || matrices && r.DType == attention.F16) {
			continue
		}
		if l := testlevel.Get(); matrices && (l == testlevel.Default || l == testlevel.Brief) {
			continue // a driver on the CPU compiles for 20 s: make test-full runs it
		}
		for n, m := range mappedCases() {
			if matrices && !m.matrices || !matrices && !testlevel.Share(n%4 == 2) {
				continue
			}
			t.Run(r.Tier.String()+"/"+m.name, func(t *testing.T) {
				cfg, want := m.call(t, r.Tier, r.DType)
				_, made := m.call(t, r.Tier, r.DType)
				_, brought := m.call(t, r.Tier, r.DType)
				var scratch [3]uint64
				for i, a := range []attention.BackwardArgs{want, made, brought} {
					op, err := attention.New(attention.On(d.dev), cfg)
					require.NoError(t, err)
					d.keep(op)
					attention.SetNoMaps(op, i == 0)
					u := d.upload(t, a)
					if i == 2 {
						u.BlockMap, err = op.BlockMap(context.Background(), attention.OnStream(d.stream), u.Args)
						require.NoError(t, err)
					}
					plan, err := op.PlanBackwardFor(u.BackwardArgs)
					require.NoError(t, err)
					scratch[i] = plan.ScratchBytes
					require.NoError(t, op.Forward(attention.OnStream(d.stream), u.Args))
					require.NoError(t, d.stream.Barrier())
					require.NoError(t, op.Backward(attention.OnStream(d.stream), u.BackwardArgs))
					require.NoError(t, op.Backward(attention.OnStream(d.stream), u.BackwardArgs)) // its map's scratch is used again
					u.download(t, d)
					require.NoError(t, u.BlockMap.Close())
				}
				require.Greater(t, scratch[2], scratch[0], "the kernels take no maps") // of made ones a GPU has none for few keys
				for i, g := range [][3]attention.Tensor{{want.DQ, made.DQ, brought.DQ}, {want.DK, made.DK, brought.DK}, {want.DV, made.DV, brought.DV}} {
					require.Equal(t, g[1].Host, g[2].Host, "gradient %d, made and brought", i)
					if !matrices {
						require.Equal(t, g[0].Host, g[1].Host, "gradient %d", i)
						continue
					}
					var list [2][]float32
					for n := range list {
						list[n] = make([]float32, len(g[n].Host)/2)
						half.DecodeF16(list[n], g[n].Host)
					}
					var difference, square float64
					for j, x := range list[0] {
						y := list[1][j]
						difference += float64((x - y) * (x - y))
						square += float64(x * x)
					}
					require.Less(t, difference, 1e-6*square, "gradient %d", i)
				}
			})
		}
	}
}

// Kernels of gradients take the map that a call brings: without a tile in it there is no gradient. A map of other sizes is
// ignored, and one of another operation refused.
func TestGradientsTakeTheirMaps(t *testing.T) {
	d := newBackwardDevice(t)
	m := mappedCases()[2]
	cfg, want := m.call(t, attention.TierScalar, attention.F32)
	op, err := attention.New(attention.On(d.dev), cfg)
	require.NoError(t, err)
	d.keep(op)
	stream := attention.OnStream(d.stream)
	run := func(a attention.BackwardArgs, of func(u *uploaded) *attention.BlockMap) {
		u := d.upload(t, a)
		u.BlockMap = of(u)
		require.NoError(t, op.Forward(stream, u.Args))
		require.NoError(t, d.stream.Barrier())
		require.NoError(t, op.Backward(stream, u.BackwardArgs))
		u.download(t, d)
		require.NoError(t, u.BlockMap.Close())
	}
	run(want, func(*uploaded) *attention.BlockMap { return nil })
	for _, name := range []string{"dQ", "dK dV"} {
		_, got := m.call(t, attention.TierScalar, attention.F32)
		run(got, func(u *uploaded) *attention.BlockMap {
			made, err := op.BlockMap(context.Background(), stream, u.Args)
			require.NoError(t, err)
			tiles := problem.TilesOf(made).DKDV
			if name == "dQ" {
				tiles = problem.TilesOf(made).DQ
			}
			require.NoError(t, d.stream.Fill(vk.BufferRange{Buffer: tiles.Buffer}, 0))
			require.NoError(t, d.stream.Barrier())
			return made
		})
		zero := make([]byte, max(len(want.DQ.Host), len(want.DK.Host)))
		if name == "dQ" {
			require.Equal(t, zero[:len(got.DQ.Host)], got.DQ.Host, name)
			require.Equal(t, want.DK.Host, got.DK.Host, name)
		} else {
			require.Equal(t, want.DQ.Host, got.DQ.Host, name)
			require.Equal(t, zero[:len(got.DK.Host)], got.DK.Host, name)
			require.Equal(t, zero[:len(got.DV.Host)], got.DV.Host, name)
		}
	}
	smaller := m
	smaller.shape.Sq, smaller.shape.Sk = 40, 100
	_, got := m.call(t, attention.TierScalar, attention.F32)
	run(got, func(*uploaded) *attention.BlockMap {
		_, small := smaller.call(t, attention.TierScalar, attention.F32)
		u := d.upload(t, small)
		made, err := op.BlockMap(context.Background(), stream, u.Args)
		require.NoError(t, err)
		u.download(t, d)
		return made
	})
	require.Equal(t, want.DQ.Host, got.DQ.Host)
	require.Equal(t, want.DK.Host, got.DK.Host)
	require.Equal(t, want.DV.Host, got.DV.Host)

	other, err := attention.New(attention.On(d.dev), cfg)
	require.NoError(t, err)
	d.keep(other)
	u := d.upload(t, got)
	u.BlockMap, err = other.BlockMap(context.Background(), stream, u.Args)
	require.NoError(t, err)
	require.ErrorContains(t, op.Backward(stream, u.BackwardArgs), "BlockMap is of another operation")
	require.NoError(t, u.BlockMap.Close())
	u.download(t, d)
}
