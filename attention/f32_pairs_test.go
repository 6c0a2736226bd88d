package attention_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// Unmasked tiles of float32 are multiplied as pairs of float16 if their numbers are in range:
// with the accuracy of float32, and other bits than six products of terms. From the first tile
// out of range on, a workgroup multiplies terms, so a call whose first tile is out of range has
// the bits of a call without pairs. Masked keys change no bit, whatever they hold.
func TestF32PairsOfFloat16(t *testing.T) {
	testF32Pairs(t, 8, "subgroups=2,kv_tile=16,kv_step=16,group=1", "pair_tile=32,pair_group=1") // small: a driver on the CPU compiles for long
}

// The same where two subgroups split the head dim of their rows and add partial scores, with V in
// the place of K in shared memory and not. A head dim of 24 is an odd number of fragments of 8
// columns, and one and a half of 16.
func TestF32PairsWithASplitHeadDim(t *testing.T) {
	for _, alias := range []string{"0", "3"} {
		t.Run("alias "+alias, func(t *testing.T) {
			testF32Pairs(t, 24, "subgroups=4,kv_tile=16,kv_step=16,group=1,dim_split=2,alias_kv="+alias, "pair_tile=16,pair_group=1")
		})
	}
}

// testF32Pairs compares a tile without a loop with pairs with the same tile that has one.
func testF32Pairs(t *testing.T, dim int, tile, loop string) {
	const heads, sq, sk = 2, 70, 150
	d := newBackwardDevice(t)
	set := func(x []float32, row, col int, value float32) { x[row*dim+col] = value }
	onF32Matrices(t, d, func(t *testing.T, tier attention.Tier, e attention.Experiment) {
		const causal = attention.TopLeft // unmasked tiles, masked ones, and keys that no row attends to
		cfg := attention.Config{DType: attention.F32, HeadDim: dim, Causal: causal, Tier: tier, Tuning: attention.TuningOff}
		operation := func(tile string) *attention.Op {
			e.Tile = tile
			op, err := attention.NewExperiment(attention.On(d.dev), cfg, e)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, op.Close()) })
			return op
		}
		terms, pairs := operation(tile+",pair_tile=0"), operation(tile+","+loop)
		for _, x := range []struct {
			name  string
			spoil func(q, k, v []float32)
			used  bool // the first tile is in range
		}{
			{"in range", func(_, _, _ []float32) {}, true},
			{"rows of V are zero", func(_, _, v []float32) {
				for row := 0; row < sk; row += 2 {
					clear(v[row*dim:][:dim])
				}
			}, true},
			{"large in a later tile of K", func(_, k, _ []float32) { set(k, 40, 5, 300) }, true},
			{"large in K", func(_, k, _ []float32) { set(k, 0, 5, 300) }, false},
			{"large in a later tile of V", func(_, _, v []float32) { set(v, 45, 1, 3e4) }, true},
			{"large in V", func(_, _, v []float32) { set(v, 1, 1, 3e4) }, false},
			{"large in Q", func(q, _, _ []float32) {
				for row := range heads * sq {
					set(q, row, 3, 130)
				}
			}, false},
			{"small in V", func(_, _, v []float32) {
				for row := range sk {
					clear(v[row*dim:][:dim])
					set(v, row, 2, 1e-3)
				}
			}, false},
		} {
			t.Run(x.name, func(t *testing.T) {
				r := rand.New(rand.NewPCG(3, 4))
				random := func(n int) []float32 {
					list := make([]float32, n)
					for i := range list {
						list[i] = float32(r.NormFloat64())
					}
					return list
				}
				q, k, v := random(heads*sq*dim), random(sk*dim), random(sk*dim)
				x.spoil(q, k, v)
				call := func(op *attention.Op) (o, lse []float32) {
					a := attention.Args{Shape: attention.Shape{B: 1, Hq: heads, Hkv: 1, Sq: sq, Sk: sk}, Q: f32Tensor(q), K: f32Tensor(k), V: f32Tensor(v),
						O: f32Tensor(make([]float32, heads*sq*dim)), LSE: f32Tensor(make([]float32, heads*sq))}
					u := d.upload(t, attention.BackwardArgs{Args: a})
					require.NoError(t, op.Forward(attention.OnStream(d.stream), u.Args))
					require.NoError(t, d.stream.Download(t.Context(), a.O.Host, u.O.Buffer, 0))
					require.NoError(t, d.stream.Download(t.Context(), a.LSE.Host, u.LSE.Buffer, 0))
					return f32Values(a.O.Host), f32Values(a.LSE.Host)
				}
				termsO, termsLSE := call(terms)
				o, lse := call(pairs)
				if x.used {
					require.False(t, slices.Equal(termsO, o), "no tile was multiplied as pairs")
				} else {
					require.True(t, slices.Equal(termsO, o) && slices.Equal(termsLSE, lse), "a tile out of range was multiplied as pairs")
				}
				a := attention.Args{Shape: attention.Shape{B: 1, Hq: heads, Hkv: 1, Sq: sq, Sk: sk}, Q: f32Tensor(q), K: f32Tensor(k), V: f32Tensor(v),
					O: f32Tensor(make([]float32, heads*sq*dim))}
				wantO, wantLSE, err := attention.Reference(cfg, a)
				require.NoError(t, err)
				worst := func(got []float32, want []float64) (e float64) {
					for i, x := range got {
						require.False(t, math.IsNaN(float64(x)), "element %d", i)
						e = max(e, math.Abs(float64(x)-want[i])/max(1, math.Abs(want[i])))
					}
					return e
				}
				require.LessOrEqual(t, worst(o, wantO), 1.5*worst(termsO, wantO)+2e-7)
				require.LessOrEqual(t, worst(lse, wantLSE), 1.5*worst(termsLSE, wantLSE)+2e-7)

				nan := float32(math.NaN())
				for i := sq * dim; i < sk*dim; i++ { // no row attends to these keys
					k[i], v[i] = nan, nan
				}
				again, againLSE := call(pairs)
				require.True(t, slices.Equal(o, again) && slices.Equal(lse, againLSE), "a masked key changed a result")
			})
		}
	})
}
