package vk

// #include "host.h"
import "C"

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Peer is a queue of another API that takes turns with a stream: what it is given
// runs after everything recorded in the stream before, and before everything
// recorded later. The two are tied by a timeline that both signal and wait for, so
// that no turn waits on the host.
//
// The methods are called by whoever uses the stream, Drain and Poll by other
// goroutines too. They must not use the device.
//
// A peer that fails once is given nothing more, and its stream does nothing more
// either: every call returns the peer's error.
type Peer interface {
	// WaitFor makes what is given from now on wait until the timeline reaches value.
	WaitFor(value uint64) error
	// SignalTo sets the timeline to value when all that was given has finished.
	SignalTo(value uint64) error
	// Drain waits until all that was given has finished. An error means that some of
	// it never will, and that SignalTo may not have happened.
	Drain() error
	// Poll is Drain that gives up after a time, which may be 0, and says whether it
	// did not have to.
	Poll(atMost time.Duration) (done bool, err error)
	// Close is called once, after Drain or with the device lost.
	Close()
}

// turns is a stream's side of its Peer.
type turns struct {
	mu       sync.Mutex // WaitIdle and Close look on from other goroutines
	peer     Peer
	timeline *Timeline // the stream's; the peer has an import of it
	value    uint64    // the last one anybody was told to set
	seen     uint64    // the last one the peer was told to wait for
	gave     []uint64  // those the peer was told to set, that may not be reached yet
	last     uint64    // the last of them, reached or not; 0: none
	taken    uint64    // the last of them that a batch waits for, or the host has seen
	pending  bool      // the peer was given work since it was last told to signal
	held     batch     // what that work uses, until a batch follows that waits for it
	failed   error     // why the peer takes no more turns
}

// Peer is what SetPeer made; nil if there is none.
func (s *Stream) Peer() Peer {
	if s == nil {
		return nil
	}
	return s.turns.peer
}

// SetPeer gives the stream a peer, made by open around a timeline that belongs to
// the stream, exportable where the device's timelines are; open exports it and must
// not use the stream. The stream closes the peer when it is destroyed. A stream has
// one peer for good: ErrInvalid when there is one already.
func (s *Stream) SetPeer(open func(shared *Timeline) (Peer, error)) error {
	const op = "SetPeer"
	switch {
	case s.Device() == nil:
		return unmade(op)
	case s.closed:
		return closed(op)
	case open == nil:
		return invalid(op, "no function")
	}
	if s.turns.peer != nil {
		return invalid(op, "the stream has a peer")
	}
	t, err := s.d.NewTimeline(s.d.Caps().ExternalSemaphoreFd)
	if err != nil {
		return err
	}
	p, err := open(t)
	if err == nil && p == nil {
		err = invalid(op, "the function made no peer")
	}
	if err != nil {
		_ = t.Close()
		return err
	}
	if err := s.use(op); err != nil {
		p.Close()
		_ = t.Close()
		return err
	}
	defer s.d.leave()
	s.turns.mu.Lock()
	defer s.turns.mu.Unlock()
	s.turns.peer, s.turns.timeline = p, t
	s.turns.held.id = s.d.batches.Add(1)
	return nil
}

// HandOver makes it the peer's turn: what was recorded is submitted, and what the
// peer is given afterwards waits for it. The stream's next batch waits for the peer
// in turn. keep is held until the peer's work has finished. Turns of the peer that
// follow each other with nothing recorded between them cost no submission.
//
// Pending waits (WaitFor) come before the peer's turn; pending signals (SignalTo)
// stay for the next Submit, which comes after it. Wait, Submit and Download cover
// the peer's work.
func (s *Stream) HandOver(keep ...Resource) error {
	const op = "HandOver"
	if err := s.use(op); err != nil {
		return err
	}
	defer s.d.leave()
	t := &s.turns
	if t.peer == nil {
		return invalid(op, "the stream has no peer")
	}
	if err := t.failure(); err != nil {
		return err
	}
	if err := s.flushForPeer(op); err != nil {
		return err
	}
	if t.seen < t.value {
		if err := t.peer.WaitFor(t.value); err != nil {
			return err
		}
		t.seen = t.value
	}
	// From here on the peer may have been given work, whatever fails.
	t.mu.Lock()
	t.pending = true
	t.mu.Unlock()
	for _, r := range keep {
		if err := t.held.hold(r); err != nil {
			return err
		}
	}
	return nil
}

// flushForPeer submits what has to run before the peer's turn.
func (s *Stream) flushForPeer(op string) error {
	// What was submitted before there was a peer has not signalled their timeline.
	before := s.turns.value == 0 && s.submitted.Load() > 0
	if s.b == nil && (len(s.waits.handles) > 0 || before) {
		if _, err := s.begin(op); err != nil {
			return err
		}
	}
	_, err := s.submit(false)
	return err
}

// takeTurn adds to a submission what the peer's timeline needs: a wait for work the
// peer was given, and a signal for its next turn.
func (s *Stream) takeTurn(l *submission) error {
	t := &s.turns
	if t.peer == nil {
		return nil
	}
	if err := s.endTurn(); err != nil {
		return err
	}
	if t.last > t.taken {
		l.waitFor(t.timeline, t.last)
	}
	l.signal(t.timeline, t.value+1)
	return nil
}

// tookTurn notes that the submission was sent: it holds from now on what the peer's
// work uses.
func (s *Stream) tookTurn(b *batch) {
	t := &s.turns
	if t.peer == nil {
		return
	}
	t.mu.Lock()
	t.value++
	t.mu.Unlock()
	if t.last > t.taken {
		t.taken = t.last
		b.keep = append(b.keep, t.held.keep...)
		clear(t.held.keep)
		t.held.keep = t.held.keep[:0]
		t.held.id = s.d.batches.Add(1)
	}
}

// endTurn has the peer signal the end of its turn, where it has one.
func (s *Stream) endTurn() error {
	t := &s.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed != nil {
		return t.failed
	}
	if !t.pending {
		return nil
	}
	if len(t.gave) >= maxGave {
		now, err := t.timeline.value()
		if err != nil {
			return err
		}
		n, _ := slices.BinarySearch(t.gave, now+1)
		t.gave = append(t.gave[:0], t.gave[n:]...)
	}
	if err := t.peer.SignalTo(t.value + 1); err != nil {
		t.fail(s.d, err)
		return err
	}
	t.value++
	t.last, t.pending = t.value, false
	t.gave = append(t.gave, t.last)
	return nil
}

// maxGave is the number of turns after which those that are over are forgotten.
const maxGave = 64

// waitForPeer waits until the peer has finished, without the device's help: the
// peer is asked, again and again. Waiting for the timeline would take longer, since
// a driver need not notice what another one signals until a wait times out (seen on
// NVIDIA 580.159, where it took the whole 10 ms of waitSlice).
func (s *Stream) waitForPeer(ctx context.Context, op string) error {
	t := &s.turns
	if t.peer == nil {
		return nil
	}
	if err := t.failure(); err != nil {
		return err
	}
	if !t.busy() && t.last == t.taken {
		return nil
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.d.closing.Load() {
			return closed(op)
		}
		done, err := t.peer.Poll(pollSlice)
		switch {
		case err != nil:
			t.mu.Lock()
			t.fail(s.d, err)
			t.mu.Unlock()
			return t.failure()
		case done:
			t.mu.Lock()
			t.pending, t.taken = false, t.last
			t.mu.Unlock()
			t.held.drop()
			t.held.id = s.d.batches.Add(1)
			return nil
		}
	}
}

// pollSlice is how long a peer asks its driver before a cancelled context is noticed.
const pollSlice = time.Millisecond

// waitOn is Timeline.wait that ends when the stream's peer fails.
func (s *Stream) waitOn(ctx context.Context, op string, tl *Timeline, value uint64) error {
	t := &s.turns
	peer := t.peer
	if t.failure() != nil {
		peer = nil // what waited for it was let go
	}
	dead, err := tl.wait(ctx, op, value, peer)
	if dead {
		t.mu.Lock()
		t.fail(s.d, err)
		t.mu.Unlock()
		_, err = tl.wait(ctx, op, value, nil)
	}
	if failed := t.failure(); failed != nil {
		return failed
	}
	return err
}

// fail ends the turns for good. Batches that wait for the peer are let go: what they
// compute is worth nothing, but they would keep the device busy for ever. mu is held.
func (t *turns) fail(d *Device, err error) {
	if t.failed != nil {
		return
	}
	t.failed, t.pending = err, false
	for _, v := range t.gave {
		// The timeline only grows: what the device sets before v comes first.
		r := C.vka_timeline_wait(d.c, C.uint64_t(t.timeline.handle), C.uint64_t(v-1), C.uint64_t(letGo))
		now, e := t.timeline.value()
		if r != C.VK_SUCCESS || e != nil {
			return
		}
		if now < v && t.timeline.set(v) != nil {
			return
		}
	}
}

// letGo bounds how long the batches between two turns of a failed peer may take.
const letGo = 5 * time.Second

// busy reports whether the peer was given work of which nobody knows the end.
func (t *turns) busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pending
}

// failure is why the peer takes no more turns, nil while it does.
func (t *turns) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// drain waits for the peer, from any goroutine.
func (t *turns) drain(d *Device) {
	t.mu.Lock()
	peer, failed := t.peer, t.failed
	t.mu.Unlock()
	if peer == nil || failed != nil || d.lost.Load() {
		return
	}
	if err := peer.Drain(); err != nil {
		t.mu.Lock()
		t.fail(d, err)
		t.mu.Unlock()
	}
}

// drainPeers waits for the peers of all streams.
func (d *Device) drainPeers() {
	d.mu.Lock()
	streams := make([]*Stream, 0, len(d.streams))
	for s := range d.streams {
		streams = append(streams, s)
	}
	d.mu.Unlock()
	for _, s := range streams {
		s.turns.drain(d)
	}
}

// close ends the turns; the stream's batches are finished, or the device lost.
func (t *turns) close(d *Device) {
	if t.peer == nil {
		return
	}
	t.drain(d)
	t.peer.Close()
	t.held.drop()
	if !t.timeline.closed.Swap(true) {
		t.timeline.release()
	}
}
