package vk

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Closing a timeline ends the waits of other goroutines. The semaphore lives until they have ended.
func TestClosingATimelineEndsItsWaits(t *testing.T) {
	d := openExecuting(t)
	gate := newTimeline(t, d)
	s, err := d.NewStream("closed")
	require.NoError(t, err)
	ended := make(chan error, 2)
	for _, tl := range []*Timeline{gate, s.Timeline()} {
		ctx := newPolled(false)
		go func() { ended <- tl.Wait(ctx, 1) }()
		<-ctx.waits
	}
	require.NoError(t, gate.Close())
	require.NoError(t, s.Close())
	for range 2 {
		require.ErrorIs(t, <-ended, ErrClosed)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	require.True(t, gate.gone && s.timeline.gone)
}

// What a stream or the device lends is not the caller's to close.
func TestLentObjectsStayOpen(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	require.NoError(t, s.Timeline().Close())
	require.ErrorIs(t, s.Timeline().Signal(7), ErrInvalid)
	scratch, first, err := s.Scratch(4, 64)
	require.NoError(t, err)
	params, err := s.Params([]byte{1, 2, 3, 4})
	require.NoError(t, err)
	require.NoError(t, scratch.Close())
	require.NoError(t, params.Buffer.Close())
	to := newBuffer(t, d, 4, Readback)
	require.NoError(t, s.Copy(BufferRange{Buffer: to}, params))
	require.NoError(t, s.Fill(BufferRange{Buffer: scratch, Offset: first, Size: 64}, 1))
	require.NoError(t, s.Wait(background(t)))
	require.Equal(t, []byte{1, 2, 3, 4}, to.Bytes())
}

// Calls that look at all streams of a device meet streams that close.
func TestStreamsCloseWhileOthersLookOn(t *testing.T) {
	d := openExecuting(t)
	var all, short sync.WaitGroup
	for range 2 {
		short.Go(func() {
			for range 100 {
				s, err := d.NewStream("short")
				if !assert.NoError(t, err) {
					return
				}
				_, _, err = s.Scratch(0, 64)
				assert.NoError(t, err)
				_, err = s.Submit()
				assert.NoError(t, err)
				assert.NoError(t, s.Close())
			}
		})
	}
	var closed atomic.Bool
	all.Go(func() {
		for !closed.Load() {
			assert.NoError(t, d.WaitIdle())
			d.reclaim()
		}
	})
	short.Wait()
	closed.Store(true)
	all.Wait()
}

// A size that overflows with its zeros is too large, and not a small buffer.
func TestScratchOfAnySizeIsAsLargeOrRefused(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	for _, size := range []uint64{1 << 62, 1<<63 + 1, ^uint64(0) - 4096, ^uint64(0) - 100, ^uint64(0)} {
		b, first, err := s.Scratch(0, size)
		if err == nil {
			t.Fatalf("%d bytes in a buffer of %d at %d", size, b.Size(), first)
		}
		require.True(t, errors.Is(err, ErrOutOfMemory), "%v", err)
	}
}
