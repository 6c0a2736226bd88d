package vk

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// openImpatient opens a device whose waits end soon.
func openImpatient(t *testing.T) *Device {
	t.Helper()
	return openExecuting(t, func(o *Options) { o.Timeout = 50 * time.Millisecond })
}

// hang submits work that does not end until the gate is signalled to 1.
func hang(t *testing.T, s *Stream, gate *Timeline, b *Buffer) {
	t.Helper()
	require.NoError(t, s.WaitFor(gate, 1))
	require.NoError(t, s.Fill(BufferRange{Buffer: b}, 1))
	submit(t, s)
}

// ended fails the test if a call does not return.
func ended(t *testing.T, name string, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Minute):
		t.Fatalf("%s waits for a device that hangs", name)
		return nil
	}
}

// A submission that never ends keeps no call waiting. Device.Close destroys nothing then: the validation
// layers would tell.
func TestCallsEndWhileTheDeviceHangs(t *testing.T) {
	d := openImpatient(t)
	gate := newTimeline(t, d)
	t.Cleanup(func() { _ = gate.set(1) }) // lets a driver's thread end
	s, err := d.NewStream("hangs")
	require.NoError(t, err)
	b, err := d.NewBuffer(3*maxStaging, BufferOptions{})
	require.NoError(t, err)
	hang(t, s, gate, b)

	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	require.ErrorIs(t, s.Wait(ctx), context.DeadlineExceeded)
	behind, err := d.NewStream("behind it")
	require.NoError(t, err)
	r, err := d.Record(func(c *Commands) error { return c.Fill(BufferRange{Buffer: b}, 2) })
	require.NoError(t, err)
	replay(t, behind, r)

	for _, c := range []struct {
		name string
		call func() error
	}{
		{"Upload", func() error { return behind.Upload(b, 0, make([]byte, b.Size())) }},
		{"WaitIdle", d.WaitIdle},
		{"Finish", s.Finish},
		{"Recording.Close", r.Close},
		{"Stream.Close", s.Close},
		{"another Stream.Close", behind.Close},
		{"Device.Close", d.Close},
	} {
		require.ErrorIs(t, ended(t, c.name, c.call), ErrTimeout, c.name)
	}
	for name, c := range map[string]func() error{"Buffer": b.Close, "Recording": r.Close, "Stream": s.Close, "Timeline": gate.Close, "Device": d.Close} {
		require.NoError(t, ended(t, name, c), name)
	}
	require.ErrorIs(t, s.Barrier(), ErrClosed)
	require.ErrorIs(t, d.WaitIdle(), ErrClosed)
	_, err = d.NewBuffer(16, BufferOptions{})
	require.ErrorIs(t, err, ErrClosed)
	require.NotNil(t, d.c, "what the device uses lives")
	require.False(t, b.gone || s.gone || gate.gone || r.gone)
}

// Work that ends after all is cleaned up with the device.
func TestADeviceThatGoesOnIsClosed(t *testing.T) {
	d := openImpatient(t)
	gate := newTimeline(t, d)
	s, err := d.NewStream("late")
	require.NoError(t, err)
	b, err := d.NewBuffer(64, BufferOptions{})
	require.NoError(t, err)
	hang(t, s, gate, b)
	require.ErrorIs(t, ended(t, "Stream.Close", s.Close), ErrTimeout)
	require.NoError(t, b.Close())
	d.timeout = -1 // no bound: a busy machine is no hang
	require.NoError(t, gate.Signal(1))
	require.NoError(t, gate.Close())
	require.NoError(t, ended(t, "WaitIdle", d.WaitIdle))
	require.NoError(t, ended(t, "Device.Close", d.Close))
	require.Nil(t, d.c)
	require.True(t, b.gone && s.gone)
}

// A wait goes on while submissions finish, however long all of them take.
func TestProgressIsNoHang(t *testing.T) {
	d := openImpatient(t)
	s := newStream(t, d)
	l := d.limit("test")
	require.NoError(t, l.Err())
	late := func() { l.since = l.since.Add(-time.Hour) }
	for range 3 {
		b := newBuffer(t, d, 64, DeviceLocal)
		require.NoError(t, s.Fill(BufferRange{Buffer: b}, 1))
		require.NoError(t, s.Wait(background(t)))
		late()
		require.NoError(t, l.Err())
	}
	late()
	require.ErrorIs(t, l.Err(), ErrTimeout)
	d.timeout = -1
	require.NoError(t, l.Err(), "no bound")
	d.closing.Store(true)
	require.ErrorIs(t, l.Err(), ErrClosed)
	d.closing.Store(false)
}

// A call that does not return from the driver keeps Close from destroying the device, and not from ending.
func TestCloseDuringACallThatDoesNotReturn(t *testing.T) {
	d := openImpatient(t)
	require.NoError(t, d.enter("a call"))
	require.ErrorIs(t, ended(t, "Device.Close", d.Close), ErrTimeout)
	require.NotNil(t, d.c)
	d.leave()
}

// The caller's own submissions are waited for too.
func TestCloseAfterTheQueueWasLent(t *testing.T) {
	d := openExecuting(t)
	queue, _ := d.VulkanQueue()
	require.NotNil(t, queue)
	require.NoError(t, ended(t, "WaitIdle", d.WaitIdle))
	require.Empty(t, d.timelines)
	require.NoError(t, ended(t, "Device.Close", d.Close))
}

// A peer that never finishes is left alone, like the device.
func TestClosingWhileThePeerHangs(t *testing.T) {
	d := openImpatient(t)
	s, err := d.NewStream("with a peer")
	require.NoError(t, err)
	p := withPeer(t, s)
	release := make(chan struct{})
	require.NoError(t, s.HandOver())
	require.NoError(t, p.do(func() { <-release }))
	require.ErrorIs(t, ended(t, "WaitIdle", d.WaitIdle), ErrTimeout)
	require.ErrorIs(t, ended(t, "Stream.Close", s.Close), ErrTimeout)
	require.False(t, p.closed)
	close(release)
	require.NoError(t, ended(t, "Device.Close", d.Close))
	require.True(t, p.closed)
}

// busy is a value with work that never ends.
type busy struct{ detached bool }

func (b *busy) Detach() { b.detached = true }

func (b *busy) Wait(ctx context.Context) error {
	for ctx.Err() == nil { // it has no channel
		runtime.Gosched()
	}
	return ctx.Err()
}

func TestClosingWhileAnAttachedValueHangs(t *testing.T) {
	d := openImpatient(t)
	b := &busy{}
	_, err := d.Attach("busy", func() (Attached, error) { return b, nil })
	require.NoError(t, err)
	require.ErrorIs(t, ended(t, "Device.Close", d.Close), ErrTimeout)
	assert.False(t, b.detached)
}
