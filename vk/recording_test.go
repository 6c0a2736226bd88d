//go:build !windows

package vk

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// fillAll makes a recording that fills two buffers.
func fillAll(t *testing.T, d *Device, x, y *Buffer, word uint32) *Recording {
	t.Helper()
	r, err := d.Record(func(c *Commands) error {
		return errors.Join(c.Fill(BufferRange{Buffer: x}, word), c.Fill(BufferRange{Buffer: y}, word))
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// A recording is submitted many times, behind what the stream has recorded, and from several streams in
// turn.
func TestReplay(t *testing.T) {
	d := openExecuting(t, func(o *Options) { o.SyncValidation = true })
	const n = 1000
	x, y := newBuffer(t, d, 4*n, DeviceLocal), newBuffer(t, d, 4*n, DeviceLocal)
	p := newPipeline(t, d, saxpy(t, 1)) // y = a x + 1
	r, err := d.Record(func(c *Commands) error {
		require.ErrorIs(t, c.Release(), ErrInvalid)
		require.ErrorIs(t, c.Reset(), ErrInvalid)
		_, err := c.Timestamp()
		require.ErrorIs(t, err, ErrUnsupported)
		return c.Dispatch(p, []BufferRange{{Buffer: x}, {Buffer: y}}, push(3, n), groups(n))
	})
	require.NoError(t, err)
	streams := []*Stream{newStream(t, d), newStream(t, d)}
	want := make([]byte, 4*n)
	for i := range 5 {
		s := streams[i%2]
		require.True(t, s.CanReplay(r))
		if i%3 == 0 { // the stream has recorded nothing otherwise
			require.NoError(t, s.Upload(x, 0, push(numbers(n, func(j uint32) uint32 { return j })...)))
			require.NoError(t, s.Fill(BufferRange{Buffer: y}, 0))
		}
		value := replay(t, s, r)
		require.False(t, s.CanReplay(r))
		_, err = s.Replay(r)
		require.ErrorIs(t, err, ErrStale, "it is in flight")
		require.NoError(t, s.WaitValue(background(t), value))
		require.Equal(t, value, s.submitted.Load())
		require.NoError(t, s.Download(background(t), want, y, 0))
		sameWords(t, numbers(n, func(j uint32) uint32 { return 3*j + 1 }), words(want))
	}
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	require.False(t, streams[0].CanReplay(r))
	_, err = streams[0].Replay(r)
	require.ErrorIs(t, err, ErrStale)
	_, err = streams[0].Replay(nil)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = d.Record(func(*Commands) error { return context.Canceled })
	require.ErrorIs(t, err, context.Canceled)
	_, err = d.Record(nil)
	require.ErrorIs(t, err, ErrInvalid)
}

// Between its submissions a recording keeps nothing open: what it uses can be closed, and is then
// destroyed at once. It cannot be submitted any more.
func TestRecordingHoldsNothing(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	x, y := newBuffer(t, d, 64, DeviceLocal), newBuffer(t, d, 64, DeviceLocal)
	r := fillAll(t, d, x, y, 7)
	value := replay(t, s, r)
	require.NoError(t, s.WaitValue(background(t), value))
	require.EqualValues(t, 1, x.n.Load())
	require.NoError(t, y.Close())
	require.True(t, y.gone)
	require.False(t, s.CanReplay(r))
	_, err := s.Replay(r)
	require.ErrorIs(t, err, ErrStale)
	require.EqualValues(t, 1, x.n.Load(), "the failed submission holds nothing")
}

// A recording takes the same scratch memory in each submission, and gives it back. Another owner of that
// memory makes it stale.
func TestRecordingSharesScratch(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	out := newBuffer(t, d, 64, Readback)
	record := func() *Recording {
		r, err := d.Record(func(c *Commands) error {
			b, first, err := c.Scratch(256, 64)
			if err != nil {
				return err
			}
			return errors.Join(c.Fill(BufferRange{Buffer: b, Offset: first, Size: 64}, 9), c.Barrier(),
				c.Copy(BufferRange{Buffer: out}, BufferRange{Buffer: b, Offset: first, Size: 64}))
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		return r
	}
	first, second := record(), record()
	for _, r := range []*Recording{first, second, first, second} {
		value := replay(t, s, r)
		require.NoError(t, s.WaitValue(background(t), value))
		require.Len(t, d.scratch.idle, 1, "both use one buffer")
		require.EqualValues(t, 9, out.Bytes()[0])
	}
	_, _, err := s.Scratch(256, 64)
	require.NoError(t, err)
	_, err = s.Replay(first)
	require.ErrorIs(t, err, ErrStale)
	require.NoError(t, s.Wait(background(t)))
	value := replay(t, s, first)
	require.NoError(t, s.WaitValue(background(t), value))
	require.True(t, s.CanReplay(first))
	require.True(t, d.scratch.drop())
	require.False(t, s.CanReplay(first))
	_, err = s.Replay(first)
	require.ErrorIs(t, err, ErrStale)
	third := record()
	replay(t, s, third)
	require.NoError(t, third.Close(), "it waits for the submission")
	require.Len(t, d.scratch.idle, 1)
}

// A recording survives the end of its streams, not that of its device.
func TestRecordingOutlivesAStream(t *testing.T) {
	d := openExecuting(t)
	x, y := newBuffer(t, d, 64, Readback), newBuffer(t, d, 64, Readback)
	r := fillAll(t, d, x, y, 0x03030303)
	for range 3 {
		s, err := d.NewStream("")
		require.NoError(t, err)
		clear(x.Bytes())
		replay(t, s, r)
		require.NoError(t, s.Close())
		require.EqualValues(t, 3, x.Bytes()[63])
	}
	s := newStream(t, d)
	replay(t, s, r)
	require.NoError(t, d.Close())
	require.NoError(t, r.Close())
	require.False(t, s.CanReplay(r))
}

// Recordings under a collector that runs all the time.
func TestReplayUnderGC(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	x, y := newBuffer(t, d, 4096, Readback), newBuffer(t, d, 4096, Readback)
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	var r *Recording
	for i := range 200 {
		if i%10 == 0 {
			require.NoError(t, r.Close())
			r = fillAll(t, d, x, y, uint32(i))
		}
		runtime.GC()
		value := replay(t, s, r)
		runtime.GC()
		require.NoError(t, s.WaitValue(background(t), value))
		require.Equal(t, words(x.Bytes()), words(y.Bytes()))
		require.EqualValues(t, i/10*10, words(x.Bytes())[1023])
	}
}

func TestReplayAllocatesNothing(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	x, y := newBuffer(t, d, 64, DeviceLocal), newBuffer(t, d, 64, DeviceLocal)
	r := fillAll(t, d, x, y, 1)
	ctx := background(t)
	require.Zero(t, testing.AllocsPerRun(50, func() {
		value, err := s.Replay(r)
		if err == nil {
			err = s.WaitValue(ctx, value)
		}
		if err != nil || !s.CanReplay(r) {
			t.Fatal(err)
		}
	}))
}

// A submission that fails holds nothing, and the recording can be submitted again.
func TestReplayAfterAFailedSubmission(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	x, y := newBuffer(t, d, 64, Readback), newBuffer(t, d, 64, Readback)
	r := fillAll(t, d, x, y, 0x05050505)
	for _, recorded := range []bool{true, false} {
		if recorded { // it is dropped
			require.NoError(t, s.Fill(BufferRange{Buffer: x}, 1))
		}
		restore := failing(t, &d.c.QueueSubmit)
		_, err := s.Replay(r)
		restore()
		require.ErrorIs(t, err, ErrOutOfMemory)
		require.EqualValues(t, 1, x.n.Load())
		require.EqualValues(t, 1, y.n.Load())
		require.True(t, s.CanReplay(r))
		value := replay(t, s, r)
		require.NoError(t, s.WaitValue(background(t), value))
		require.EqualValues(t, 5, x.Bytes()[0])
	}
}

// A stream that is observed submits no recording, whose dispatches the observer would not see.
func TestReplayOnAnObservedStream(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	if d.Caps().Limits.TimestampValidBits == 0 {
		t.Skip("the queue has no timestamps")
	}
	x, y := newBuffer(t, d, 64, Readback), newBuffer(t, d, 64, Readback)
	r := fillAll(t, d, x, y, 1)
	require.NoError(t, s.Observe(func(Dispatched) {}))
	require.True(t, s.Observed())
	require.False(t, s.CanReplay(r))
	_, err := s.Replay(r)
	require.ErrorIs(t, err, ErrStale)
	require.NoError(t, s.Observe(nil))
	require.False(t, s.Observed())
	require.True(t, s.CanReplay(r))
	replay(t, s, r)
	require.NoError(t, s.Wait(background(t)))
	require.False(t, (*Stream)(nil).Observed())
}

// A launch of a cubin cannot be recorded. The first one on a device makes recordings stale, whose barriers do
// not cover it.
func TestRecordingsAndLaunches(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	x, y := newBuffer(t, d, 64, Readback), newBuffer(t, d, 64, Readback)
	r := fillAll(t, d, x, y, 1)
	var after *Commands
	_, err := d.Record(func(c *Commands) error {
		c.launched, after = true, c // as CubinFunction.Launch does
		return nil
	})
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorIs(t, after.Barrier(), ErrClosed, "the commands end with the function")
	require.True(t, s.CanReplay(r))
	d.launches.Store(true)
	require.False(t, s.CanReplay(r))
	_, err = s.Replay(r)
	require.ErrorIs(t, err, ErrStale)
	_, err = s.Replay(fillAll(t, d, x, y, 0x02020202))
	require.NoError(t, err)
	require.NoError(t, s.Wait(background(t)))
	require.EqualValues(t, 2, x.Bytes()[0])
}

// A stream submits recordings of its device alone.
func TestReplayOnAnotherDevice(t *testing.T) {
	d, other := openExecuting(t), openExecuting(t)
	x, y := newBuffer(t, d, 64, Readback), newBuffer(t, d, 64, Readback)
	r := fillAll(t, d, x, y, 1)
	s := newStream(t, other)
	require.False(t, s.CanReplay(r))
	_, err := s.Replay(r)
	require.ErrorIs(t, err, ErrInvalid)
	require.NotErrorIs(t, err, ErrStale)
}
