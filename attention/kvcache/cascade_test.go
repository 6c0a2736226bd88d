package kvcache_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/internal/accuracy"
	"vkattn/internal/problem"
	"vkattn/internal/testdevices"
)

// The sizes of the test of cascades.
const cascadeDim, cascadeHeads, cascadeHeadsKV = 32, 4, 2

// remembered is a sequence with K and V of its tokens, [headsKV, dim] each.
type remembered struct {
	s    *kvcache.Sequence
	k, v [][]float32
}

type cascadeCase struct {
	name  string
	cfg   attention.Config
	alibi bool
	sinks bool
	plain bool // the call is no cascade: its bits are those of the plain path
	cpu   bool // runs on the CPU alone: the device would show the same
}

var cascadeCases = []cascadeCase{
	{name: "causal", cfg: attention.Config{Causal: attention.BottomRight}, cpu: true},
	{name: "softcap, sinks, wide window", sinks: true,
		cfg: attention.Config{Causal: attention.BottomRight, Softcap: 2, Window: attention.WindowOf(1000, 0)}},
	{name: "int8, sinks", cfg: attention.Config{Causal: attention.BottomRight, KeyType: attention.KVInt8, ValueType: attention.KVInt8}, sinks: true},
	{name: "q8_0, f32 O", cfg: attention.Config{Causal: attention.BottomRight, KeyType: attention.KVQ8_0, ValueType: attention.KVQ8_0, F32O: true}, cpu: true},
	{name: "ALiBi", cfg: attention.Config{Causal: attention.BottomRight}, alibi: true, plain: true, cpu: true},
	{name: "window", cfg: attention.Config{Causal: attention.BottomRight, Window: attention.WindowOf(3, 0)}, plain: true, cpu: true},
	{name: "fixed split", cfg: attention.Config{Causal: attention.BottomRight, FixedSplit: 2}, plain: true, cpu: true},
}

// Random steps, forks, truncations and frees: a cascade gives what attention in float64 over lists of tokens gives, what
// the plain path gives, and on the CPU what the rules of accuracy allow.
func TestCascadeIsAttention(t *testing.T) {
	const seed = 7
	for _, dev := range testdevices.All(t) {
		for _, x := range cascadeCases {
			if x.cpu && dev.Vulkan() != nil {
				continue
			}
			t.Run(fmt.Sprint(dev, "/", x.name), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 2))
				x.cfg.HeadDim = cascadeDim
				c, err := kvcache.New(dev, kvcache.Config{KeyType: x.cfg.KeyType, ValueType: x.cfg.ValueType, HeadDim: cascadeDim, HeadsKV: cascadeHeadsKV, PageSize: 4,
					Pages: 60, Cascade: 1})
				require.NoError(t, err)
				defer func() { require.NoError(t, c.Close()) }()
				op := testdevices.Op(t, dev, x.cfg)
				steps := 40
				if dev.Vulkan() != nil {
					steps = 8
				}
				all := []*remembered{{s: c.Sequence()}, {s: c.Sequence()}}
				step := cascadeStep{t: t, r: r, dev: dev, c: c, op: op, x: &x}
				step.run([]kvcache.NewRows{{Sequence: all[0].s, Rows: 14}, {Sequence: all[1].s, Rows: 9}}, all)
				for range steps {
					switch n := r.IntN(8); {
					case len(all) < 5 || n < 3:
						i := r.IntN(len(all))
						f, err := all[i].s.Fork()
						require.NoError(t, err)
						all = slices.Insert(all, i, &remembered{f, slices.Clone(all[i].k), slices.Clone(all[i].v)})
					case n < 5:
						y := all[r.IntN(len(all))]
						keep := len(y.k) - r.IntN(len(y.k)/2+1)
						require.NoError(t, y.s.Truncate(keep))
						y.k, y.v = y.k[:keep], y.v[:keep]
					default:
						i := r.IntN(len(all))
						all[i].s.Free()
						all = slices.Delete(all, i, i+1)
					}
					var list []kvcache.NewRows
					var chosen []*remembered
					for _, y := range all {
						if r.IntN(6) > 0 {
							list = append(list, kvcache.NewRows{Sequence: y.s, Rows: max(0, r.IntN(6)-2)})
							chosen = append(chosen, y)
						}
					}
					step.run(list, chosen)
				}
				require.NotZero(t, step.cascades, "no step was a cascade")
				require.Equal(t, x.plain, step.differ == 0, "steps with other bits than the plain path: %d", step.differ)
			})
		}
	}
}

type cascadeStep struct {
	t                *testing.T
	r                *rand.Rand
	dev              *attention.Device
	c                *kvcache.Cache
	op               *attention.Op
	x                *cascadeCase
	cascades, differ int
}

func (s *cascadeStep) tensor(dtype attention.DType, x []float32, shape ...int) attention.Tensor {
	m, err := s.dev.Tensor(dtype, shape...)
	require.NoError(s.t, err)
	require.NoError(s.t, m.SetFloats(x))
	return m
}

// normal returns random numbers as float16 holds them.
func (s *cascadeStep) normal(n int) []float32 {
	x, b := make([]float32, n), make([]byte, 2*n)
	for i := range x {
		x[i] = float32(s.r.NormFloat64())
	}
	attention.F16.Encode(b, x)
	attention.F16.Decode(x, b)
	return x
}

// run appends random rows, and compares Forward with Args and with float64.
func (s *cascadeStep) run(list []kvcache.NewRows, chosen []*remembered) {
	t := s.t
	step, err := s.c.Begin(list...)
	require.NoError(t, err)
	rows := step.Rows()
	k, v, q := s.normal(cascadeHeadsKV*rows*cascadeDim), s.normal(cascadeHeadsKV*rows*cascadeDim), s.normal(cascadeHeads*rows*cascadeDim)
	at := 0
	for i, y := range list {
		for range y.Rows {
			token := func(x []float32) (all []float32) {
				for h := range cascadeHeadsKV {
					all = append(all, x[(h*rows+at)*cascadeDim:][:cascadeDim]...)
				}
				return all
			}
			chosen[i].k, chosen[i].v = append(chosen[i].k, token(k)), append(chosen[i].v, token(v))
			at++
		}
	}
	kv := func(x []float32) attention.Tensor {
		return s.tensor(attention.F16, x, 1, cascadeHeadsKV, rows, cascadeDim)
	}
	require.NoError(t, step.Append(0, kvcache.LayerRows{K: kv(k), V: kv(v)}))
	if rows == 0 {
		return
	}
	zeros := make([]float32, len(q))
	outputs := func() (a attention.Args) {
		a.O = s.tensor(s.x.cfg.OType(), zeros, 1, cascadeHeads, rows, cascadeDim)
		a.LSE = s.tensor(attention.F32, zeros[:cascadeHeads*rows], 1, cascadeHeads, rows)
		return a
	}
	a, b := outputs(), outputs()
	a.Q = s.tensor(attention.F16, q, 1, cascadeHeads, rows, cascadeDim)
	numbers := []float32{0.5, -1, 2, 1} // of a head: its sink or slope
	if s.x.sinks {
		a.Sinks, err = s.dev.Floats(numbers...)
		require.NoError(t, err)
	}
	if s.x.alibi {
		a.ALiBi, err = s.dev.Floats(numbers...)
		require.NoError(t, err)
	}
	without := s.r.IntN(3) == 0 // LSE
	withLSE := a.LSE
	if without {
		a.LSE = attention.Tensor{}
	}
	require.NoError(t, step.Forward(0, s.op, a))
	plain, err := step.Args(0, a.Q, b.O, 0)
	require.NoError(t, err)
	plain.Sinks, plain.ALiBi, plain.LSE = a.Sinks, a.ALiBi, b.LSE
	require.NoError(t, s.op.Forward(nil, plain))
	read := func(x attention.Tensor) []float32 {
		y, err := x.Floats(t.Context())
		require.NoError(t, err)
		return y
	}
	o, same := read(a.O), read(b.O)
	const tolerance = 4e-3
	require.InDeltaSlice(t, same, o, tolerance)
	if !without {
		require.InDeltaSlice(t, read(b.LSE), read(withLSE), tolerance)
	}
	if step.CascadeKeys() > 0 {
		s.cascades++
		if !slices.Equal(o, same) {
			s.differ++
		}
	} else {
		require.Equal(t, same, o, "a step without a cascade")
	}
	if s.dev.Vulkan() == nil {
		plain.O, plain.LSE = a.O, a.LSE
		verdict, err := accuracy.Verify(problem.Config(s.x.cfg), plain, accuracy.Options{})
		require.NoError(t, err)
		require.True(t, verdict.Pass(), "%v", verdict)
	}
	if s.x.cfg.KeyType == attention.KVSame {
		s.naive(list, chosen, q, o, rows)
	}
}

// naive compares O with attention in float64 over the tokens of the lists.
func (s *cascadeStep) naive(list []kvcache.NewRows, chosen []*remembered, q, o []float32, rows int) {
	numbers := []float64{0.5, -1, 2, 1}
	at := 0
	for i, y := range list {
		for row := range y.Rows {
			position := len(chosen[i].k) - y.Rows + row
			first := 0
			if w := s.x.cfg.Window.Left(); w >= 0 {
				first = max(0, position-w)
			}
			for h := range cascadeHeads {
				hkv := h / (cascadeHeads / cascadeHeadsKV)
				sum, want := 0.0, make([]float64, cascadeDim)
				if s.x.sinks {
					sum = math.Exp(numbers[h])
				}
				for j := first; j <= position; j++ {
					score := 0.0
					for d, x := range q[(h*rows+at)*cascadeDim:][:cascadeDim] {
						score += float64(x) * float64(chosen[i].k[j][hkv*cascadeDim+d])
					}
					score /= math.Sqrt(cascadeDim)
					if cap := float64(s.x.cfg.Softcap); cap > 0 {
						score = cap * math.Tanh(score/cap)
					}
					if s.x.alibi {
						score -= numbers[h] * float64(position-j)
					}
					sum += math.Exp(score)
					for d := range want {
						want[d] += math.Exp(score) * float64(chosen[i].v[j][hkv*cascadeDim+d])
					}
				}
				for d := range want {
					want[d] /= sum
				}
				require.InDeltaSlice(s.t, want, o[(h*rows+at)*cascadeDim:][:cascadeDim], 4e-3, "sequence %d, row %d, head %d", i, row, h)
			}
			at++
		}
	}
}

// The cache plans a cascade from the pages that neighbours with new rows share, and from its Cascade.
func TestCascadeIsPlannedFromPages(t *testing.T) {
	saved := func(cascade int, order string, rows ...int) int {
		t.Helper()
		c, err := kvcache.New(nil, kvcache.Config{HeadDim: 8, HeadsKV: 1, PageSize: 4, Pages: 40, Cascade: cascade})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		a, b := c.Sequence(), c.Sequence()
		_, err = c.Begin(kvcache.NewRows{Sequence: a, Rows: 11}, kvcache.NewRows{Sequence: b, Rows: 11})
		require.NoError(t, err)
		var list []kvcache.NewRows
		for i, name := range order {
			f, err := map[rune]*kvcache.Sequence{'a': a, 's': a, 'b': b}[name].Fork()
			require.NoError(t, err)
			if name == 's' {
				require.NoError(t, f.Truncate(7))
			}
			list = append(list, kvcache.NewRows{Sequence: f, Rows: rows[i]})
		}
		st, err := c.Begin(list...)
		require.NoError(t, err)
		return st.CascadeKeys()
	}
	require.Equal(t, 16, saved(1, "aaa", 1, 1, 1), "two whole pages of 11 tokens, read once for three sequences")
	require.Equal(t, 16, saved(1, "aaba", 5, 1, 0, 2), "a sequence without rows does not divide the others")
	require.Equal(t, 8, saved(1, "aaba", 1, 1, 1, 1), "one with rows does")
	require.Equal(t, 16, saved(1, "aabb", 1, 1, 1, 1), "two groups")
	require.Equal(t, 4, saved(1, "as", 1, 1), "7 tokens have one whole page")
	require.Equal(t, 8, saved(1, "aas", 1, 1, 1), "a longer prefix of two, or a shorter one of three")
	require.Equal(t, 16, saved(16, "aaa", 1, 1, 1))
	require.Zero(t, saved(17, "aaa", 1, 1, 1))
	require.Zero(t, saved(0, "aaa", 1, 1, 1))
	require.Zero(t, saved(-1, "aaa", 1, 1, 1))
	require.Zero(t, saved(1, "ab", 1, 1))
	require.Zero(t, (*kvcache.Step)(nil).CascadeKeys())
}

// Calls of a cascade at the same time do not disturb each other, although they share scratch memory.
func TestCascadesAtTheSameTime(t *testing.T) {
	const layers, rows, dim = 8, 6, 32
	c, err := kvcache.New(nil, kvcache.Config{HeadDim: dim, HeadsKV: 1, PageSize: 4, Pages: 40, Layers: layers, Cascade: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	dev, err := attention.Open(attention.Options{CPU: true})
	require.NoError(t, err)
	op, err := attention.New(dev, attention.Config{HeadDim: dim, Causal: attention.BottomRight})
	require.NoError(t, err)
	s := cascadeStep{t: t, r: rand.New(rand.NewPCG(9, 0)), dev: dev}
	tensor := func(heads, rows int) attention.Tensor {
		return s.tensor(attention.F16, s.normal(heads*rows*dim), 1, heads, rows, dim)
	}
	first := c.Sequence()
	list := []kvcache.NewRows{{Sequence: first, Rows: 9}}
	for i := range 2 {
		st, err := c.Begin(list...)
		require.NoError(t, err)
		for layer := range layers {
			require.NoError(t, st.Append(layer, kvcache.LayerRows{K: tensor(1, st.Rows()), V: tensor(1, st.Rows())}))
		}
		if i == 0 {
			list = nil
			for range rows {
				f, err := first.Fork()
				require.NoError(t, err)
				list = append(list, kvcache.NewRows{Sequence: f, Rows: 1})
			}
			continue
		}
		require.Equal(t, (rows-1)*8, st.CascadeKeys())
		var wait sync.WaitGroup
		q := tensor(2, rows)
		var o [2][layers]attention.Tensor
		for i := range o {
			for layer := range layers {
				o[i][layer] = tensor(2, rows)
				if i == 0 {
					require.NoError(t, st.Forward(layer, op, attention.Args{Q: q, O: o[0][layer]}))
				} else {
					wait.Go(func() { assert.NoError(t, st.Forward(layer, op, attention.Args{Q: q, O: o[1][layer]})) })
				}
			}
			wait.Wait()
		}
		for layer := range layers {
			require.Equal(t, o[0][layer].Host, o[1][layer].Host)
		}
	}
}

// Forward refuses an Op that the cache's K and V are not for, and sizes as Op.Forward does, before it computes anything.
func TestForwardOfAStepRefuses(t *testing.T) {
	const dim, rows = 32, 4
	cfg := attention.Config{HeadDim: dim, Causal: attention.BottomRight}
	for _, dev := range testdevices.All(t) {
		c, err := kvcache.New(dev, kvcache.Config{HeadDim: dim, HeadsKV: 2, PageSize: 4, Pages: 40, Cascade: 1})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		first := c.Sequence()
		_, err = c.Begin(kvcache.NewRows{Sequence: first, Rows: 9})
		require.NoError(t, err)
		for _, rows := range []int{math.MaxInt, math.MaxInt - 8, attention.MaxLength, -1} {
			_, err = c.Begin(kvcache.NewRows{Sequence: first, Rows: rows})
			require.ErrorContains(t, err, "rows of sequence 0", rows)
			require.Equal(t, 9, first.Len())
		}
		var list []kvcache.NewRows
		for range rows {
			f, err := first.Fork()
			require.NoError(t, err)
			list = append(list, kvcache.NewRows{Sequence: f, Rows: 1})
		}
		st, err := c.Begin(list...)
		require.NoError(t, err)
		require.NotZero(t, st.CascadeKeys())
		tensor := func() attention.Tensor {
			x, err := dev.Tensor(attention.F16, 1, 4, rows, dim)
			require.NoError(t, err)
			return attention.Tensor{Buffer: x.Buffer, Host: x.Host}
		}
		a := attention.Args{Shape: attention.Shape{Hq: 4}, Q: tensor(), O: tensor()}
		forward := func(dev *attention.Device, cfg attention.Config, a attention.Args) error {
			op := testdevices.Op(t, dev, cfg)
			return st.Forward(0, op, a)
		}
		require.NoError(t, forward(dev, cfg, a))
		for field, change := range map[string]func(*attention.Config){
			"HeadDim":  func(c *attention.Config) { c.HeadDim, c.HeadDimV = 16, dim },
			"HeadDimV": func(c *attention.Config) { c.HeadDimV = 16 },
			"DType":    func(c *attention.Config) { c.DType = attention.BF16 },
			"KeyType":  func(c *attention.Config) { c.KeyType, c.ValueType = attention.KVQ8_0, attention.KVQ8_0 },
		} {
			other := cfg
			change(&other)
			require.ErrorContains(t, forward(dev, other, a), "the Op: "+field+" is ")
		}
		quantized, err := kvcache.New(dev, kvcache.Config{KeyType: attention.KVInt8, ValueType: attention.KVInt8, HeadDim: dim, HeadsKV: 2, PageSize: 4, Pages: 4})
		require.NoError(t, err)
		defer func() { require.NoError(t, quantized.Close()) }()
		byRow, err := quantized.Begin(kvcache.NewRows{Sequence: quantized.Sequence(), Rows: rows})
		require.NoError(t, err)
		for _, block := range []int{attention.KVBlockHead, attention.KVBlockTensor, 2} {
			op, err := attention.New(dev, attention.Config{HeadDim: dim, Causal: attention.BottomRight, KeyType: attention.KVInt8, ValueType: attention.KVInt8, KVBlock: block})
			require.NoError(t, err)
			require.ErrorContains(t, byRow.Forward(0, op, a), "the Op: KVBlock is ")
			require.NoError(t, op.Close())
		}
		for _, heads := range []int{3, 1 << 40, math.MaxInt / dim, math.MaxInt} {
			a := a
			a.Hq = heads
			require.ErrorContains(t, forward(dev, cfg, a), fmt.Sprint(heads))
			require.ErrorContains(t, forward(dev, cfg, a), "Hq")
		}
		require.ErrorContains(t, st.Forward(0, nil, a), "the operation is nil")

		if dev.Vulkan() == nil {
			continue
		}
		plain, err := kvcache.New(dev, kvcache.Config{HeadDim: dim, HeadsKV: 2, PageSize: 4, Pages: 4, Cascade: -1})
		require.NoError(t, err)
		defer func() { require.NoError(t, plain.Close()) }()
		st, err = plain.Begin(kvcache.NewRows{Sequence: plain.Sequence(), Rows: rows})
		require.NoError(t, err)
		barriers := func() (n int) {
			require.NoError(t, dev.Do(func(s *attention.Stream) error { n = s.Vulkan().Barriers(); return nil }))
			return n
		}
		before := barriers()
		require.NoError(t, forward(attention.On(dev.Vulkan()), cfg, a))
		require.Greater(t, barriers(), before, "the call runs behind Append, on the default stream of the cache's Device")
	}
}
