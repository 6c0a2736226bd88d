package vk

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Work sees the parameters as they were at recording, in one batch and in several that are
// in flight at once.
func TestParamsAreThereWhenTheWorkRuns(t *testing.T) {
	d := openExecuting(t, func(o *Options) { o.SyncValidation = true })
	s := newStream(t, d)
	const n = 16
	calls := 3 * paramBlock / int(alignUp(4*n, d.Caps().Limits.MinStorageBufferOffsetAlignment)) // of a batch
	p := newPipeline(t, d, saxpy(t, 1))
	y := newBuffer(t, d, uint64(calls)*256, DeviceLocal)
	for round := range uint32(6) {
		data := make([]byte, 4*n)
		for i := range calls {
			copy(data, push(numbers(n, func(j uint32) uint32 { return 1000*round + 20*uint32(i) + j })...))
			at, err := s.Params(data)
			require.NoError(t, err)
			require.Zero(t, at.Offset%d.Caps().Limits.MinStorageBufferOffsetAlignment)
			out := BufferRange{Buffer: y, Offset: 256 * uint64(i), Size: 4 * n}
			require.NoError(t, s.Dispatch(p, []BufferRange{at, out}, push(1, n), groups(n)))
			clear(data) // nobody looks at it any more
		}
		require.GreaterOrEqual(t, len(s.b.params.blocks), 3)
		if round%2 == 0 {
			submit(t, s)
			continue // the next round begins while this one may be running
		}
		got := make([]byte, 256*calls)
		require.NoError(t, s.Download(background(t), got, y, 0))
		for i := range calls {
			sameWords(t, numbers(n, func(j uint32) uint32 { return 1000*round + 20*uint32(i) + j + 1 }), words(got[256*i:][:4*n]))
		}
	}
}

// A caller's command buffer may be executed again: its parameters stay until Reset.
func TestParamsOfACallersCommandBufferStay(t *testing.T) {
	d := openExecuting(t)
	before := d.Memory().Buffers
	s := newStream(t, d)
	require.NoError(t, s.Barrier())
	c, err := d.WrapCommands(s.b.commands)
	require.NoError(t, err)
	a, err := c.Params(push(1, 2, 3))
	require.NoError(t, err)
	b, err := c.Params(push(4, 5, 6))
	require.NoError(t, err)
	require.NoError(t, s.Wait(background(t)))
	read := func(r BufferRange) []uint32 { return words(r.Buffer.Bytes()[r.Offset:][:r.Size]) }
	assert.Equal(t, []uint32{1, 2, 3}, read(a))
	assert.Equal(t, []uint32{4, 5, 6}, read(b))
	require.NoError(t, c.Reset())
	again, err := c.Params(push(7, 8, 9))
	require.NoError(t, err)
	assert.Equal(t, a, again)
	require.NoError(t, c.Release())
	assert.Equal(t, before, d.Memory().Buffers, "given back")
	_, err = c.Params(push(1))
	assert.ErrorIs(t, err, ErrClosed)
}

func TestParamsHaveASize(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	for _, data := range [][]byte{nil, make([]byte, paramBlock+1)} {
		_, err := s.Params(data)
		assert.ErrorIs(t, err, ErrInvalid)
	}
	first, err := s.Params(make([]byte, paramBlock))
	require.NoError(t, err)
	second, err := s.Params(make([]byte, 1))
	require.NoError(t, err)
	assert.NotSame(t, first.Buffer, second.Buffer)
	require.NoError(t, s.Barrier())
	require.NoError(t, s.Wait(background(t)))
}

// A decode loop makes no garbage with parameters in a buffer either: their memory is
// used again.
func TestParamsAllocateNothing(t *testing.T) {
	d := openExecuting(t, func(o *Options) { o.Validation = false; o.Debug = false })
	s := newStream(t, d)
	data := make([]byte, 256)
	batch := func() {
		for range 50 {
			if _, err := s.Params(data); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	batch()
	buffers := d.Memory().Buffers
	assert.Zero(t, testing.AllocsPerRun(20, batch))
	assert.Equal(t, buffers, d.Memory().Buffers)
}
