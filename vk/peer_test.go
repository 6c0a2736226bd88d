package vk

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/pause"
)

// fakePeer is a queue of another API: a goroutine that works through a list. It
// talks to the timeline without entering the device, as a driver of another API
// does.
type fakePeer struct {
	t       *Timeline
	signals int // how often it was told to
	closed  bool

	mu      sync.Mutex
	changed *sync.Cond
	list    []func()
	busy    bool
	err     error
	end     bool
}

func newFakePeer(t *Timeline) *fakePeer {
	p := &fakePeer{t: t}
	p.changed = sync.NewCond(&p.mu)
	go p.work()
	return p
}

func (p *fakePeer) work() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for len(p.list) == 0 && !p.end {
			p.changed.Wait()
		}
		if p.end {
			return
		}
		f := p.list[0]
		p.list, p.busy = p.list[1:], true
		p.mu.Unlock()
		f()
		p.mu.Lock()
		p.busy = false
		p.changed.Broadcast()
	}
}

func (p *fakePeer) do(f func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	p.list = append(p.list, f)
	p.changed.Broadcast()
	return nil
}

// die is a device that stops: nothing of the list happens any more.
func (p *fakePeer) die(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.list = err, nil
	p.changed.Broadcast()
}

func (p *fakePeer) WaitFor(value uint64) error {
	return p.do(func() {
		for loop := (pause.Loop{}); ; loop.Wait() {
			now, err := p.t.value()
			if err != nil || now >= value {
				return
			}
			if _, err := p.Poll(0); err != nil {
				return
			}
		}
	})
}

func (p *fakePeer) SignalTo(value uint64) error {
	p.signals++
	return p.do(func() { _ = p.t.set(value) })
}

func (p *fakePeer) Poll(atMost time.Duration) (done bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && (p.busy || len(p.list) > 0) && atMost > 0 {
		p.mu.Unlock()
		time.Sleep(atMost)
		p.mu.Lock()
	}
	return !p.busy && len(p.list) == 0, p.err
}

func (p *fakePeer) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.end = true, true
	p.changed.Broadcast()
}

func withPeer(t *testing.T, s *Stream) *fakePeer {
	t.Helper()
	var p *fakePeer
	require.NoError(t, s.SetPeer(func(shared *Timeline) (Peer, error) {
		p = newFakePeer(shared)
		return p, nil
	}))
	require.Equal(t, Peer(p), s.Peer())
	return p
}

// Vulkan and a peer work on one buffer in the order in which the work was given.
func TestPeerTakesTurns(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	early := newBuffer(t, d, 4, DeviceLocal)
	require.NoError(t, s.Fill(BufferRange{Buffer: early}, 7))
	_, err := s.Submit() // before there is a peer
	require.NoError(t, err)
	p := withPeer(t, s)
	x := newBuffer(t, d, 4, Upload)
	const turns = 200 // more than maxGave
	var wrong atomic.Int64
	for i := range byte(turns) {
		require.NoError(t, s.Fill(BufferRange{Buffer: x}, uint32(i)))
		if i%3 == 0 {
			submit(t, s)
		}
		require.NoError(t, s.HandOver(x))
		require.NoError(t, p.do(func() {
			if x.Bytes()[0] != i {
				wrong.Add(1)
			}
			x.Bytes()[0] = i + 1
		}))
		y := newBuffer(t, d, 4, Upload)
		if i%5 != 0 {
			continue
		}
		require.NoError(t, s.Copy(BufferRange{Buffer: y}, BufferRange{Buffer: x}))
		require.NoError(t, s.HandOver(x, y))
		require.NoError(t, p.do(func() {
			if y.Bytes()[0] != i+1 {
				wrong.Add(1)
			}
		}))
	}
	require.NoError(t, s.Wait(background(t)))
	assert.Zero(t, wrong.Load(), "things out of order")
	assert.Equal(t, byte(turns), x.Bytes()[0], "the last turn is waited for")
}

// Work submitted before there was a peer runs before the peer's first turn.
func TestPeerComesAfterEarlierSubmissions(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	const size = 32 << 20
	x := newBuffer(t, d, size, Upload)
	require.NoError(t, s.Fill(BufferRange{Buffer: x}, 0x05050505))
	submit(t, s)
	p := withPeer(t, s)
	require.NoError(t, s.HandOver(x))
	var first, last byte
	require.NoError(t, p.do(func() { first, last = x.Bytes()[0], x.Bytes()[size-1] }))
	require.NoError(t, s.Wait(background(t)))
	assert.Equal(t, byte(5), first)
	assert.Equal(t, byte(5), last)
}

// Turns that follow each other are one: no submission, no signal.
func TestPeersTurnsInARowAreOne(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	p := withPeer(t, s)
	n := 0
	for range 10 {
		require.NoError(t, s.HandOver())
		require.NoError(t, p.do(late(func() { n++ })))
	}
	require.NoError(t, s.Wait(background(t)))
	assert.Equal(t, 10, n, "Wait covers the peer")
	assert.Zero(t, p.signals, "nothing waits for it but the host")
	assert.Zero(t, s.submitted.Load(), "nothing was recorded, and nothing submitted")
	require.NoError(t, s.HandOver())
	require.NoError(t, p.do(late(func() { n++ })))
	v := submit(t, s)
	require.NoError(t, s.WaitValue(background(t), v))
	assert.Equal(t, 11, n, "so does the value of Submit")
	require.NoError(t, s.HandOver())
	require.NoError(t, p.do(late(func() { n++ })))
	require.NoError(t, d.WaitIdle())
	assert.Equal(t, 12, n, "and the device's end of work")
}

// The caller's own waits come before the peer's turn, his signals after it.
func TestPeerAndOtherTimelines(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	p := withPeer(t, s)
	before, after := newTimeline(t, d), newTimeline(t, d)
	require.NoError(t, s.WaitFor(before, 1))
	require.NoError(t, s.SignalTo(after, 1))
	require.NoError(t, s.HandOver())
	var ran atomic.Bool
	require.NoError(t, p.do(late(func() { ran.Store(true) })))
	submit(t, s)
	late(func() { assert.False(t, ran.Load(), "before the wait is over") })()
	require.NoError(t, before.Signal(1))
	require.NoError(t, after.Wait(background(t), 1))
	assert.True(t, ran.Load(), "at the signal")
}

// Buffers that the peer uses are held until its work has finished, whoever waits for it.
func TestPeersWorkHoldsWhatItUses(t *testing.T) {
	d := openExecuting(t)
	for _, end := range []string{"wait", "batch", "close"} {
		t.Run(end, func(t *testing.T) {
			s := newStream(t, d)
			p := withPeer(t, s)
			b, err := d.NewBuffer(64, BufferOptions{Memory: Upload})
			require.NoError(t, err)
			var gone atomic.Bool
			detach(t, b, func() { gone.Store(true) })
			release := make(chan struct{})
			for range 3 { // held once, however often it is used
				require.NoError(t, s.HandOver(b))
			}
			require.NoError(t, p.do(func() { <-release }))
			require.NoError(t, b.Close())
			require.ErrorIs(t, s.Wait(newPolled(true)), context.DeadlineExceeded)
			assert.False(t, gone.Load(), "while the peer works")
			switch end {
			case "wait":
				close(release)
				require.NoError(t, s.Wait(background(t)))
			case "batch":
				other := newBuffer(t, d, 64, DeviceLocal)
				require.NoError(t, s.Fill(BufferRange{Buffer: other}, 1))
				submit(t, s)
				assert.False(t, gone.Load(), "while the batch waits")
				close(release)
				require.NoError(t, s.Wait(background(t)))
			case "close":
				go late(func() { close(release) })()
				require.NoError(t, s.Close())
				assert.True(t, p.closed)
			}
			assert.True(t, gone.Load())
			require.ErrorIs(t, s.HandOver(b), ErrClosed)
		})
	}
}

// A peer that dies is reported, and nothing waits for it any longer.
func TestPeerDies(t *testing.T) {
	d := openExecuting(t)
	dead := errors.New("dead")
	for _, c := range []struct {
		name    string
		batches int // that wait for the peer when it dies
	}{{"nothing waits", 0}, {"a batch waits", 1}, {"batches wait", 5}} {
		t.Run(c.name, func(t *testing.T) {
			s := newStream(t, d)
			p := withPeer(t, s)
			b := newBuffer(t, d, 4, Upload)
			stuck := make(chan struct{})
			require.NoError(t, s.HandOver(b))
			require.NoError(t, p.do(func() { <-stuck }))
			for range c.batches {
				require.NoError(t, s.Fill(BufferRange{Buffer: b}, 1))
				require.NoError(t, s.HandOver(b))
			}
			p.die(dead)
			close(stuck)
			require.ErrorIs(t, s.Wait(background(t)), dead)
			require.ErrorIs(t, s.Wait(background(t)), dead, "it stays so")
			require.ErrorIs(t, s.HandOver(b), dead)
			other := newStream(t, d)
			require.NoError(t, other.Fill(BufferRange{Buffer: b}, 3))
			require.NoError(t, other.Wait(background(t)))
			require.Equal(t, byte(3), b.Bytes()[0])
			require.NoError(t, d.WaitIdle())
			_ = s.Close()
			assert.True(t, p.closed)
		})
	}
}

// Closing the device waits for the peer, with or without a batch behind it.
func TestDeviceClosesWithAPeerAtWork(t *testing.T) {
	for _, batch := range []bool{false, true} {
		d := openExecuting(t)
		s, err := d.NewStream("")
		require.NoError(t, err)
		p := withPeer(t, s)
		b, err := d.NewBuffer(4, BufferOptions{Memory: Upload})
		require.NoError(t, err)
		require.NoError(t, s.Fill(BufferRange{Buffer: b}, 1))
		require.NoError(t, s.HandOver(b))
		done := false
		require.NoError(t, p.do(late(func() { done = true })))
		if batch {
			require.NoError(t, s.Fill(BufferRange{Buffer: b}, 2))
			submit(t, s)
		}
		var order []string
		detach(t, b, func() { order = append(order, "buffer") })
		_, err = d.Attach("key", func() (Attached, error) {
			return detached(func() { order = append(order, "device") }), nil
		})
		require.NoError(t, err)
		require.NoError(t, d.Close())
		assert.True(t, done)
		assert.True(t, p.closed)
		assert.Equal(t, []string{"buffer", "device"}, order)
		require.ErrorIs(t, s.HandOver(), ErrClosed)
		require.ErrorIs(t, s.SetPeer(nil), ErrClosed)
	}
}

// A device closes that a dead peer keeps busy, though nobody has asked the peer yet.
func TestDeviceClosesWithADeadPeer(t *testing.T) {
	d := openExecuting(t)
	s, err := d.NewStream("")
	require.NoError(t, err)
	p := withPeer(t, s)
	b, err := d.NewBuffer(4, BufferOptions{})
	require.NoError(t, err)
	stuck := make(chan struct{})
	require.NoError(t, s.HandOver(b))
	require.NoError(t, p.do(func() { <-stuck }))
	require.NoError(t, s.Fill(BufferRange{Buffer: b}, 2))
	submit(t, s)
	p.die(errors.New("dead"))
	close(stuck)
	require.NoError(t, d.Close())
	assert.True(t, p.closed)
}

func TestAStreamHasOnePeer(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	require.ErrorIs(t, s.HandOver(), ErrInvalid, "no peer yet")
	refused := errors.New("refused")
	err := s.SetPeer(func(*Timeline) (Peer, error) { return nil, refused })
	require.ErrorIs(t, err, refused)
	require.Nil(t, s.Peer())
	withPeer(t, s)
	require.ErrorIs(t, s.SetPeer(func(*Timeline) (Peer, error) { panic("not called") }), ErrInvalid)
}

type detached func()

func (f detached) Detach() { f() }

func detach(t *testing.T, b *Buffer, f func()) {
	t.Helper()
	_, err := b.Attach("key", func() (Attached, error) { return detached(f), nil })
	require.NoError(t, err)
}

// A value attached to a buffer is made once, and detached when the buffer is destroyed.
func TestAttach(t *testing.T) {
	d := openExecuting(t)
	b, err := d.NewBuffer(64, BufferOptions{})
	require.NoError(t, err)
	require.Nil(t, b.Attached("key"))
	refused := errors.New("refused")
	_, err = b.Attach("key", func() (Attached, error) { return nil, refused })
	require.ErrorIs(t, err, refused)
	n := 0
	detach(t, b, func() { n++ })
	first := b.Attached("key")
	again, err := b.Attach("key", func() (Attached, error) { panic("there is one") })
	require.NoError(t, err)
	require.NotNil(t, first)
	require.NotNil(t, again)
	require.Nil(t, b.Attached("other key"))
	s := newStream(t, d)
	require.NoError(t, s.Fill(BufferRange{Buffer: b}, 1))
	require.NoError(t, b.Close())
	require.Zero(t, n, "a batch holds the buffer")
	_, err = b.Attach("other", func() (Attached, error) { panic("closed") })
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, s.Wait(background(t)))
	require.Equal(t, 1, n)
	require.NoError(t, b.Close())
	require.Equal(t, 1, n)
}

// A device that closes while something is being attached to it takes that too.
func TestAttachMeetsTheEnd(t *testing.T) {
	d := openExecuting(t)
	b, err := d.NewBuffer(64, BufferOptions{})
	require.NoError(t, err)
	var device, buffer atomic.Int64
	ended := make(chan struct{})
	_, err = b.Attach("key", func() (Attached, error) {
		_, err := d.Attach("key", func() (Attached, error) {
			go func() {
				defer close(ended)
				assert.NoError(t, d.Close())
			}()
			<-ended
			assert.Zero(t, d.Memory().Buffers)
			return detached(func() { device.Add(1) }), nil
		})
		assert.ErrorIs(t, err, ErrClosed)
		return detached(func() { buffer.Add(1) }), nil
	})
	require.ErrorIs(t, err, ErrClosed)
	assert.Equal(t, int64(1), device.Load())
	assert.Equal(t, int64(1), buffer.Load())
}
