package kvcache_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// modelled is a sequence with what it should hold: V of each token, the same for every head and layer but for its sign.
type modelled struct {
	s      *kvcache.Sequence
	tokens [][]float32
}

// Random steps, forks, truncations and frees against lists of tokens. Rows of Q are 0, so O is the mean of V over the
// tokens that a row sees: another page, length or copy gives another mean.
func TestCacheIsLikeLists(t *testing.T) {
	const seed = 5
	for _, dev := range testdevices.All(t) {
		for _, kv := range []attention.KVType{attention.KVSame, attention.KVInt8, attention.KVQ8_0, attention.KVFP8DSMLA} {
			t.Run(fmt.Sprint(dev, "/", kv), func(t *testing.T) {
				cfg := kvcache.Config{KeyType: kv, ValueType: kv, HeadDim: 32, HeadDimV: 32, HeadsKV: 2, Layers: 2, PageSize: 4, Pages: 24}
				if kv.Latent() {
					cfg.HeadDim, cfg.HeadDimV, cfg.HeadsKV = 576, 512, 1
				}
				c, err := kvcache.New(dev, cfg)
				require.NoError(t, err)
				defer func() { require.NoError(t, c.Close()) }()
				op := testdevices.Op(t, dev, attention.Config{HeadDim: cfg.HeadDim, HeadDimV: cfg.HeadDimV, KeyType: kv, ValueType: kv, Causal: attention.BottomRight})
				r := rand.New(rand.NewPCG(seed, 1))
				steps := 60
				if dev.Vulkan() != nil {
					steps = 12
				}
				var all []*modelled
				full, shared := 0, 0
				for range steps {
					switch n := r.IntN(10); {
					case len(all) < 3 || n == 0:
						all = append(all, &modelled{s: c.Sequence()})
					case n < 3:
						x := all[r.IntN(len(all))]
						f, err := x.s.Fork()
						require.NoError(t, err)
						all = append(all, &modelled{f, slices.Clone(x.tokens)})
					case n < 5:
						x := all[r.IntN(len(all))]
						keep := r.IntN(len(x.tokens) + 1)
						require.NoError(t, x.s.Truncate(keep))
						x.tokens = x.tokens[:keep]
					case n < 6:
						i := r.IntN(len(all))
						all[i].s.Free()
						all = slices.Delete(all, i, i+1)
					}
					before := c.Stats()
					tokens := 0
					for _, x := range all {
						require.Equal(t, len(x.tokens), x.s.Len())
						tokens += len(x.tokens)
					}
					require.Equal(t, tokens, before.Tokens)
					require.Equal(t, len(all), before.Sequences)
					shared += before.Shared
					var list []kvcache.NewRows
					var chosen []*modelled
					for _, i := range r.Perm(len(all))[:1+r.IntN(len(all))] {
						list = append(list, kvcache.NewRows{Sequence: all[i].s, Rows: r.IntN(7)})
						chosen = append(chosen, all[i])
					}
					step, err := c.Begin(list...)
					if err != nil {
						require.ErrorIs(t, err, kvcache.ErrFull)
						require.Equal(t, before, c.Stats(), "a step that did not fit changed the cache")
						full++
						for _, x := range all[len(all)/2:] {
							x.s.Free()
						}
						all = all[:len(all)/2]
						continue
					}
					checkStep(t, r, dev, cfg, op, step, list, chosen)
				}
				for _, x := range all {
					x.s.Free()
				}
				require.Equal(t, kvcache.Stats{Pages: cfg.Pages, Free: cfg.Pages}, c.Stats())
				require.NotZero(t, shared, "no page was shared")
				if dev.Vulkan() == nil {
					require.NotZero(t, full, "the cache was never full")
				}
			})
		}
	}
}

// checkStep appends random rows to both layers and compares means.
func checkStep(t *testing.T, r *rand.Rand, dev *attention.Device, cfg kvcache.Config, op *attention.Op, step *kvcache.Step, list []kvcache.NewRows, chosen []*modelled) {
	dim, dv, heads, off := cfg.HeadDim, cfg.HeadDimV, cfg.HeadsKV, 0.05
	if cfg.KeyType.Latent() {
		off = 0.5
	}
	rows := step.Rows()
	v := make([]float32, heads*rows*dim)
	at := 0
	for i, x := range list {
		for range x.Rows {
			token := make([]float32, dim)
			for j := range token {
				token[j] = float32(r.IntN(256)-128) / 16
				for h := range heads {
					v[(h*rows+at)*dim+j] = token[j]
				}
			}
			chosen[i].tokens = append(chosen[i].tokens, token)
			at++
		}
	}
	tensor := func(x []float32, heads, dim int) attention.Tensor {
		m, err := dev.Tensor(attention.F16, 1, heads, rows, dim)
		require.NoError(t, err)
		require.NoError(t, m.SetFloats(x))
		return m
	}
	for layer := range 2 {
		new := kvcache.LayerRows{K: tensor(v, heads, dim)}
		if !cfg.KeyType.Latent() {
			new.V = tensor(v, heads, dim)
		}
		require.NoError(t, step.Append(layer, new))
		for i := range v {
			v[i] = -v[i]
		}
	}
	if rows == 0 {
		return
	}
	for layer := range 2 {
		q, o := tensor(make([]float32, 2*heads*rows*dim), 2*heads, dim), tensor(make([]float32, 2*heads*rows*dv), 2*heads, dv)
		a, err := step.Args(layer, q, o, 0)
		require.NoError(t, err)
		require.NoError(t, op.Forward(nil, a))
		got, err := o.Floats(t.Context())
		require.NoError(t, err)
		at := 0
		for i, x := range list {
			for row := range x.Rows {
				seen := chosen[i].tokens[:len(chosen[i].tokens)-x.Rows+row+1]
				want := make([]float32, dv)
				for _, token := range seen {
					for j := range want {
						want[j] += token[j] * float32(1-2*layer) / float32(len(seen))
					}
				}
				for h := range 2 * heads {
					require.InDeltaSlice(t, want, got[(h*rows+at)*dv:][:dv], off, "layer %d, sequence %d, row %d, head %d", layer, i, row, h)
				}
				at++
			}
		}
	}
}

// What a caller does wrong is an error that says so, and changes nothing.
func TestCacheRefuses(t *testing.T) {
	for _, dev := range testdevices.All(t) {
		t.Run(dev.String(), func(t *testing.T) {
			c, err := kvcache.New(dev, kvcache.Config{HeadDim: 8, HeadsKV: 1, PageSize: 4, Pages: 3, Rotary: kvcache.Rotary{Dim: 8}, Positions: 10})
			require.NoError(t, err)
			a, b := c.Sequence(), c.Sequence()
			step, err := c.Begin(kvcache.NewRows{Sequence: a, Rows: 5}, kvcache.NewRows{Sequence: b, Rows: 4})
			require.NoError(t, err)
			require.Equal(t, kvcache.Stats{Pages: 3, Sequences: 2, Tokens: 9}, c.Stats())
			refused := func(want string, list ...kvcache.NewRows) {
				t.Helper()
				_, err := c.Begin(list...)
				require.ErrorContains(t, err, want)
			}
			refused("the cache is full: 1 pages are needed and 0 of 3 are free", kvcache.NewRows{Sequence: b, Rows: 1})
			refused("given twice", kvcache.NewRows{Sequence: a}, kvcache.NewRows{Sequence: a})
			refused("is -1, want at least 0", kvcache.NewRows{Sequence: a, Rows: -1})
			refused("at most 10 with the 5 before", kvcache.NewRows{Sequence: a, Rows: 6})
			refused("nil", kvcache.NewRows{})
			other, err := kvcache.New(dev, kvcache.Config{HeadDim: 8, HeadsKV: 1, Pages: 1})
			require.NoError(t, err)
			refused("of another cache", kvcache.NewRows{Sequence: other.Sequence()})
			require.NoError(t, other.Close())
			require.ErrorContains(t, a.Truncate(6), "0 to 5")
			require.ErrorContains(t, step.Append(1, kvcache.LayerRows{}), "layer")
			next, err := c.Begin(kvcache.NewRows{Sequence: a, Rows: 1}) // into its last page
			require.NoError(t, err)
			require.ErrorContains(t, step.Append(0, kvcache.LayerRows{}), "the step is over")
			b.Free()
			b.Free()
			_, err = b.Fork()
			require.ErrorIs(t, err, attention.ErrInvalid)
			require.Equal(t, 1, c.Stats().Free)
			require.NoError(t, c.Close())
			require.NoError(t, c.Close())
			require.ErrorIs(t, next.Append(0, kvcache.LayerRows{}), vk.ErrClosed)
			_, err = c.Begin()
			require.ErrorIs(t, err, vk.ErrClosed)
		})
	}
	for _, bad := range []kvcache.Config{{HeadDim: 8, HeadsKV: 1}, {HeadDim: 8, Pages: 1}, {HeadDim: 8, HeadsKV: 1, Pages: 1, PageSize: -1},
		{HeadsKV: 1, Pages: 1}, {HeadDim: 8, HeadsKV: 1, Pages: 1, Rotary: kvcache.Rotary{Dim: 3}}, {HeadDim: 8, HeadsKV: 1, Pages: 1, Rotary: kvcache.Rotary{Dim: 4}, RotaryBase: -1}} {
		_, err := kvcache.New(nil, bad)
		require.ErrorIs(t, err, attention.ErrInvalid, "%+v", bad)
	}
}
