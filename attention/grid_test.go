package attention_test

import (
	"bytes"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/testdevices"
)

// gridCases are the cases of backwardTable with every tensor that has heads or batches.
var gridCases = []string{"one key head", "gaps between rows", "bias of all batches", "bias of all heads", "sparse tokens", "packed sequences",
	"softcap, bias, ALiBi, sinks, causal, window, padded", "softcap, bias, ALiBi, sinks, mask, packed",
	"softcap, bias, ALiBi, sinks, sparse tokens, padded", "blocks, bias, sinks, softcap", "dropout", "modifiers, sparse tokens"}

// A call with more heads and batches than a grid holds has the bits that it has in one
// dispatch, forward and backward, with every option and both ways to reach memory.
func TestGridsOfManyHeadsAndBatches(t *testing.T) {
	d := newBackwardDevice(t)
	for _, name := range gridCases {
		require.True(t, slices.ContainsFunc(backwardTable, func(row backwardRow) bool { return row.name == name }), name)
	}
	ran := 0
	eachBackward(t, func(t *testing.T, c *backwardCase) {
		if !slices.Contains(gridCases, strings.ReplaceAll(path.Base(t.Name()), "_", " ")) {
			return
		}
		cfg := onTier(c.cfg)
		cfg.Access = recordTests[ran%len(recordTests)]
		if ran++; !d.takesAddresses() {
			cfg.Access = attention.AccessDescriptors
		}
		c.giveOutputs(t)
		want := copyOf(c.BackwardArgs)
		d.run(t, cfg, want)
		for _, most := range [][2]uint32{{1, 1}, {3, 2}} {
			if op, got := d.overGrid(t, cfg, c, most); op != nil {
				wanted := outputsOf(&want)
				if got.DBias.Host == nil {
					delete(wanted, "DBias")
				}
				for name, x := range outputsOf(got) {
					require.Equal(t, wanted[name], x, "%s, %v", name, most)
				}
				require.Equal(t, want.O.Host, got.O.Host, "O, %v", most)
				require.Equal(t, want.LSE.Host, got.LSE.Host, "LSE, %v", most)
			}
		}
	})
}

// overGrid computes a call with few workgroups in a dispatch, without dBias if a dispatch does
// not hold it. It returns nil after the refusal of dropout or modifiers.
func (d *backwardDevice) overGrid(t *testing.T, cfg attention.Config, c *backwardCase, most [2]uint32) (*attention.Op, *attention.BackwardArgs) {
	limits := &d.dev.Caps().Limits.MaxWorkGroupCount
	before := *limits
	defer func() { *limits = before }()
	limits[1], limits[2] = most[0], most[1]
	op := testdevices.Op(t, attention.On(d.dev), cfg)
	got := copyOf(c.BackwardArgs)
	u := d.upload(t, got)
	refused := map[bool]string{cfg.ScoreMod.Given(): "a modifier takes the heads and batches of the whole call", cfg.Dropout != 0: "dropout numbers the heads"}[true]
	if refused != "" && most[0] == 1 {
		for _, err := range []error{op.Forward(attention.OnStream(d.stream), u.Args), op.Backward(attention.OnStream(d.stream), u.BackwardArgs)} {
			require.ErrorContains(t, err, refused)
			require.ErrorIs(t, err, attention.ErrUnsupported)
		}
		u.download(t, d)
		return nil, nil
	}
	require.NoError(t, op.Forward(attention.OnStream(d.stream), u.Args))
	if _, err := op.PlanBackwardFor(u.BackwardArgs); err != nil {
		require.ErrorContains(t, err, "a bias has its gradient from one dispatch")
		u.DBias = attention.Tensor{}
		got.DBias = attention.Tensor{}
	}
	require.NoError(t, d.stream.Barrier())
	require.NoError(t, op.Backward(attention.OnStream(d.stream), u.BackwardArgs))
	u.download(t, d)
	return op, &got
}

func onTier(cfg attention.Config) attention.Config {
	cfg.Tier, cfg.Tuning = attention.TierScalar, attention.TuningOff
	return cfg
}

// Splits, pages and scales of forward calls, which have no gradients, over grids of several
// dispatches.
func TestGridsOfManySplitsAndPages(t *testing.T) {
	d := newBackwardDevice(t)
	const b, hq, hkv, sq, sk, dim, page = 3, 6, 3, 2, 40, 32, 8
	floats := func(n int, seed int) []byte {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32((i*(2*seed+7)+seed*13)%31-15) / 8
		}
		return encodeF32(x)
	}
	paged := func(_ *attention.Config, a *attention.Args) { // K and V are pools of the same size
		table := make([]int32, b*sk/page)
		for i := range table {
			table[i] = int32((7*i + 2) % len(table))
		}
		a.Pages = &attention.Pages{Table: vectorI32(table...), PageSize: page, Count: len(table)}
	}
	quantized := func(cfg *attention.Config, a *attention.Args, kv attention.KVType) {
		cfg.KeyType, cfg.ValueType = kv, kv
		batches, keys := b, sk
		if a.Pages != nil {
			batches, keys = a.Pages.Count, page
		}
		for _, x := range []struct {
			tensor *attention.Tensor
			scale  *attention.Vector
		}{{&a.K, &a.KScale}, {&a.V, &a.VScale}} {
			numbers := make([]float32, len(x.tensor.Host)/4)
			half.DecodeF32(numbers, x.tensor.Host)
			data, scales, err := attention.EncodeKV(kv, 0, batches, hkv, keys, dim, numbers)
			require.NoError(t, err)
			x.tensor.Host, x.scale.Host = data, scales
		}
	}
	for name, set := range map[string]func(cfg *attention.Config, a *attention.Args){
		"splits": func(cfg *attention.Config, _ *attention.Args) { cfg.FixedSplit = 3 },
		"splits, lengths": func(cfg *attention.Config, a *attention.Args) {
			cfg.FixedSplit, a.Varlen = 3, &attention.Varlen{UsedQ: vectorI32(2, 0, 1), UsedK: vectorI32(40, 3, 17)}
		},
		"splits, packed": func(cfg *attention.Config, a *attention.Args) {
			cfg.FixedSplit, cfg.Causal = 2, attention.BottomRight
			a.Varlen = &attention.Varlen{CuQ: vectorI32(0, 2, 3, 5), TotalQ: 6, CuK: vectorI32(0, 40, 43, 80), TotalK: 90}
		},
		"pages": paged,
		"pages, splits, sinks": func(cfg *attention.Config, a *attention.Args) {
			paged(cfg, a)
			cfg.FixedSplit, a.Sinks = 2, attention.Vector{Host: floats(hq, 9)}
		},
		"int8 pages": func(cfg *attention.Config, a *attention.Args) {
			paged(cfg, a)
			quantized(cfg, a, attention.KVInt8)
		},
		"int8": func(cfg *attention.Config, a *attention.Args) { quantized(cfg, a, attention.KVInt8) },
		"q4_0 splits": func(cfg *attention.Config, a *attention.Args) {
			quantized(cfg, a, attention.KVQ4_0)
			cfg.FixedSplit = 3
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := attention.Config{DType: attention.F32, HeadDim: dim}
			a := attention.Args{Shape: attention.Shape{B: b, Hq: hq, Hkv: hkv, Sq: sq, Sk: sk}}
			a.Q.Host, a.K.Host, a.V.Host = floats(b*hq*sq*dim, 1), floats(b*hkv*sk*dim, 2), floats(b*hkv*sk*dim, 3)
			a.O, a.LSE = attention.Tensor{Host: nans(b * hq * sq * dim)}, attention.Tensor{Host: nans(b * hq * sq)}
			set(&cfg, &a)
			for _, access := range recordTests {
				if access == attention.AccessAddresses && !d.takesAddresses() {
					continue
				}
				cfg.Access = access
				limits := d.dev.Caps().Limits.MaxWorkGroupCount
				run := func(most ...uint32) (o, lse []byte) {
					if most != nil {
						copy(d.dev.Caps().Limits.MaxWorkGroupCount[1:], most)
					}
					op, err := attention.New(attention.On(d.dev), onTier(cfg))
					require.NoError(t, err)
					d.keep(op)
					call := attention.BackwardArgs{Args: a}
					call.O.Host, call.LSE.Host = bytes.Clone(a.O.Host), bytes.Clone(a.LSE.Host)
					u := d.upload(t, call)
					require.NoError(t, op.Forward(attention.OnStream(d.stream), u.Args))
					u.download(t, d)
					return call.O.Host, call.LSE.Host
				}
				o, lse := run()
				for _, most := range [][]uint32{{3, 1}, {7, 2}} {
					if cfg.FixedSplit == 0 {
						most[0] /= 3
					}
					gotO, gotLSE := run(most...)
					d.dev.Caps().Limits.MaxWorkGroupCount = limits
					require.True(t, slices.Equal(o, gotO), "O, %v", most)
					require.True(t, slices.Equal(lse, gotLSE), "LSE, %v", most)
				}
			}
		})
	}
}

// More heads, or more batches with options, than the 65,535 of a real grid.
func TestMoreHeadsThanAGrid(t *testing.T) {
	d := newBackwardDevice(t)
	const many = 65536 + 700
	for name, x := range map[string]struct {
		shape attention.Shape
		cfg   attention.Config
	}{
		"heads":                 {attention.Shape{B: 1, Hq: many, Sq: 2, Sk: 3}, attention.Config{}},
		"heads of one KV head":  {attention.Shape{B: 1, Hq: many, Hkv: 1, Sq: 1, Sk: 3}, attention.Config{}},
		"batches, with options": {attention.Shape{B: many, Hq: 1, Sq: 2, Sk: 2}, attention.Config{Causal: attention.TopLeft, Softcap: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, s := x.cfg, x.shape
			cfg.HeadDim, cfg.DType = 4, attention.F32
			rows, keys := int(s.Rows()), s.B*s.KVHeads()*s.Sk
			numbers := func(n, seed int) attention.Tensor {
				v := make([]float32, 4*n)
				for i := range v {
					v[i] = float32((i*7+i/64*seed)%29-14) / 8
				}
				return attention.Tensor{Host: encodeF32(v)}
			}
			var a attention.BackwardArgs
			a.Shape, a.Q, a.K, a.V = s, numbers(rows, 3), numbers(keys, 5), numbers(keys, 11)
			a.O.Host, a.LSE.Host = nans(4*rows), nans(rows)
			cpu := copyOf(a)
			require.NoError(t, attention.ForwardCPU(cfg, cpu.Args))
			u := d.upload(t, a)
			require.NoError(t, d.op(t, cfg).Forward(attention.OnStream(d.stream), u.Args))
			u.download(t, d)
			for _, x := range [][2][]byte{{cpu.O.Host, a.O.Host}, {cpu.LSE.Host, a.LSE.Host}} {
				want, got := make([]float32, len(x[0])/4), make([]float32, len(x[0])/4)
				half.DecodeF32(want, x[0])
				half.DecodeF32(got, x[1])
				for i := range want {
					if diff := got[i] - want[i]; !(diff < 1e-5 && diff > -1e-5) {
						require.Failf(t, "wrong", "element %d is %v, want %v", i, got[i], want[i])
					}
				}
			}
		})
	}
}
