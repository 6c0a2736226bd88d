package attention_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/attention/merge"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// Calls on a stream have a barrier in front of them where they depend on an earlier call, and none where they may
// overlap.
func TestCallsOnAStreamAreInOrder(t *testing.T) {
	vulkan := testdevice.Open(t)
	dev, s := attention.On(vulkan), testdevice.Stream(t, vulkan, "order")
	const b, heads, rows, dim = 1, 2, 8, 32
	tensor := func(dtype attention.DType, shape ...int) attention.Tensor {
		x, err := dev.Tensor(dtype, shape...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, x.Close()) })
		return x
	}
	row := func() attention.Tensor { return tensor(attention.F16, b, heads, rows, dim) }
	lse := func() attention.Tensor { return tensor(attention.F32, b, heads, rows) }
	op, err := attention.New(dev, attention.Config{HeadDim: dim, Tier: attention.TierScalar})
	require.NoError(t, err)
	defer func() { require.NoError(t, op.Close()) }()
	join, err := merge.NewMerge(dev, merge.MergeConfig{HeadDim: dim})
	require.NoError(t, err)
	defer func() { require.NoError(t, join.Close()) }()
	put, err := kvcache.NewAppend(dev, kvcache.AppendConfig{HeadDim: dim})
	require.NoError(t, err)
	defer func() { require.NoError(t, put.Close()) }()

	one := attention.Args{Q: row(), K: row(), V: row(), O: row(), LSE: lse()}
	two := one
	two.O, two.LSE = row(), lse()
	grads := attention.BackwardArgs{Args: one, DO: row(), DQ: row(), DK: row(), DV: row()}
	sinks, err := dev.Floats(1, 2)
	require.NoError(t, err)
	withSinks := one
	withSinks.O, withSinks.LSE, withSinks.Sinks = row(), lse(), sinks
	shape := attention.Shape{B: b, Hq: heads, Hkv: heads, Sq: rows, Sk: rows}
	states := merge.MergeArgs{Shape: shape, First: merge.States{O: one.O, LSE: one.LSE}, Second: merge.States{O: two.O, LSE: two.LSE}, O: row(), LSE: lse()}
	used, err := dev.Ints(0)
	require.NoError(t, err)
	into := kvcache.AppendArgs{B: b, Hkv: heads, New: 1, K: tensor(attention.F16, b, heads, 1, dim), V: tensor(attention.F16, b, heads, 1, dim),
		KCache: one.K, VCache: one.V, Capacity: rows, Used: used}

	alone := testdevice.Stream(t, vulkan, "alone")
	alone.NoBarrier = true
	require.NoError(t, alone.Barrier())
	inside := -alone.Barriers() // barriers between the kernels of backward
	require.NoError(t, op.Backward(alone, grads))
	inside += alone.Barriers()
	require.NoError(t, alone.Finish())

	forward := func(a attention.Args) func() error { return func() error { return op.Forward(s, a) } }
	for _, step := range []struct {
		name    string
		call    func() error
		barrier bool
	}{
		{"forward", forward(one), false},
		{"forward of the same Q, K and V to another O", forward(two), false},
		{"merge of both", func() error { return join.Forward(s, states) }, true},
		{"forward with sinks to memory of its own", forward(withSinks), false},
		{"backward, which reads O", func() error { return op.Backward(s, grads) }, false}, // the merge had a barrier
		{"forward to O again, which backward reads", forward(one), true},
		{"append to K and V, which forward reads", func() error { return put.Forward(s, into) }, true},
		{"forward, which reads them", forward(two), true},
		{"sinks written", func() error { return s.Fill(vk.BufferRange{Buffer: sinks.Buffer}, 0) }, false},
		{"forward with them", forward(withSinks), true},
	} {
		if step.name == "forward" {
			require.NoError(t, s.Barrier()) // begins the batch
		}
		before := s.Barriers()
		require.NoError(t, step.call(), step.name)
		want := 0
		if step.barrier {
			want = 1
		}
		if step.name == "backward, which reads O" {
			want = inside
		}
		require.Equal(t, want, s.Barriers()-before, step.name)
	}
	require.NoError(t, s.Finish())
}
