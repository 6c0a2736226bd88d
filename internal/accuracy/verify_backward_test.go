package accuracy_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
)

// backwardCall is a packed problem with random inputs whose gradients the CPU tier has
// computed.
func backwardCall(t *testing.T, cfg attention.Config, a attention.Args) attention.BackwardArgs {
	t.Helper()
	s, dt := a.Shape, cfg.DType
	tensor := func(elements int64) attention.Tensor {
		return attention.Tensor{Host: make([]byte, elements*int64(dt.Size()))}
	}
	keys := int64(s.B) * int64(s.KVHeads()) * int64(s.Sk)
	b := attention.BackwardArgs{Args: a,
		DO: attention.Tensor{Host: inputs.New(s.Rows()*int64(cfg.ValueDim()), dt, inputs.Normal, 4)}, DLSE: attention.Tensor{Host: inputs.New(s.Rows(), attention.F32, inputs.Normal, 5)},
		DQ: tensor(s.Rows() * int64(cfg.HeadDim)), DK: tensor(keys * int64(cfg.HeadDim)), DV: tensor(keys * int64(cfg.ValueDim()))}
	if a.Bias != nil {
		n := func(size, all int) int64 {
			if size == 0 {
				size = all
			}
			return int64(size)
		}
		b.DBias.Host = make([]byte, 4*n(a.Bias.Batches, s.B)*n(a.Bias.Heads, s.Hq)*n(a.Bias.Rows, s.Sq)*int64(s.Sk))
	}
	if a.Sinks.Given() {
		b.DSinks.Host = make([]byte, 4*s.Hq)
	}
	cfg.Tier = attention.TierCPU
	op, err := attention.New(nil, cfg)
	require.NoError(t, err)
	require.NoError(t, op.Forward(nil, b.Args))
	require.NoError(t, op.Backward(nil, b))
	return b
}

func vectorOf(x ...int32) attention.Vector {
	var host []byte
	for _, v := range x {
		host = binary.LittleEndian.AppendUint32(host, uint32(v))
	}
	return attention.Vector{Host: host}
}

// optionCalls are calls with each option, for the sample to find its rows, keys and heads in.
func optionCalls() map[string]func() (attention.Config, attention.Args) {
	of := func(cfg attention.Config, s attention.Shape, change func(*attention.Config, *attention.Args)) func() (attention.Config, attention.Args) {
		return func() (attention.Config, attention.Args) {
			c := cfg
			a := call(c, s)
			if change != nil {
				change(&c, &a)
			}
			return c, a
		}
	}
	floats := func(n int, seed uint64) []byte { return inputs.New(int64(n), attention.F32, inputs.Normal, seed) }
	cfg := attention.Config{HeadDim: 32, HeadDimV: 24}
	return map[string]func() (attention.Config, attention.Args){
		"f16":                  of(attention.Config{HeadDim: 64}, shape, nil),
		"bf16, causal":         of(attention.Config{DType: attention.BF16, HeadDim: 40, Causal: attention.BottomRight}, shape, nil),
		"f32, top-left, scale": of(attention.Config{DType: attention.F32, HeadDim: 32, Causal: attention.TopLeft, Scale: attention.ScaleOf(0.3)}, shape, nil),
		"window, softcap": of(cfg, shape, func(c *attention.Config, _ *attention.Args) {
			c.Causal, c.Window, c.Softcap = attention.BottomRight, attention.WindowOf(70, -1), 2
		}),
		"bias, ALiBi, sinks": of(cfg, shape, func(c *attention.Config, a *attention.Args) {
			c.Causal = attention.BottomRight
			a.Bias = &attention.Bias{DType: attention.F32, Batches: 1, Heads: a.Hq, Rows: a.Sq}
			a.Bias.Host = floats(a.Hq*a.Sq*a.Sk, 7)
			a.ALiBi.Host, a.Sinks.Host = floats(a.Hq, 8), floats(a.Hq, 9)
		}),
		"mask": of(cfg, shape, func(_ *attention.Config, a *attention.Args) {
			a.Mask = &attention.Mask{Batches: a.B, Heads: 1, Rows: a.Sq}
			a.Mask.Host = make([]byte, a.B*a.Sq*a.Sk)
			r := rand.New(rand.NewPCG(1, 2))
			for i := range a.Mask.Host {
				a.Mask.Host[i] = byte(r.IntN(2))
			}
		}),
		"blocks": of(cfg, shape, func(_ *attention.Config, a *attention.Args) {
			blocks := make([]int32, a.B*a.Hq*((a.Sq+63)/64))
			for i := range blocks {
				blocks[i] = int32(i*2654435761>>8) | 1
			}
			a.Blocks = &attention.Blocks{Map: vectorOf(blocks...), BlockQ: 64, BlockK: 64, Batches: a.B, Heads: a.Hq}
		}),
		"sparse tokens": of(cfg, shape, func(_ *attention.Config, a *attention.Args) {
			r, offsets, tokens := rand.New(rand.NewPCG(3, 4)), []int32{0}, []int32{}
			for range a.B * a.KVHeads() {
				for range 90 {
					tokens = append(tokens, int32(r.IntN(a.Sk)))
				}
				offsets = append(offsets, int32(len(tokens)))
			}
			a.SparseTokens = &attention.SparseTokens{Offsets: vectorOf(offsets...), Tokens: vectorOf(tokens...), Total: len(tokens)}
		}),
		"packed": of(cfg, attention.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 300, Sk: 400}, func(c *attention.Config, a *attention.Args) {
			c.Causal = attention.BottomRight
			a.Varlen = &attention.Varlen{CuQ: vectorOf(0, 100, 101, 300), TotalQ: 300, CuK: vectorOf(0, 150, 150, 400), TotalK: 400}
			a.Shape = attention.Shape{B: 3, Hq: 4, Hkv: 2, Sq: 199, Sk: 250}
		}),
		"lengths": of(cfg, shape, func(c *attention.Config, a *attention.Args) {
			a.Varlen = &attention.Varlen{UsedQ: vectorOf(150, 200), UsedK: vectorOf(300, 77)}
		}),
		"dropout": of(cfg, shape, func(c *attention.Config, a *attention.Args) {
			c.Causal, c.Dropout = attention.BottomRight, 0.3
			a.DropoutSeed, a.DropoutOffset = 0x123456789abc, 5
		}),
		"f32, dropout, packed": of(attention.Config{DType: attention.F32, HeadDim: 32}, attention.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 300, Sk: 400}, func(c *attention.Config, a *attention.Args) {
			c.Dropout, c.Softcap, a.DropoutSeed = 0.5, 2, 7
			a.Varlen = &attention.Varlen{CuQ: vectorOf(0, 100, 101, 300), TotalQ: 300, CuK: vectorOf(0, 150, 150, 400), TotalK: 400}
			a.Shape = attention.Shape{B: 3, Hq: 4, Hkv: 2, Sq: 199, Sk: 250}
		}),
	}
}

// TestVerifyBackwardPassesWhatTheCPUTierComputes also holds the sampled reference to the
// whole one: both judge the same gradients, by limits of some units in the last place.
func TestVerifyBackwardPassesWhatTheCPUTierComputes(t *testing.T) {
	for name, c := range optionCalls() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, args := c()
			a := backwardCall(t, cfg, args)
			for _, rows := range []int{-1, 40} {
				v, err := accuracy.VerifyBackward(problem.Config(cfg), a, accuracy.Options{Rows: rows, Seed: 3})
				require.NoError(t, err)
				require.True(t, v.Pass(), "%d rows: %v", rows, v)
				for _, g := range v.Tensors {
					if g.Name == "dQ" || g.Name == "dK" || g.Name == "dV" {
						require.Empty(t, g.Unjudged, "%s, %d rows", g.Name, rows)
					}
					// The sample and the whole are of the same numbers, so a wrong sum of either shows.
					if g.Unjudged == "" {
						require.Less(t, g.Whole.NMSE, map[attention.DType]float64{attention.F16: 1e-5, attention.BF16: 2e-4, attention.F32: 1e-10}[cfg.DType], "%s, %d rows", g.Name, rows)
					}
				}
			}
		})
	}
}

// A gradient with the dropout mask of another seed, offset or head is wrong, whole or sampled.
func TestVerifyBackwardFindsAnotherDropoutMask(t *testing.T) {
	cfg, args := optionCalls()["dropout"]()
	a := backwardCall(t, cfg, args)
	for name, change := range map[string]func(*attention.BackwardArgs){
		"seed":   func(b *attention.BackwardArgs) { b.DropoutSeed++ },
		"offset": func(b *attention.BackwardArgs) { b.DropoutOffset++ },
	} {
		b := a
		change(&b)
		for _, rows := range []int{-1, 40} {
			v, err := accuracy.VerifyBackward(problem.Config(cfg), b, accuracy.Options{Rows: rows, Seed: 1})
			require.NoError(t, err)
			require.False(t, v.Pass())
			for _, g := range v.Tensors[:3] {
				require.Empty(t, g.Unjudged)
				require.Greater(t, g.Whole.NMSE, 0.1, "%s of another %s, %d rows", g.Name, name, rows)
			}
		}
	}
}

// A wrong element of a sampled row or key fails, in each gradient by itself.
func TestVerifyBackwardFindsWhatIsWrong(t *testing.T) {
	cfg, args := optionCalls()["bias, ALiBi, sinks"]()
	a := backwardCall(t, cfg, args)
	for name, host := range map[string][]byte{"dQ": a.DQ.Host, "dK": a.DK.Host, "dV": a.DV.Host, "dBias": a.DBias.Host, "dSinks": a.DSinks.Host} {
		for _, rows := range []int{-1, 40} {
			if rows > 0 && (name == "dBias" || name == "dSinks") {
				continue // a sample has none of them
			}
			old := append([]byte(nil), host[:4]...)
			binary.LittleEndian.PutUint32(host, math.Float32bits(8)|0x4800) // the first row, and the first key, are always sampled
			v, err := accuracy.VerifyBackward(problem.Config(cfg), a, accuracy.Options{Rows: rows, Seed: 1})
			copy(host, old)
			require.NoError(t, err)
			require.False(t, v.Pass(), "%s, %d rows", name, rows)
			require.Contains(t, v.String(), "FAIL: "+name+": ")
			require.Contains(t, v.String(), "batch 0, head 0, row 0")
		}
	}
}

// An error of one row that rounding O does not explain is found in the 16-bit types, whose
// limits allow for that rounding.
func TestVerifyBackwardFindsOneWrongRow(t *testing.T) {
	const row, dim = 37, 64
	for _, dtype := range []attention.DType{attention.F16, attention.BF16} {
		cfg := attention.Config{DType: dtype, HeadDim: dim, Causal: attention.BottomRight}
		a := backwardCall(t, cfg, call(cfg, attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 60, Sk: 90}))
		cpu := cfg
		cpu.Tier = attention.TierCPU
		op, err := attention.New(nil, cpu)
		require.NoError(t, err)
		for name, change := range map[string]func(b *attention.BackwardArgs){
			"nothing":        func(*attention.BackwardArgs) {},
			"delta left out": func(b *attention.BackwardArgs) { clear(b.O.Host[2*row*dim:][:2*dim]) },
			"P 4 % off": func(b *attention.BackwardArgs) {
				lse := b.LSE.Host[4*row:]
				binary.LittleEndian.PutUint32(lse, math.Float32bits(math.Float32frombits(binary.LittleEndian.Uint32(lse))+0.04))
			},
			"dO of the next row": func(b *attention.BackwardArgs) { copy(b.DO.Host[2*row*dim:][:2*dim], a.DO.Host[2*(row+1)*dim:]) },
		} {
			b := a
			b.O.Host, b.DO.Host, b.LSE.Host = bytes.Clone(a.O.Host), bytes.Clone(a.DO.Host), bytes.Clone(a.LSE.Host)
			change(&b)
			require.NoError(t, op.Backward(nil, b))
			v, err := accuracy.VerifyBackward(problem.Config(cfg), a, accuracy.Options{Rows: -1})
			require.NoError(t, err)
			require.Equal(t, name == "nothing", v.Pass(), "%v, %s: %v", dtype, name, v)
		}
	}
}

func TestVerifyBackwardWantsZerosWhereNothingIsAttendedTo(t *testing.T) {
	cfg := attention.Config{HeadDim: 32, Causal: attention.BottomRight}
	a := backwardCall(t, cfg, call(cfg, attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 100, Sk: 20}))
	v, err := accuracy.VerifyBackward(problem.Config(cfg), a, accuracy.Options{Rows: -1})
	require.NoError(t, err)
	require.True(t, v.Pass(), v)
	a.DQ.Host[0] = 1 // the least number of f16, in a row without keys
	a.DQ.Host[1] = 4
	v, err = accuracy.VerifyBackward(problem.Config(cfg), a, accuracy.Options{Rows: -1})
	require.NoError(t, err)
	require.False(t, v.Pass())
	require.Contains(t, v.String(), "1 elements are not exactly 0")
}

// A number in the gradient of a row or key that no mask, length or bias of -Inf hides may be
// anything that the rules allow, however small its P is. Where one of them hides it, the
// least number is wrong. The sample and the whole agree.
func TestVerifyBackwardZerosAreThoseOfMasks(t *testing.T) {
	const key, row, sq, sk = 0, 5, 40, 64 // the first key is always sampled
	inf := float32(math.Inf(-1))
	biased := func(value float32, hides func(i, j int) bool) func(*attention.Config, *attention.Args) {
		return func(_ *attention.Config, a *attention.Args) {
			a.Bias = &attention.Bias{DType: attention.F32, Batches: 1, Heads: 1}
			a.Bias.Host = make([]byte, 4*sq*sk)
			for i := range sq {
				for j := range sk {
					if hides(i, j) {
						binary.LittleEndian.PutUint32(a.Bias.Host[4*(i*sk+j):], math.Float32bits(value))
					}
				}
			}
		}
	}
	ofKey, ofRow := func(_, j int) bool { return j == key }, func(i, _ int) bool { return i == row }
	for name, c := range map[string]struct {
		change       func(*attention.Config, *attention.Args)
		rowIs, keyIs bool // must be 0
	}{
		"dense":                      {func(*attention.Config, *attention.Args) {}, false, false},
		"P of the key underflows":    {biased(-95, ofKey), false, false},
		"P of the key is 0":          {biased(-1e30, ofKey), false, false},
		"the least bias for the row": {biased(-math.MaxFloat32, ofRow), false, false},
		"a bias of -Inf for the key": {biased(inf, ofKey), false, true},
		"a bias of -Inf for the row": {biased(inf, ofRow), true, false},
		"-Inf for the key, but once": {biased(inf, func(i, j int) bool { return j == key && i != 7 }), false, false},
		"a window that hides the key": {func(c *attention.Config, _ *attention.Args) {
			c.Window, c.Align = attention.WindowOf(8, 8), attention.BottomRight
		}, false, true},
		"a mask": {func(_ *attention.Config, a *attention.Args) {
			a.Mask = &attention.Mask{Batches: 1, Heads: 1, Rows: sq}
			a.Mask.Host = make([]byte, sq*sk)
			for i := range a.Mask.Host {
				if i%sk != key && i/sk != row {
					a.Mask.Host[i] = 1
				}
			}
		}, true, true},
		"sparse tokens": {func(_ *attention.Config, a *attention.Args) {
			a.SparseTokens = &attention.SparseTokens{Offsets: vectorOf(0, 3), Tokens: vectorOf(3, 4, 63), Total: 3}
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := attention.Config{DType: attention.F32, HeadDim: 8}
			args := call(cfg, attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: sq, Sk: sk})
			c.change(&cfg, &args)
			a := backwardCall(t, cfg, args)
			for _, rows := range []int{-1, 79} {
				verify := func() *accuracy.Verdict {
					v, err := accuracy.VerifyBackward(problem.Config(cfg), a, accuracy.Options{Rows: rows, Seed: 3})
					require.NoError(t, err)
					return v
				}
				v := verify()
				require.True(t, v.Pass(), v)
				for _, x := range []struct {
					what    string
					host    []byte
					mustBe0 bool
				}{
					{"dQ", a.DQ.Host[4*8*row:], c.rowIs}, {"dK", a.DK.Host[4*8*key:], c.keyIs}, {"dV", a.DV.Host[4*8*key:], c.keyIs},
				} {
					old := binary.LittleEndian.Uint32(x.host)
					binary.LittleEndian.PutUint32(x.host, math.Float32bits(math.Float32frombits(old)+1e-39))
					require.Equal(t, !x.mustBe0, verify().Pass(), "%s plus a subnormal, %d rows: %v", x.what, rows, verify())
					binary.LittleEndian.PutUint32(x.host, math.Float32bits(math.Float32frombits(old)+1))
					require.False(t, verify().Pass(), "%s plus 1, %d rows", x.what, rows)
					binary.LittleEndian.PutUint32(x.host, old)
				}
			}
		})
	}
}

func TestVerifyBackwardRefuses(t *testing.T) {
	cfg := attention.Config{HeadDim: 32}
	a := backwardCall(t, cfg, call(cfg, attention.Shape{B: 1, Hq: 1, Sq: 9, Sk: 20}))
	a.Accumulate = true
	_, err := accuracy.VerifyBackward(problem.Config(cfg), a, accuracy.Options{})
	require.ErrorContains(t, err, "Accumulate")
	a.Accumulate, a.PartialKeys = false, true
	_, err = accuracy.VerifyBackward(problem.Config(cfg), a, accuracy.Options{})
	require.ErrorContains(t, err, "PartialKeys")
	_, err = attention.ReferenceBackward(cfg, a)
	require.ErrorContains(t, err, "PartialKeys")
	a.PartialKeys, a.DO = false, attention.Tensor{}
	_, err = accuracy.VerifyBackward(problem.Config(cfg), a, accuracy.Options{})
	require.Error(t, err)
	require.False(t, (&accuracy.Verdict{}).Pass())
}
