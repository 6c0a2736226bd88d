package vk

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A barrier stands in front of what depends on earlier work, and nowhere else.
func TestOrder(t *testing.T) {
	d := openExecuting(t)
	x, y := newBuffer(t, d, 1024, DeviceLocal), newBuffer(t, d, 1024, DeviceLocal)
	low, high := BufferRange{Buffer: x, Size: 512}, BufferRange{Buffer: x, Offset: 512, Size: 512}
	across, other := BufferRange{Buffer: x, Offset: 508, Size: 8}, BufferRange{Buffer: y}
	list := func(r ...BufferRange) []BufferRange { return r }
	type use struct{ reads, writes []BufferRange }
	for name, c := range map[string]struct {
		earlier, later use
		barrier        bool
	}{
		"reads what was read":           {use{reads: list(low)}, use{reads: list(low)}, false},
		"reads what was written":        {use{writes: list(low)}, use{reads: list(low)}, true},
		"writes what was read":          {use{reads: list(low)}, use{writes: list(low)}, true},
		"writes what was written":       {use{writes: list(low)}, use{writes: list(low)}, true},
		"other bytes":                   {use{list(low), list(low)}, use{list(high), list(high)}, false},
		"bytes of both":                 {use{writes: list(high)}, use{reads: list(across)}, true},
		"another buffer":                {use{writes: list(low)}, use{reads: list(other)}, false},
		"up to the end":                 {use{writes: list(BufferRange{Buffer: x, Offset: 4})}, use{reads: list(high)}, true},
		"the last of several":           {use{writes: list(other, high)}, use{reads: list(low, across)}, true},
		"a range that is no range":      {use{writes: list(BufferRange{Buffer: x, Offset: 2048})}, use{reads: list(low)}, false},
		"beyond the end":                {use{writes: list(BufferRange{Buffer: x, Offset: 512, Size: 4096})}, use{reads: list(high)}, true},
		"the other half of a word":      {use{writes: list(BufferRange{Buffer: x, Offset: 4, Size: 2})}, use{reads: list(BufferRange{Buffer: x, Offset: 6, Size: 2})}, true},
		"no buffer":                     {use{writes: list(BufferRange{})}, use{reads: list(BufferRange{})}, false},
		"its own reads and writes only": {use{}, use{list(low), list(low)}, false},
	} {
		s := newStream(t, d)
		require.NoError(t, s.Barrier()) // begins the batch
		require.NoError(t, s.Order(c.earlier.reads, c.earlier.writes))
		before := s.Barriers()
		require.NoError(t, s.Order(c.later.reads, c.later.writes))
		assert.Equal(t, c.barrier, s.Barriers() == before+1, name)
		if c.barrier { // which orders everything before it
			require.NoError(t, s.Order(nil, c.earlier.writes))
			if len(c.later.reads) > 0 && len(c.earlier.reads) == 0 {
				assert.Equal(t, before+2, s.Barriers(), "%s: and the later one is remembered", name)
			}
		}
		s.NoBarrier = true
		before = s.Barriers()
		require.NoError(t, s.Order(c.later.reads, c.later.writes))
		assert.Equal(t, before, s.Barriers(), name)
	}
}

// More ranges than are remembered cost a barrier, not the order.
func TestOrderOfManyRanges(t *testing.T) {
	d := openExecuting(t)
	x, y := newBuffer(t, d, 4096, DeviceLocal), newBuffer(t, d, 4096, DeviceLocal)
	s := newStream(t, d)
	require.NoError(t, s.Barrier())
	before := s.Barriers()
	for i := range uint64(3 * maxOrderedWrites) {
		require.NoError(t, s.Order([]BufferRange{{Buffer: y}}, []BufferRange{{Buffer: x, Offset: 4 * i, Size: 4}}))
	}
	assert.Equal(t, before+2, s.Barriers())
	assert.LessOrEqual(t, cap(s.uses.writes), 2*maxOrderedWrites)
	many := make([]BufferRange, 4*maxOrderedReads)
	for i := range many {
		many[i] = BufferRange{Buffer: x, Offset: 4 * uint64(i), Size: 4}
	}
	require.NoError(t, s.Order(many, nil))
	before = s.Barriers()
	require.NoError(t, s.Order(nil, many[len(many)-1:]))
	assert.Equal(t, before+1, s.Barriers(), "the last of them is remembered")
}

// Copies, fills, uploads and downloads of a stream come in order without a Barrier of the caller's.
func TestCopiesAndFillsAreInOrder(t *testing.T) {
	d := openExecuting(t)
	x, y, z := newBuffer(t, d, 64, DeviceLocal), newBuffer(t, d, 64, DeviceLocal), newBuffer(t, d, 64, DeviceLocal)
	s := newStream(t, d)
	require.NoError(t, s.Fill(BufferRange{Buffer: x}, 7))
	before := s.Barriers()
	require.NoError(t, s.Fill(BufferRange{Buffer: y}, 9))
	assert.Equal(t, before, s.Barriers(), "fills of two buffers may overlap")
	require.NoError(t, s.Copy(BufferRange{Buffer: z}, BufferRange{Buffer: x}))
	assert.Equal(t, before+1, s.Barriers())
	require.NoError(t, s.Fill(BufferRange{Buffer: x}, 1))
	assert.Equal(t, before+2, s.Barriers(), "the copy has read it")
	got := make([]byte, 64)
	require.NoError(t, s.Download(background(t), got, z, 0))
	sameWords(t, numbers(16, func(uint32) uint32 { return 7 }), words(got))
}

// What cannot be ordered is an error, and a command buffer of the caller's has no order of its own.
func TestOrderRefuses(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	x := newBuffer(t, d, 64, DeviceLocal)
	other := newBuffer(t, openExecuting(t), 64, DeviceLocal)
	assert.ErrorIs(t, s.Order(nil, []BufferRange{{Buffer: other}}), ErrInvalid)
	assert.ErrorIs(t, s.Order([]BufferRange{{Buffer: other}}, nil), ErrInvalid)
	var none *Stream
	assert.Error(t, none.Order(nil, nil))
	assert.Zero(t, none.Barriers())
	require.NoError(t, s.Barrier())
	c, err := d.WrapCommands(s.b.commands)
	require.NoError(t, err)
	require.NoError(t, c.Order(nil, []BufferRange{{Buffer: x}}))
	require.NoError(t, c.Order(nil, []BufferRange{{Buffer: x}}))
	require.NoError(t, c.Release())
	require.NoError(t, s.Close())
	assert.ErrorIs(t, s.Order(nil, nil), ErrClosed)
}

// Work recorded with NoBarrier has told of nothing: what comes behind it in order has a barrier in front.
func TestOrderBehindNoBarrier(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	x, y := BufferRange{Buffer: newBuffer(t, d, 64, DeviceLocal)}, BufferRange{Buffer: newBuffer(t, d, 64, DeviceLocal)}
	require.NoError(t, s.Barrier())
	s.NoBarrier = true
	before := s.Barriers()
	require.NoError(t, s.Fill(x, 1))
	s.NoBarrier = false
	require.NoError(t, s.Copy(y, x))
	require.Equal(t, before+1, s.Barriers())
	require.NoError(t, s.Copy(y, x))
	require.Equal(t, before+2, s.Barriers(), "what was told of behind it is remembered")
	s.NoBarrier = true
	require.NoError(t, s.Fill(x, 1))
	require.NoError(t, s.Barrier())
	s.NoBarrier = false
	before = s.Barriers()
	require.NoError(t, s.Copy(y, x))
	require.Equal(t, before, s.Barriers(), "the caller's barrier is behind it")
	require.NoError(t, s.Finish())
}

// A device that is closed meanwhile ends the calls that order.
func TestOrderWhileTheDeviceCloses(t *testing.T) {
	for range 8 {
		d := openExecuting(t)
		s := newStream(t, d)
		x, y := BufferRange{Buffer: newBuffer(t, d, 64, DeviceLocal)}, BufferRange{Buffer: newBuffer(t, d, 64, DeviceLocal)}
		require.NoError(t, s.Fill(x, 1))
		started, ended := make(chan struct{}), make(chan error)
		go func() {
			for i := 0; ; i++ {
				err := s.Order([]BufferRange{x}, []BufferRange{y})
				if err == nil {
					err = s.Fill(y, 1)
				}
				if err == nil {
					err = s.Copy(x, y)
				}
				if err != nil {
					ended <- err
					return
				}
				if i == 0 {
					close(started)
				}
			}
		}()
		<-started
		require.NoError(t, d.Close())
		require.ErrorIs(t, <-ended, ErrClosed)
	}
}

// Copies and fills through the Commands of a stream are in order too: what takes Commands need not know whose they are.
func TestCopiesAndFillsOfCommandsAreInOrder(t *testing.T) {
	d := openExecuting(t)
	whole := newBuffer(t, d, 512, DeviceLocal)
	x, err := d.WrapBuffer(ExternalBuffer{Handle: whole.Handle(), Offset: 256, Size: 256})
	require.NoError(t, err)
	defer func() { require.NoError(t, x.Close()) }()
	y := newBuffer(t, d, 64, DeviceLocal)
	s := newStream(t, d)
	require.NoError(t, s.Commands.Fill(BufferRange{Buffer: whole, Offset: 256, Size: 4}, 7))
	before := s.Barriers()
	require.NoError(t, s.Commands.Fill(BufferRange{Buffer: whole, Size: 256}, 9))
	require.Equal(t, before, s.Barriers(), "other bytes")
	require.NoError(t, s.Commands.Copy(BufferRange{Buffer: y, Size: 4}, BufferRange{Buffer: x, Size: 4}))
	require.Equal(t, before+1, s.Barriers(), "the same bytes of a VkBuffer")
	require.NoError(t, s.Order([]BufferRange{{Buffer: y}}, nil))
	require.Equal(t, before+2, s.Barriers())
	got := make([]byte, 4)
	require.NoError(t, s.Download(background(t), got, y, 0))
	require.Equal(t, []uint32{7}, words(got))
}
