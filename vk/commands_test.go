package vk

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A program that records its command buffer again every frame keeps its Commands.
func TestResetRecordsAWrappedCommandBufferAnew(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	const n, dispatches = 100, 3 * poolSets
	x, y := newBuffer(t, d, 4*n, DeviceLocal), newBuffer(t, d, 4*n, DeviceLocal)
	require.NoError(t, s.Fill(BufferRange{Buffer: x}, 7))
	require.NoError(t, s.Barrier())
	p, err := d.Pipeline(saxpy(t, 1))
	require.NoError(t, err)
	handle := s.b.commands
	c, err := d.WrapCommands(handle)
	require.NoError(t, err)
	var pools int
	for frame := range uint32(3) {
		for range dispatches {
			require.NoError(t, c.Dispatch(p, []BufferRange{{Buffer: x}, {Buffer: y}}, push(frame, n), groups(n)))
			require.NoError(t, c.Barrier())
		}
		got := make([]byte, 4*n)
		require.NoError(t, s.Download(background(t), got, y, 0))
		sameWords(t, numbers(n, func(uint32) uint32 { return 7*frame + 1 }), words(got))
		if frame == 0 {
			pools = len(c.b.descriptors)
			assert.Greater(t, pools, 1)
		}
		assert.Len(t, c.b.descriptors, pools, "frame %d: pools are used again", frame)

		require.NoError(t, s.Wait(background(t)))
		require.NoError(t, s.Barrier()) // begins the same command buffer
		require.Equal(t, handle, s.b.commands)
		assert.NotEmpty(t, c.b.keep)
		require.NoError(t, c.Reset())
		assert.Empty(t, c.b.keep)
	}
	require.NoError(t, p.Close())
	assert.Empty(t, d.pipelines.list, "held after Reset")
	assert.ErrorIs(t, s.Reset(), ErrInvalid)
	require.NoError(t, c.Release())
	assert.ErrorIs(t, c.Reset(), ErrClosed)
}

func TestDispatchHoldsWhatItIsGivenToKeep(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	x, y := newBuffer(t, d, 400, DeviceLocal), newBuffer(t, d, 400, DeviceLocal)
	p := newPipeline(t, d, saxpy(t, 1))
	bound := []BufferRange{{Buffer: x}, {Buffer: y}}
	done := 0
	for range 3 {
		require.NoError(t, s.Dispatch(p, bound, push(1, 100), groups(100), OnDone(func() { done++ })))
	}
	assert.Zero(t, done)
	require.NoError(t, s.Wait(background(t)))
	assert.Equal(t, 3, done)

	gone := newBuffer(t, d, 400, DeviceLocal)
	require.NoError(t, gone.Close())
	require.NoError(t, s.Barrier())
	left := s.b.setsLeft
	assert.ErrorIs(t, s.Dispatch(p, bound, push(1, 100), groups(100), y, gone), ErrClosed)
	assert.Equal(t, left, s.b.setsLeft, "nothing was recorded")
}

// An operation of several dispatches is recorded whole: Reserve makes the pools before the
// first.
func TestReservedDispatchesNeedNoMorePools(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	x, y := newBuffer(t, d, 400, DeviceLocal), newBuffer(t, d, 400, DeviceLocal)
	p := newPipeline(t, d, saxpy(t, 1))
	bound := []BufferRange{{Buffer: x}, {Buffer: y}}
	for _, n := range []int{1, poolSets - 1, poolSets, poolSets + 1, 3*poolSets + 5} {
		require.NoError(t, s.Reserve(n, len(bound)))
		pools := len(s.b.descriptors)
		for range n {
			require.NoError(t, s.Dispatch(p, bound, push(1, 100), groups(100)))
		}
		require.Len(t, s.b.descriptors, pools, "%d dispatches", n)
		require.LessOrEqual(t, pools, s.b.current+1, "no more than needed")
	}
	require.ErrorIs(t, s.Reserve(-1, 2), ErrInvalid)
	require.ErrorIs(t, s.Reserve(1, 1000), ErrInvalid)
	require.NoError(t, s.Reserve(1, 0))
	require.NoError(t, s.Wait(background(t)))
}
