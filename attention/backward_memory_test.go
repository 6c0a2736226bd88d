package attention_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevice"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// BackwardPlan.ScratchBytes is what a call takes of the device, but for the rounding of
// scratch buffers: up by a quarter at most, to 64 KiB and 4 KiB of zeros at least. A second
// call takes nothing.
func TestBackwardTakesTheMemoryOfItsPlan(t *testing.T) {
	dev := tuneDevice(t)
	stream := testdevice.Stream(t, dev, "memory")
	cfg := scalarF32
	cfg.HeadDim = 8
	op := testdevices.Op(t, attention.On(dev), cfg)
	const seed = 5
	r := rand.New(rand.NewPCG(seed, 0))
	var room uint64 // bytes of the largest scratch buffer so far
	for rows := 100; rows < 9000; rows = rows*2 + r.IntN(rows) {
		s := attention.Shape{B: 1 + r.IntN(2), Hq: 2, Hkv: 1 + r.IntN(2), Sq: rows, Sk: 1 + r.IntN(3)}
		buffer := func(n int64) attention.Tensor {
			b, err := dev.NewBuffer(uint64(4*n), vk.BufferOptions{Name: "tensor"})
			require.NoError(t, err)
			t.Cleanup(func() { _ = b.Close() })
			require.NoError(t, stream.Fill(vk.BufferRange{Buffer: b, Size: uint64(4 * n)}, 0))
			return attention.Tensor{Buffer: b}
		}
		q, k := s.Rows()*8, int64(s.B*s.Hkv*s.Sk*8)
		a := attention.BackwardArgs{Args: attention.Args{Shape: s, Q: buffer(q), K: buffer(k), V: buffer(k), O: buffer(q), LSE: buffer(s.Rows())},
			DO: buffer(q), DQ: buffer(q), DK: buffer(k), DV: buffer(k)}
		plan, err := op.PlanBackwardFor(a)
		require.NoError(t, err)
		require.EqualValues(t, 16*s.Rows(), plan.ScratchBytes)
		require.NoError(t, op.PrepareBackwardFor(a))
		var grew [2]uint64
		for i := range grew {
			require.NoError(t, stream.Barrier())
			require.NoError(t, stream.Wait(context.Background()))
			before := dev.Memory().UsedBytes
			require.NoError(t, op.Backward(attention.OnStream(stream), a))
			require.NoError(t, stream.Wait(context.Background()))
			grew[i] = dev.Memory().UsedBytes - before
		}
		most := max(plan.ScratchBytes, 64<<10)*5/4 + 8<<10
		require.LessOrEqual(t, grew[0], most, "seed %d, %v", seed, s)
		if plan.ScratchBytes > room {
			require.GreaterOrEqual(t, grew[0], plan.ScratchBytes, "seed %d, %v", seed, s)
		}
		room = max(room, grew[0])
		require.Zero(t, grew[1], "seed %d, %v", seed, s)
	}
}

// A call that descriptors cannot reach is refused before anything of it is recorded.
func TestBackwardBeyondADescriptor(t *testing.T) {
	dev := tuneDevice(t)
	longest := dev.Caps().Limits.MaxStorageBufferRange
	if longest > 256<<20 {
		t.Skipf("a descriptor holds %d bytes", longest)
	}
	stream := testdevice.Stream(t, dev, "descriptors")
	cfg := scalarF32
	cfg.HeadDim, cfg.Access = 8, attention.AccessDescriptors
	op := testdevices.Op(t, attention.On(dev), cfg)
	const filled = 0x3f800000
	s := attention.Shape{B: 1, Hq: 1, Hkv: 1, Sq: 2, Sk: 2}
	buffer := func(bytes uint64) attention.Tensor {
		b, err := dev.NewBuffer(bytes, vk.BufferOptions{Name: "tensor"})
		require.NoError(t, err)
		t.Cleanup(func() { _ = b.Close() })
		require.NoError(t, stream.Fill(vk.BufferRange{Buffer: b}, filled))
		return attention.Tensor{Buffer: b}
	}
	const size = 2 * 8 * 4
	a := attention.BackwardArgs{Args: attention.Args{Shape: s, Q: buffer(size), K: buffer(size), V: buffer(size), O: buffer(size), LSE: buffer(8)},
		DO: buffer(size), DQ: buffer(size), DK: buffer(size), DV: buffer(longest + size)}
	a.DV.Strides = attention.Strides{Batch: int64(longest / 2), Head: int64(longest / 2), Seq: int64(longest / 4)}
	require.NoError(t, stream.Barrier())
	err := op.Backward(attention.OnStream(stream), a)
	require.ErrorIs(t, err, attention.ErrUnsupported)
	require.ErrorContains(t, err, "DV: ")
	got := make([]byte, size)
	for name, x := range map[string]attention.Tensor{"DQ": a.DQ, "DK": a.DK} {
		require.NoError(t, stream.Download(context.Background(), got, x.Buffer, 0))
		for i := 0; i < size; i += 4 {
			require.EqualValues(t, filled, binary.LittleEndian.Uint32(got[i:]), name)
		}
	}
}
