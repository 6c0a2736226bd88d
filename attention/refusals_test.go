package attention_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/tensors"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// Whatever a caller passes, a call that is refused says so by an error that matches a
// sentinel, and nothing panics.
func TestEveryRefusalMatchesASentinel(t *testing.T) {
	d := refusals{t: t, Rand: rand.New(rand.NewPCG(testlevel.Seed(t), 0))}
	calls := 4000
	if testing.Short() {
		calls = 400
	}
	for range calls {
		cfg := d.config()
		d.refused(cfg.Validate())
		op, err := attention.New(nil, cfg)
		require.Equal(t, err == nil, op != nil)
		if d.refused(err); err != nil {
			continue
		}
		a := d.args(cfg)
		b := attention.BackwardArgs{Args: a, DO: d.tensor(a.Rows(), cfg.ValueDim()), DQ: d.tensor(a.Rows(), cfg.HeadDim)}
		b.LSE = d.tensor(a.Rows(), 1)
		for _, call := range []func() error{
			func() error { _, err := op.Plan(a.Shape); return err },
			func() error { _, err := op.PlanFor(a); return err },
			func() error { return op.PrepareFor(a) },
			func() error { return attention.CheckArgs(cfg, a) },
			func() error { return op.Forward(nil, a) },
			func() error { return op.Forward(attention.OnStream(&vk.Stream{}), a) },
			func() error { return op.Record(&vk.Commands{}, a) },
			func() error { _, err := op.PlanBackwardFor(b); return err },
			func() error { return op.Backward(nil, b) },
			func() error { return op.RecordBackward(nil, b) },
			func() error { _, _, err := attention.Reference(cfg, a); return err },
			func() error { _, err := attention.ReferenceBackward(cfg, b); return err },
			func() error { _, err := tensors.Sequences(a); return err },
		} {
			d.refused(call())
		}
		require.NoError(t, op.Close())
		require.ErrorIs(t, op.Forward(nil, d.args(cfg)), vk.ErrClosed)
	}
}

// refusals draws calls that are right in most fields and wrong in a few.
type refusals struct {
	*rand.Rand
	t *testing.T
}

// refused checks that an error, if there is one, matches what the package documents.
func (d *refusals) refused(err error) {
	d.t.Helper()
	if err == nil {
		return
	}
	invalid, unsupported := errors.Is(err, attention.ErrInvalid), errors.Is(err, attention.ErrUnsupported)
	require.True(d.t, invalid || unsupported || errors.Is(err, vk.ErrOutOfMemory) || errors.Is(err, vk.ErrClosed), "%v", err)
	require.Equal(d.t, invalid, errors.Is(err, vk.ErrInvalid), "%v", err)
	require.Equal(d.t, unsupported, errors.Is(err, vk.ErrUnsupported), "%v", err)
	if shape := new(attention.ShapeError); errors.As(err, &shape) {
		require.True(d.t, invalid, "%v", err)
		require.NotEmpty(d.t, shape.Field)
	}
	require.NotContains(d.t, err.Error(), "\n")
	require.NotContains(d.t, err.Error(), "vk: ", "one package speaks")
}

func (d *refusals) seldom() bool { return d.IntN(6) == 0 }

// number is a size that some field accepts, or one that none does.
func (d *refusals) number() int {
	list := []int{math.MinInt64, -1, 0, 1, 2, 3, 7, 8, 16, 31, 32, 64, 128, 256, 257, 512, 1 << 31, math.MaxInt64}
	return list[d.IntN(len(list))]
}

func (d *refusals) config() attention.Config {
	c := attention.Config{HeadDim: []int{8, 16, 32}[d.IntN(3)]}
	real := func() float32 {
		list := []float32{0, 1, -1, 0.5, 1e-45, 3e38, float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}
		return list[d.IntN(len(list))]
	}
	for _, set := range []func(){
		func() { c.DType = attention.DType(d.IntN(5)) },
		func() { c.HeadDim = d.number() },
		func() { c.HeadDimV = d.number() },
		func() { c.Causal = attention.Causal(d.IntN(5)) },
		func() { c.Scale = attention.ScaleOf(real()) },
		func() { c.Tier = attention.Tier(d.IntN(9)) },
		func() { c.Access = attention.Access(d.IntN(5)) },
		func() { c.Tuning = attention.Tuning(d.IntN(5)) },
		func() { c.Window = attention.WindowOf(d.number(), d.number()) },
		func() { c.Align = attention.Causal(d.IntN(5)) },
		func() { c.Softcap = real() },
		func() { c.Dropout = real() },
		func() { c.KeyType, c.ValueType = attention.KVType(d.IntN(7)), attention.KVType(d.IntN(7)) },
		func() { c.KVBlock = d.number() },
		func() { c.FixedSplit = d.number() },
		func() { c.F32O, c.F32Gradients = true, d.seldom() },
		func() { c.Kernel = "fa3" },
		func() { c.Kernel = "none such" },
	} {
		if d.IntN(12) == 0 {
			set()
		}
	}
	return c
}

// tensor has memory for as many rows in float32, or a byte less, or none.
func (d *refusals) tensor(rows int64, dim int) attention.Tensor {
	n := 4 * rows * int64(dim)
	switch {
	case n > 1<<16 || n < 1:
		n = 64
	case d.seldom():
		n--
	case d.seldom():
		return attention.Tensor{}
	}
	return attention.Tensor{Host: make([]byte, n)}
}

func (d *refusals) args(c attention.Config) attention.Args {
	s := attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 3, Sk: 5}
	if d.seldom() {
		*[]*int{&s.B, &s.Hq, &s.Hkv, &s.Sq, &s.Sk}[d.IntN(5)] = d.number()
	}
	keys := int64(5)
	a := attention.Args{Shape: s, Q: d.tensor(s.Rows(), c.HeadDim), K: d.tensor(keys, c.HeadDim), V: d.tensor(keys, c.ValueDim()), O: d.tensor(s.Rows(), c.ValueDim())}
	vector := func(n int) attention.Vector {
		return attention.Vector{Host: d.tensor(int64(n), 1).Host}
	}
	for _, set := range []func(){
		func() { a.LSE = d.tensor(s.Rows(), 1) },
		func() { a.Q.Offset = int64(d.number()) },
		func() { a.O.Strides.Seq = int64(d.number()) },
		func() {
			a.K.Strides = attention.Strides{Batch: int64(d.number()), Head: int64(d.number()), Seq: int64(d.number())}
		},
		func() { a.V.Buffer = &vk.Buffer{} },
		func() { a.Varlen = &attention.Varlen{UsedK: vector(1), CuQ: vector(2), TotalQ: d.number()} },
		func() {
			a.Pages = &attention.Pages{Table: vector(5), Stride: d.number(), PageSize: d.number(), Count: d.number()}
		},
		func() {
			a.SparseTokens = &attention.SparseTokens{Offsets: vector(2), Tokens: vector(3), Total: d.number()}
		},
		func() {
			a.Blocks = &attention.Blocks{Map: vector(1), BlockQ: d.number(), BlockK: d.number(), Batches: d.IntN(3), Heads: d.IntN(4)}
		},
		func() {
			a.Bias = &attention.Bias{Tensor: d.tensor(s.Rows(), 5), DType: attention.DType(d.IntN(4)), Batches: d.IntN(3), Heads: d.IntN(4), Rows: d.IntN(5)}
		},
		func() {
			a.Mask = &attention.Mask{Tensor: d.tensor(s.Rows(), 5), Batches: d.IntN(3), Heads: d.IntN(4), Rows: d.IntN(5)}
		},
		func() { a.ALiBi, a.Sinks = vector(2), vector(2) },
		func() { a.KScale, a.VScale = vector(5), vector(5) },
	} {
		if d.seldom() {
			set()
		}
	}
	return a
}
