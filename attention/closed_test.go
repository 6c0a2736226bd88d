package attention_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/attention/merge"
	"vkattn/internal/testdevice"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// oneLineOf requires an error of one line that says what is wrong, with the prefix of the
// package once and no word of another one.
func oneLineOf(t *testing.T, err error, is error, says string) {
	t.Helper()
	require.ErrorIs(t, err, is)
	require.ErrorContains(t, err, says)
	require.NotContains(t, err.Error(), "\n")
	require.True(t, strings.HasPrefix(err.Error(), "attention: "), "%v", err)
	require.Equal(t, 1, strings.Count(err.Error(), "attention: "), "%v", err)
	require.NotContains(t, err.Error(), "vk:")
}

// A closed operation says so, on the CPU too, where there is no Vulkan.
func TestClosedOperationsSaySo(t *testing.T) {
	cfg, a := goodCall()
	op, err := attention.New(nil, cfg)
	require.NoError(t, err)
	require.NoError(t, op.Close())
	for name, call := range map[string]func() error{
		"Forward":  func() error { return op.Forward(nil, a) },
		"Backward": func() error { return op.Backward(nil, attention.BackwardArgs{Args: a}) },
		"Prepare":  func() error { return op.Prepare(a.Shape) },
		"Plan":     func() error { _, err := op.Plan(a.Shape); return err },
		"Append": func() error {
			cfg, a := goodAppend()
			p, err := kvcache.NewAppend(nil, cfg)
			require.NoError(t, err)
			require.NoError(t, p.Close())
			return p.Forward(nil, a)
		},
		"Merge": func() error {
			cfg, a := goodMerge()
			m, err := merge.NewMerge(nil, cfg)
			require.NoError(t, err)
			require.NoError(t, m.Close())
			return m.Forward(nil, a)
		},
		"Sum": func() error {
			s, err := merge.NewSum(nil, merge.MergeConfig{HeadDim: 4, F32States: true})
			require.NoError(t, err)
			require.NoError(t, s.Close())
			return s.Forward(nil, merge.SumArgs{})
		},
	} {
		t.Run(name, func(t *testing.T) { oneLineOf(t, call(), vk.ErrClosed, "the operation is closed") })
	}
}

// A call names the tensor whose buffer is closed, and says that a stream is of another device.
func TestClosedBuffersAreNamed(t *testing.T) {
	dev, other := testdevice.Open(t), testdevice.Open(t)
	s, foreign := testdevice.Stream(t, dev, "here"), testdevice.Stream(t, other, "there")
	d := backwardDevice{dev: dev, stream: s}
	cfg := attention.Config{HeadDim: 4, DType: attention.F32}
	op := testdevices.Op(t, attention.On(dev), cfg)
	merging, err := merge.NewMerge(attention.On(dev), merge.MergeConfig{HeadDim: 4, DType: attention.F32})
	require.NoError(t, err)
	defer func() { require.NoError(t, merging.Close()) }()
	adding, err := kvcache.NewAppend(attention.On(dev), kvcache.AppendConfig{HeadDim: 4, DType: attention.F32})
	require.NoError(t, err)
	defer func() { require.NoError(t, adding.Close()) }()

	var host attention.BackwardArgs
	host.Shape = attention.Shape{B: 1, Hq: 1, Sq: 2, Sk: 2}
	tensor := func() attention.Tensor { return attention.Tensor{Host: make([]byte, 4*8)} }
	host.Q, host.K, host.V, host.O, host.DO, host.DQ = tensor(), tensor(), tensor(), tensor(), tensor(), tensor()
	host.LSE, host.Sinks = tensor(), attention.Vector{Host: make([]byte, 32)}
	u := d.upload(t, host)
	mergeArgs := merge.MergeArgs{Shape: u.Shape, First: merge.States{O: u.Q, LSE: u.LSE}, O: u.O}
	appendArgs := kvcache.AppendArgs{B: 1, Hkv: 1, New: 2, K: u.K, KCache: u.O, Capacity: 2}

	const says = "the stream is of another device"
	oneLineOf(t, op.Forward(attention.OnStream(foreign), u.Args), attention.ErrInvalid, says)
	oneLineOf(t, op.Backward(attention.OnStream(foreign), u.BackwardArgs), attention.ErrInvalid, says)
	oneLineOf(t, merging.Forward(attention.OnStream(foreign), mergeArgs), attention.ErrInvalid, says)
	oneLineOf(t, adding.Forward(attention.OnStream(foreign), appendArgs), attention.ErrInvalid, says)
	const commands = "the commands are of another device"
	oneLineOf(t, op.Record(foreign.Commands, u.Args), attention.ErrInvalid, commands)
	oneLineOf(t, op.RecordBackward(foreign.Commands, u.BackwardArgs), attention.ErrInvalid, commands)
	oneLineOf(t, merging.Record(foreign.Commands, mergeArgs), attention.ErrInvalid, commands)
	oneLineOf(t, adding.Record(foreign.Commands, appendArgs), attention.ErrInvalid, commands)

	gone, err := dev.NewBuffer(1<<10, vk.BufferOptions{})
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	for field, set := range map[string]func(a *attention.BackwardArgs){
		"Q":     func(a *attention.BackwardArgs) { a.Q.Buffer = gone },
		"V":     func(a *attention.BackwardArgs) { a.V.Buffer = gone },
		"LSE":   func(a *attention.BackwardArgs) { a.LSE.Buffer = gone },
		"Sinks": func(a *attention.BackwardArgs) { a.Sinks.Buffer = gone },
	} {
		a := u.BackwardArgs
		set(&a)
		oneLineOf(t, op.Forward(attention.OnStream(s), a.Args), vk.ErrClosed, "the buffer of "+field+" is closed")
		oneLineOf(t, op.Backward(attention.OnStream(s), a), vk.ErrClosed, "the buffer of "+field+" is closed")
	}
	a := u.BackwardArgs
	a.DQ.Buffer = gone
	oneLineOf(t, op.Backward(attention.OnStream(s), a), vk.ErrClosed, "the buffer of DQ is closed")
	mergeArgs.First.LSE.Buffer, appendArgs.KCache.Buffer = gone, gone
	oneLineOf(t, merging.Forward(attention.OnStream(s), mergeArgs), vk.ErrClosed, "the buffer of First.LSE is closed")
	oneLineOf(t, adding.Forward(attention.OnStream(s), appendArgs), vk.ErrClosed, "the buffer of KCache is closed")
	require.NoError(t, op.Forward(attention.OnStream(s), u.Args), "the stream goes on")
	u.download(t, &d)
}

// What no call of a Config can be is refused by New, and every refusal has one prefix.
func TestRefusalsHaveOnePrefix(t *testing.T) {
	for _, kv := range []attention.KVType{attention.KVInt8, attention.KVFP8, attention.KVQ8_0, attention.KVQ4_0} {
		_, err := attention.New(nil, attention.Config{HeadDim: 32, KeyType: kv, ValueType: kv, Dropout: 0.5})
		oneLineOf(t, err, attention.ErrUnsupported, "Dropout is 0.5 with K and V of type "+kv.String())
		require.ErrorIs(t, err, attention.ErrInvalid)
	}
	cfg, a := goodCall()
	a.Blocks = &attention.Blocks{BlockQ: 16, BlockK: 16}
	a.SparseTokens = &attention.SparseTokens{Total: 1}
	oneLineOf(t, attention.CheckArgs(cfg, a), attention.ErrUnsupported, "SparseTokens is given together with Blocks")
}
