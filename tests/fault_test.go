package tests

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// deviceProblem is a small problem in device memory, with an operation of the
// scalar tier and a stream for it.
type deviceProblem struct {
	*cases.Problem
	dev     *vk.Device
	op      *attention.Op
	stream  *vk.Stream
	buffers []*vk.Buffer
	args    attention.Args
}

// newDeviceProblem opens a device of its own if dev is nil, so that a test may close it.
func newDeviceProblem(t *testing.T, dev *vk.Device, c cases.Case, tt cases.Target) *deviceProblem {
	t.Helper()
	var err error
	if dev == nil {
		dev = anotherDevice(t)
	}
	d := &deviceProblem{dev: dev}
	d.Problem, err = cases.NewProblem(c, tt.DType)
	require.NoError(t, err)
	d.op, err = attention.New(attention.On(dev), attention.Config(c.Config(tt)))
	require.NoError(t, err)
	d.stream = testdevice.Stream(t, dev, "faults")
	d.buffers = testdevice.Upload(t, d.stream, d.Image...)
	t.Cleanup(func() { require.NoError(t, d.op.Close()) })
	require.NoError(t, d.stream.Barrier())
	require.NoError(t, d.stream.Wait(t.Context()))
	d.args = d.DeviceArgs(d.buffers)
	return d
}

// anotherDevice opens the device under test a second time, under the same validation.
func anotherDevice(t *testing.T) *vk.Device {
	t.Helper()
	dev, err := vk.Open(vk.Options{Validation: validation(), PipelineCache: "off"})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, dev.Close())
		require.Empty(t, dev.ValidationMessages())
	})
	return dev
}

var scalarF16 = cases.On(attention.TierScalar, attention.F16)

// result waits, downloads and judges.
func (d *deviceProblem) result(t *testing.T) {
	t.Helper()
	require.NoError(t, d.stream.Barrier())
	var x cases.Truth
	require.NoError(t, x.Judge(d.Problem, testdevice.Download(t, d.stream, d.buffers...)))
}

func TestFaultUnsupported(t *testing.T) {
	s := openDevice(t)
	for _, c := range []struct {
		tt   cases.Target
		want string
	}{
		{cases.On(attention.TierCoopMat, attention.F32), "f32"},
		{cases.On(attention.TierCoopMat2, attention.F32), "f32"},
		{cases.On(attention.TierCPU, attention.F16), "cpu"},
		{cases.On(attention.TierCUDA, attention.F16), "cuda"},
	} {
		_, err := attention.New(attention.On(s.dev), attention.Config(small.Config(c.tt)))
		require.ErrorIs(t, err, attention.ErrUnsupported, "%v", c.tt)
		require.ErrorIs(t, err, vk.ErrUnsupported, "%v", c.tt)
		require.ErrorContains(t, err, c.want)
	}
}

func TestFaultArguments(t *testing.T) {
	s := openDevice(t)
	d := newDeviceProblem(t, s.dev, small, scalarF16)
	var shape *attention.ShapeError
	p := smallProblem(t, attention.F16)

	require.Error(t, d.op.Forward(attention.OnStream(&vk.Stream{}), d.args), "no stream")
	require.Error(t, d.op.Record(nil, d.args), "no command buffer")
	require.ErrorAs(t, d.op.Forward(attention.OnStream(d.stream), attention.Args{}), &shape)
	require.ErrorAs(t, d.op.Forward(attention.OnStream(d.stream), attention.Args{Shape: small.Shape}), &shape)
	require.Error(t, d.op.Forward(attention.OnStream(d.stream), p.HostArgs(p.Image)), "tensors in host memory")

	mixed := d.args
	mixed.K = p.HostTensor(p.Image, cases.TensorK)
	require.ErrorAs(t, d.op.Forward(attention.OnStream(d.stream), mixed), &shape)
	require.Contains(t, shape.Field, "K")

	cpu, err := attention.New(nil, attention.Config(small.Config(cases.On(attention.TierCPU, attention.F16))))
	require.NoError(t, err)
	require.Error(t, cpu.Forward(nil, d.args), "tensors in device memory")

	for i, x := range []func(a *attention.Args) *attention.Tensor{
		func(a *attention.Args) *attention.Tensor { return &a.Q },
		func(a *attention.Args) *attention.Tensor { return &a.K },
		func(a *attention.Args) *attention.Tensor { return &a.V },
		func(a *attention.Args) *attention.Tensor { return &a.O },
		func(a *attention.Args) *attention.Tensor { return &a.LSE },
	} {
		short, err := s.dev.NewBuffer(uint64(len(d.Image[i])/2), vk.BufferOptions{})
		require.NoError(t, err)
		a := d.args
		x(&a).Buffer = short
		require.ErrorAs(t, d.op.Forward(attention.OnStream(d.stream), a), &shape, cases.TensorNames[i])
		require.Contains(t, shape.Field, cases.TensorNames[i])
		require.NoError(t, short.Close())
	}
	aliased := d.args
	aliased.O = aliased.Q
	require.ErrorAs(t, d.op.Forward(attention.OnStream(d.stream), aliased), &shape)

	// After these errors the same stream still computes.
	require.NoError(t, d.op.Forward(attention.OnStream(d.stream), d.args))
	d.result(t)
}

func TestFaultClosed(t *testing.T) {
	openDevice(t)
	t.Run("operation", func(t *testing.T) {
		d := newDeviceProblem(t, nil, small, scalarF16)
		require.NoError(t, d.op.Close())
		require.ErrorIs(t, d.op.Forward(attention.OnStream(d.stream), d.args), vk.ErrClosed)
		require.ErrorIs(t, d.op.Record(d.stream.Commands, d.args), vk.ErrClosed)
	})
	t.Run("buffer", func(t *testing.T) {
		for i := range cases.Tensors {
			d := newDeviceProblem(t, nil, small, scalarF16)
			require.NoError(t, d.buffers[i].Close())
			require.NoError(t, d.buffers[i].Close(), "a second time")
			require.ErrorIs(t, d.op.Forward(attention.OnStream(d.stream), d.args), vk.ErrClosed, cases.TensorNames[i])
		}
	})
	t.Run("stream", func(t *testing.T) {
		d := newDeviceProblem(t, nil, small, scalarF16)
		require.NoError(t, d.stream.Close())
		require.NoError(t, d.stream.Close(), "a second time")
		require.ErrorIs(t, d.op.Forward(attention.OnStream(d.stream), d.args), vk.ErrClosed)
		require.ErrorIs(t, d.stream.Wait(t.Context()), vk.ErrClosed)
	})
	t.Run("device", func(t *testing.T) {
		d := newDeviceProblem(t, nil, small, scalarF16)
		require.NoError(t, d.op.Forward(attention.OnStream(d.stream), d.args))
		require.NoError(t, d.dev.Close())
		require.NoError(t, d.dev.Close(), "a second time")
		require.ErrorIs(t, d.op.Forward(attention.OnStream(d.stream), d.args), vk.ErrClosed)
		require.ErrorIs(t, d.stream.Wait(t.Context()), vk.ErrClosed)
		_, err := attention.New(attention.On(d.dev), attention.Config(d.Config(scalarF16)))
		require.ErrorIs(t, err, vk.ErrClosed)
		_, err = d.dev.NewStream("late")
		require.ErrorIs(t, err, vk.ErrClosed)
		_, err = d.dev.NewBuffer(16, vk.BufferOptions{})
		require.ErrorIs(t, err, vk.ErrClosed)
	})
}

// All objects that a call uses may be closed as soon as the call returns.
func TestClosedInFlight(t *testing.T) {
	openDevice(t)
	d := newDeviceProblem(t, nil, small, scalarF16)
	require.NoError(t, d.op.Forward(attention.OnStream(d.stream), d.args))
	require.NoError(t, d.op.Close())
	for i := range cases.TensorO {
		require.NoError(t, d.buffers[i].Close())
	}
	// New memory must not land where the work still reads.
	for i := range cases.TensorO {
		b, err := d.dev.NewBuffer(d.buffers[i].Size(), vk.BufferOptions{})
		require.NoError(t, err)
		require.NoError(t, d.stream.Commands.Fill(vk.BufferRange{Buffer: b}, 0x7fff7fff))
		require.NoError(t, b.Close())
	}
	require.NoError(t, d.stream.Barrier())
	after := append([][]byte(nil), d.Image...)
	for i := cases.TensorO; i < cases.Tensors; i++ {
		after[i] = make([]byte, len(d.Image[i]))
		require.NoError(t, d.stream.Download(t.Context(), after[i], d.buffers[i], 0))
	}
	var x cases.Truth
	require.NoError(t, x.Judge(d.Problem, after))
}

// A device refuses objects of another device.
func TestFaultAnotherDevice(t *testing.T) {
	s := openDevice(t)
	here := newDeviceProblem(t, s.dev, small, scalarF16)
	there := newDeviceProblem(t, nil, small, scalarF16)
	require.Error(t, here.op.Forward(attention.OnStream(there.stream), here.args), "a stream of another device")
	require.Error(t, here.op.Forward(attention.OnStream(here.stream), there.args), "tensors of another device")
	mixed := here.args
	mixed.V = there.args.V
	require.Error(t, here.op.Forward(attention.OnStream(here.stream), mixed), "one tensor of another device")
	require.NoError(t, here.op.Forward(attention.OnStream(here.stream), here.args))
	here.result(t)
	require.NoError(t, there.op.Forward(attention.OnStream(there.stream), there.args))
	there.result(t)
}

// After a canceled wait the work still finishes.
func TestFaultCancelledWait(t *testing.T) {
	s := openDevice(t)
	d := newDeviceProblem(t, s.dev, small, scalarF16)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 8 {
		require.NoError(t, d.op.Forward(attention.OnStream(d.stream), d.args))
		require.NoError(t, d.stream.Barrier())
	}
	if err := d.stream.Wait(ctx); err != nil {
		require.ErrorIs(t, err, context.Canceled)
	}
	d.result(t)
}
