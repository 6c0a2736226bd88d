package attention_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevice"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// The memory of options must lie on the operation's device too.
func TestOptionsOfAnotherDeviceAreRefused(t *testing.T) {
	here, there := newRecording(t, attention.AccessDescriptors), newRecording(t, attention.AccessDescriptors)
	buffer := func(r *recording) *vk.Buffer {
		b := testdevice.Buffer(t, r.dev, 64)
		return b
	}
	own, other := buffer(here), buffer(there)
	for field, set := range map[string]func(a *attention.Args, v attention.Vector){
		"Varlen.UsedK": func(a *attention.Args, v attention.Vector) { a.Varlen = &attention.Varlen{UsedK: v} },
		"SparseTokens.Tokens": func(a *attention.Args, v attention.Vector) {
			a.SparseTokens = &attention.SparseTokens{Offsets: vectorOf(own), Tokens: v, Total: 1}
		},
		"Blocks.Map": func(a *attention.Args, v attention.Vector) {
			a.Blocks = &attention.Blocks{Map: v, BlockQ: 16, BlockK: 16}
		},
		"Sinks": func(a *attention.Args, v attention.Vector) { a.Sinks = v },
		"Mask": func(a *attention.Args, v attention.Vector) {
			a.Mask = &attention.Mask{Tensor: attention.Tensor{Buffer: v.Buffer, Host: v.Host}}
		},
		"Bias": func(a *attention.Args, v attention.Vector) {
			a.Bias = &attention.Bias{Tensor: attention.Tensor{Buffer: v.Buffer, Host: v.Host}}
		},
	} {
		for says, v := range map[string]attention.Vector{"in host memory": {Host: make([]byte, 64)}, "a buffer of another device": vectorOf(other)} {
			a := here.args
			set(&a, v)
			err := here.op.Forward(attention.OnStream(here.stream), a)
			var shape *attention.ShapeError
			require.ErrorAs(t, err, &shape, field)
			require.Equal(t, field, shape.Field)
			require.Contains(t, err.Error(), says)
		}
	}
}

// The references read host memory only, and say so before they read a length.
func TestReferencesRefuseDeviceMemory(t *testing.T) {
	r := newRecording(t, attention.AccessDescriptors)
	b := testdevice.Buffer(t, r.dev, 64)
	a := r.args
	a.Varlen = &attention.Varlen{UsedK: vectorOf(b)}
	_, _, err := attention.Reference(r.op.Config(), a)
	require.ErrorIs(t, err, attention.ErrUnsupported)
	_, err = attention.ReferenceBackward(r.op.Config(), attention.BackwardArgs{Args: a, DO: a.O})
	require.ErrorIs(t, err, attention.ErrUnsupported)
}

func vectorOf(b *vk.Buffer) attention.Vector { return attention.Vector{Buffer: b} }

// A device with few push constants reads the parameters of general and decode kernels from
// a buffer, which takes descriptors. Nothing else changes.
func TestFewPushConstantsTakeDescriptors(t *testing.T) {
	r := newRecording(t, attention.AccessAddresses)
	r.dev.Info().Type = vk.DeviceDiscrete // only such are decoded on with packed rows
	planned := func(cfg attention.Config, s attention.Shape) string {
		t.Helper()
		cfg.HeadDim, cfg.Tier, cfg.Tuning = 64, attention.TierScalar, attention.TuningOff
		op := testdevices.Op(t, attention.On(r.dev), cfg)
		plan, err := op.Plan(s)
		require.NoError(t, err)
		return plan.Kernel + " " + plan.Access.String()
	}
	decode := attention.Shape{B: 1, Hq: 8, Hkv: 2, Sq: 1, Sk: 4096}
	prefill := attention.Shape{B: 1, Hq: 8, Hkv: 2, Sq: 4096, Sk: 4096}
	limits := &r.dev.Caps().Limits
	limits.MaxPushConstantBytes = 256
	require.Equal(t, "scalar_general_bda addresses", planned(attention.Config{}, decode))
	require.Equal(t, "scalar_general_bda addresses", planned(attention.Config{Softcap: 30}, prefill))
	limits.MaxPushConstantBytes = 128
	require.Equal(t, "scalar_general_ssbo descriptors", planned(attention.Config{}, decode))
	require.Equal(t, "scalar_general_ssbo descriptors", planned(attention.Config{Softcap: 30}, prefill))
	require.Equal(t, "scalar_general_ssbo descriptors", planned(attention.Config{FixedSplit: 2}, prefill))
	require.Equal(t, "scalar_bda addresses", planned(attention.Config{}, prefill))
	require.Equal(t, "scalar_bda addresses", planned(attention.Config{Access: attention.AccessAddresses}, decode))
	limits.MaxStorageBuffers = 17 // one too few: decoding does without
	require.Equal(t, "scalar_bda addresses", planned(attention.Config{}, decode))
}
