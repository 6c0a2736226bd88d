package tests

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testdevice"
	"vkattn/shaders"
	"vkattn/vk"
)

// A pipeline over a limit is refused. Some drivers accept one and lose the device.
func TestLimitsOfPipelines(t *testing.T) {
	s := open(t)
	if s.dev == nil {
		t.Skip("no Vulkan device here")
	}
	m, err := shaders.Get("scalar_ssbo")
	require.NoError(t, err)
	r, err := m.Reflect()
	require.NoError(t, err)
	limits := s.dev.Caps().Limits
	good := vk.PipelineDesc{
		Name: "limits", Code: m.Code, Hash: m.Hash, PushBytes: uint32(r.PushConstantBytes()),
		StorageBuffers: uint32(len(r.Bindings())), LocalSize: [3]uint32{1, 1, 1},
	}
	for name, spoil := range map[string]func(d *vk.PipelineDesc){
		"shared memory":  func(d *vk.PipelineDesc) { d.SharedBytes = uint64(limits.MaxSharedBytes) + 4 },
		"invocations":    func(d *vk.PipelineDesc) { d.LocalSize[0] = limits.MaxInvocations + 1 },
		"workgroup size": func(d *vk.PipelineDesc) { d.LocalSize[2] = limits.MaxWorkGroupSize[2] + 1 },
		"push constants": func(d *vk.PipelineDesc) { d.PushBytes = limits.MaxPushConstantBytes + 4 },
		"subgroup size":  func(d *vk.PipelineDesc) { d.SubgroupSize = 2 * limits.MaxInvocations },
		"no code":        func(d *vk.PipelineDesc) { d.Code = nil },
	} {
		desc := good
		spoil(&desc)
		_, err := s.dev.Pipeline(&desc)
		require.Error(t, err, name)
		require.True(t, errors.Is(err, vk.ErrUnsupported) || errors.Is(err, vk.ErrInvalid), "%s: %v", name, err)
	}
}

// No plan exceeds the device's limits, for any problem.
func TestLimitsOfPlans(t *testing.T) {
	s := open(t)
	if s.dev == nil {
		t.Skip("no Vulkan device here")
	}
	limits := s.dev.Caps().Limits
	for _, tt := range s.available() {
		if tt.Tier == attention.TierCPU {
			continue
		}
		for _, d := range cases.Dims {
			for _, a := range cases.Accesses {
				op, err := attention.New(attention.On(s.dev), attention.Config{DType: tt.DType, HeadDim: d[0], HeadDimV: d[1], Tier: tt.Tier, Access: a})
				require.NoError(t, err, "%v %v", tt, d)
				for _, sq := range []int{1, 17, 64, 1024, 100_000} {
					plan, err := op.Plan(attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: sq, Sk: 100})
					require.NoError(t, err)
					require.Equal(t, tt.Tier, plan.Tier)
					require.LessOrEqual(t, plan.SharedBytes, uint64(limits.MaxSharedBytes), "%v %v: %v", tt, d, plan)
					require.NotEmpty(t, plan.Reason)
				}
				require.NoError(t, op.Close())
			}
		}
	}
}

// Without device addresses tensors are bound as descriptors, which have a limited range: a
// call divides its batches among dispatches, and a single batch beyond the range is refused.
func TestLimitOfDescriptorRange(t *testing.T) {
	s := openDevice(t)
	limits := s.dev.Caps().Limits
	reach := limits.MaxStorageBufferRange
	most := uint64(600 << 20)
	if full() {
		most = 12 << 30
	}
	if 2*reach+1<<20 > min(most, limits.MaxBufferBytes) {
		t.Skipf("a descriptor reaches %d bytes", reach)
	}
	c := cases.Case{D: 16, Dv: 16, Shape: attention.Shape{B: 3, Hq: 2, Sq: 5, Sk: 40}, Layout: cases.Packed, LSE: true, Seed: 5, Access: attention.AccessDescriptors}
	d := newDeviceProblem(t, s.dev, c, scalarF16)

	// K again, with a batch stride so large that two batches exceed the range.
	far := testdevice.Buffer(t, s.dev, 2*reach+1<<20)
	stride := int64(reach / 2)
	one := d.Image[cases.TensorK][2*cases.Guard:]
	one = one[:2*40*16*2]
	for b := range int64(3) {
		require.NoError(t, d.stream.Upload(far, uint64(b*stride*2), d.Image[cases.TensorK][2*cases.Guard+b*int64(len(one)):][:len(one)]))
	}
	require.NoError(t, d.stream.Barrier())
	args := d.args
	args.K = attention.Tensor{Buffer: far, Strides: attention.Strides{Batch: stride, Head: 40 * 16, Seq: 16}}
	require.NoError(t, d.op.Forward(attention.OnStream(d.stream), args))
	d.result(t)

	// With that head stride a single batch exceeds the range.
	args.K.Strides = attention.Strides{Batch: 16, Head: stride, Seq: 16}
	err := d.op.Forward(attention.OnStream(d.stream), args)
	require.ErrorIs(t, err, attention.ErrUnsupported)
	require.ErrorContains(t, err, "K")
	if !s.dev.Caps().BufferDeviceAddress {
		return
	}
	op, err := attention.New(attention.On(s.dev), attention.Config{HeadDim: 16, Tier: attention.TierScalar, Access: attention.AccessAddresses})
	require.NoError(t, err)
	require.NoError(t, op.Forward(attention.OnStream(d.stream), args))
	require.NoError(t, d.stream.Wait(t.Context()))
	require.NoError(t, op.Close())
}

// A buffer without an address is bound as a descriptor, unless the caller asks for
// addresses.
func TestBufferWithoutAddress(t *testing.T) {
	s := openDevice(t)
	if !s.dev.Caps().BufferDeviceAddress {
		t.Skip("the device has no buffer device addresses")
	}
	c := small
	d := newDeviceProblem(t, s.dev, c, scalarF16)
	plan, err := d.op.PlanFor(d.args)
	require.NoError(t, err)
	require.Equal(t, attention.AccessAddresses, plan.Access)
	k := d.buffers[cases.TensorK]
	bare, err := s.dev.WrapBuffer(vk.ExternalBuffer{Handle: k.Handle(), Offset: k.Offset(), Size: k.Size()})
	require.NoError(t, err)
	defer func() { require.NoError(t, bare.Close()) }()
	d.args.K.Buffer = bare
	plan, err = d.op.PlanFor(d.args)
	require.NoError(t, err)
	require.Equal(t, attention.AccessDescriptors, plan.Access)
	require.NoError(t, d.op.Forward(attention.OnStream(d.stream), d.args))
	d.result(t)

	cfg := d.op.Config()
	cfg.Access = attention.AccessAddresses
	op, err := attention.New(attention.On(s.dev), cfg)
	require.NoError(t, err)
	require.Error(t, op.Forward(attention.OnStream(d.stream), d.args))
	require.NoError(t, op.Close())
}
