package attention_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/attention/merge"
	"vkattn/internal/backend"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// fakeDevice is a third backend: memory of its own, streams that compute when they are submitted, and the float64
// reference as its kernels.
type fakeDevice struct{ memories, streams int } // not closed

func (d *fakeDevice) String() string         { return "fake" }
func (d *fakeDevice) Vulkan() *vk.Device     { return nil }
func (d *fakeDevice) Shared() backend.Stream { return nil }
func (d *fakeDevice) Close() error           { return nil }

func (d *fakeDevice) NewMemory(n int64) (backend.Memory, error) {
	d.memories++
	return &fakeMemory{d, bytes.Repeat([]byte{0xff}, int(n))}, nil
}

func (d *fakeDevice) NewStream(string) (backend.Stream, error) {
	d.streams++
	return &fakeStream{dev: d}, nil
}

func (d *fakeDevice) Attention(cfg problem.Config) (backend.Attention, error) {
	return fakeAttention(cfg), nil
}

type fakeMemory struct {
	dev   *fakeDevice
	bytes []byte
}

func (m *fakeMemory) Tensor() problem.Tensor { return problem.Tensor{Host: m.bytes} }

func (m *fakeMemory) Clear(s backend.Stream) error { return m.Write(s, 0, make([]byte, len(m.bytes))) }

func (m *fakeMemory) Write(s backend.Stream, at int64, b []byte) error {
	b = bytes.Clone(b)
	return s.(*fakeStream).record(func() error { copy(m.bytes[at:], b); return nil })
}

func (m *fakeMemory) Read(ctx context.Context, s backend.Stream, at int64, b []byte) error {
	err := s.Wait(ctx)
	copy(b, m.bytes[at:])
	return err
}

func (m *fakeMemory) Copy(s backend.Stream, to, from, n int64) error {
	return s.(*fakeStream).record(func() error { copy(m.bytes[to:to+n], m.bytes[from:]); return nil })
}

func (m *fakeMemory) Close() error {
	m.dev.memories--
	return nil
}

type fakeStream struct {
	dev   *fakeDevice
	queue []func() error
}

func (s *fakeStream) record(f func() error) error {
	s.queue = append(s.queue, f)
	return nil
}

func (s *fakeStream) Device() backend.Device     { return s.dev }
func (s *fakeStream) Vulkan() *vk.Stream         { return nil }
func (s *fakeStream) Wait(context.Context) error { return s.Submit() }

func (s *fakeStream) Submit() error {
	for _, f := range s.queue {
		if err := f(); err != nil {
			return err
		}
	}
	s.queue = nil
	return nil
}

func (s *fakeStream) Close() error {
	s.dev.streams--
	return nil
}

type fakeAttention problem.Config

func (f fakeAttention) Forward(s backend.Stream, a problem.Args) error {
	return s.(*fakeStream).record(func() error {
		o, _, err := attention.Reference(attention.Config(f), a)
		store(a.O, o)
		return err
	})
}

func (f fakeAttention) Backward(s backend.Stream, a problem.BackwardArgs) error {
	return s.(*fakeStream).record(func() error {
		g, err := attention.ReferenceBackward(attention.Config(f), a)
		store(a.DQ, g.DQ)
		store(a.DK, g.DK)
		store(a.DV, g.DV)
		return err
	})
}

// store writes numbers to a packed float32 tensor of the host.
func store(t problem.Tensor, x []float64) {
	for i, v := range x {
		problem.F32.Encode(t.Host[4*i:], []float32{float32(v)})
	}
}

// A device that is neither Vulkan nor the CPU implements the interfaces of package backend, and programs use it as
// they use the others.
func TestThirdBackend(t *testing.T) {
	ctx := context.Background()
	cfg := attention.Config{DType: attention.F32, HeadDim: 16, Causal: attention.BottomRight}
	compute := func(t *testing.T, dev *attention.Device, s *attention.Stream) (results [][]float32) {
		r := rand.New(rand.NewPCG(7, 0))
		tensor := func(rows int, random bool) attention.Tensor {
			x, err := dev.Tensor(attention.F32, 2, 3, rows, 16)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, x.Close()) })
			if random {
				numbers := make([]float32, 2*3*rows*16)
				for i := range numbers {
					numbers[i] = float32(r.NormFloat64())
				}
				require.NoError(t, x.SetFloats(numbers))
			}
			return x
		}
		a := attention.BackwardArgs{Args: attention.Args{Q: tensor(20, true), K: tensor(30, true), V: tensor(30, true), O: tensor(20, false)}}
		lse, err := dev.Tensor(attention.F32, 2, 3, 20)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, lse.Close()) })
		a.LSE, a.DO, a.DQ, a.DK, a.DV = lse, tensor(20, true), tensor(20, false), tensor(30, false), tensor(30, false)
		require.NoError(t, dev.Wait(ctx))
		op, err := attention.New(dev, cfg)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, op.Close()) })
		require.NoError(t, op.Forward(s, a.Args))
		require.NoError(t, op.Backward(s, a))
		if s != nil {
			before, err := a.DQ.Floats(ctx)
			require.NoError(t, err)
			if dev.String() == "fake" {
				require.Equal(t, make([]float32, len(before)), before, "tensors are zeros, and a stream of the caller begins with Submit")
			}
			require.NoError(t, s.Submit())
			require.NoError(t, s.Wait(ctx))
		}
		for _, x := range []attention.Tensor{a.O, a.DQ, a.DK, a.DV} {
			numbers, err := x.Floats(ctx)
			require.NoError(t, err)
			results = append(results, numbers)
		}
		return results
	}
	want := compute(t, attention.On(nil), nil)
	fake := &fakeDevice{}
	for name, own := range map[string]bool{"default stream": false, "stream of the caller": true} {
		t.Run(name, func(t *testing.T) {
			dev := attention.OnBackend(fake)
			t.Cleanup(func() {
				require.NoError(t, dev.Close())
				require.Zero(t, *fake)
			})
			var s *attention.Stream
			if own {
				var err error
				s, err = dev.NewStream("own")
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, s.Close()) })
			}
			for i, numbers := range compute(t, dev, s) {
				require.InDeltaSlice(t, want[i], numbers, 1e-4)
			}
		})
	}
}

// A stream of the CPU computes at once, and operations refuse streams of other devices.
func TestStreamsOfTheCPU(t *testing.T) {
	cpu, other := attention.On(nil), attention.OnBackend(&fakeDevice{})
	s, err := cpu.NewStream("own")
	require.NoError(t, err)
	foreign, err := other.NewStream("foreign")
	require.NoError(t, err)
	p := newProblem(attention.Config{DType: attention.F32, HeadDim: 8}, attention.Shape{B: 1, Hq: 1, Sq: 3, Sk: 3}, attention.BHSD, 1)
	op, err := attention.New(cpu, p.cfg)
	require.NoError(t, err)
	require.NoError(t, op.Forward(nil, p.Args))
	want := bytes.Clone(p.O.Host)
	row := want[4*p.O.Offset:][:4*8]
	clear(p.O.Host[4*p.O.Offset:][:len(row)])
	require.NoError(t, op.Forward(s, p.Args))
	require.Equal(t, want, p.O.Host)
	require.NoError(t, s.Submit())
	require.NoError(t, s.Wait(context.Background()))
	require.Nil(t, s.Vulkan())
	require.NoError(t, s.Close())

	require.ErrorIs(t, op.Forward(foreign, p.Args), attention.ErrInvalid)
	require.ErrorIs(t, op.Forward(&attention.Stream{}, p.Args), attention.ErrInvalid)
	merger, err := merge.NewMerge(cpu, merge.MergeConfig{HeadDim: 8})
	require.NoError(t, err)
	require.ErrorContains(t, merger.Forward(foreign, merge.MergeArgs{}), "another device")
	_, err = merge.NewMerge(other, merge.MergeConfig{HeadDim: 8})
	require.ErrorIs(t, err, attention.ErrUnsupported)
	_, err = kvcache.NewAppend(other, kvcache.AppendConfig{HeadDim: 8})
	require.ErrorIs(t, err, attention.ErrUnsupported)
	_, err = attention.New(&attention.Device{}, p.cfg)
	require.ErrorIs(t, err, attention.ErrInvalid)
}
