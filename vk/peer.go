package vk

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Peer is a queue of another API that takes turns with a stream: its work runs after
// everything recorded in the stream before, and before everything recorded later. Both
// signal and wait for one timeline, so that no turn waits on the host.
//
// The owner of the stream calls the methods; other goroutines may call Poll. The methods must
// not use the device.
//
// After a peer has failed it gets no more work, and every call of its stream returns the
// peer's error.
type Peer interface {
	// WaitFor makes later work of the peer wait until the timeline reaches value.
	WaitFor(value uint64) error
	// SignalTo sets the timeline to value when all work of the peer has finished.
	SignalTo(value uint64) error
	// Poll waits until all work of the peer has finished, at most for a time, which may be
	// 0, and reports whether it has. After an error some of it will never finish, and the
	// timeline may not reach the value of SignalTo.
	Poll(atMost time.Duration) (done bool, err error)
	// Close is called once, when Poll has reported that all work has finished, or failed, or
	// when the device is lost.
	Close()
}

// turns is a stream's side of its Peer.
type turns struct {
	mu       sync.Mutex // WaitIdle and Close look on from other goroutines
	peer     Peer
	timeline *Timeline // of the stream; the peer has imported it
	value    uint64    // the last value that stream or peer were told to set
	seen     uint64    // the last value that the peer was told to wait for
	gave     []uint64  // values that the peer was told to set and may not have reached
	last     uint64    // the last of them, reached or not; 0: none
	taken    uint64    // the last of them that a batch waits for, or that the host has seen
	pending  bool      // the peer got work since it was last told to signal
	held     batch     // resources of that work, until a batch waits for it
	failed   error     // why the peer takes no more turns

	closing sync.RWMutex // held for reading while another goroutine waits for the peer
	ended   bool         // under closing: the peer is closed
}

// Peer is the peer that SetPeer set, nil if there is none.
func (s *Stream) Peer() Peer {
	if s == nil {
		return nil
	}
	return s.turns.peer
}

// SetPeer sets the peer of the stream. It calls open with a timeline of the stream, which
// is exportable if the device supports that. open exports the timeline, must not use the
// stream and returns the peer. The stream closes the peer when it is destroyed. A stream
// keeps its peer: the error matches ErrInvalid if there is one already.
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

// HandOver starts a turn of the peer: it submits the recorded work, and later work of the
// peer waits for it. The next batch of the stream waits for the peer. keep is held until
// the peer's work has finished. Consecutive turns of the peer, with nothing recorded
// between them, cost no submission.
//
// Pending waits (WaitFor) precede the peer's turn. Pending signals (SignalTo) are left to
// the next Submit, which follows it. Wait, Submit and Download cover the peer's work.
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
	// From here on the peer may have work, even if a later step fails.
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

// flushForPeer submits the work that must run before the peer's turn.
func (s *Stream) flushForPeer(op string) error {
	// Submissions before SetPeer have not signalled the timeline of the turns.
	before := s.turns.value == 0 && s.submitted.Load() > 0
	if s.b == nil && (len(s.waits.handles) > 0 || before) {
		if _, err := s.begin(op); err != nil {
			return err
		}
	}
	_, err := s.submit(false)
	return err
}

// takeTurn adds to a submission a wait for the peer's work and a signal for the peer's
// next turn.
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

// tookTurn records that the submission was made: its batch now holds the resources of the
// peer's work.
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

// endTurn has the peer signal the end of its turn, if it has one.
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

// maxGave is the number of turns after which finished ones are dropped from the list.
const maxGave = 64

// waitForPeer polls the peer until it has finished. Waiting for the timeline would take
// longer: a driver may notice the signal of another API only when its wait times out. On
// NVIDIA 580.159 it took all 10 ms of waitSlice.
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

// waitOn is Timeline.wait that also ends when the stream's peer fails.
func (s *Stream) waitOn(ctx context.Context, op string, tl *Timeline, value uint64) error {
	t := &s.turns
	peer := t.peer
	if t.failure() != nil {
		peer = nil // the batches that waited for it were released
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

// fail ends the turns. It signals the timeline for the batches that wait for the peer:
// their results are wrong, but without the signal they would occupy the device forever.
// The caller holds mu.
func (t *turns) fail(d *Device, err error) {
	if t.failed != nil {
		return
	}
	t.failed, t.pending = err, false
	for _, v := range t.gave {
		// The timeline only grows: the device first sets its values below v.
		r := hostTimelineWait(d.c, t.timeline.handle, v-1, uint64(letGo))
		now, e := t.timeline.value()
		if r != ResultSuccess || e != nil {
			return
		}
		if now < v && t.timeline.set(v) != nil {
			return
		}
	}
}

// letGo bounds the time of the batches between two turns of a failed peer.
const letGo = 5 * time.Second

// busy reports whether the peer has work that is not known to have finished.
func (t *turns) busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pending
}

// failure is the error that ended the turns, nil if they go on.
func (t *turns) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// drain waits for the peer, from any goroutine. The error is that of ctx.
func (t *turns) drain(ctx context.Context, d *Device) error {
	t.mu.Lock()
	peer, failed := t.peer, t.failed
	t.mu.Unlock()
	t.closing.RLock()
	defer t.closing.RUnlock()
	if peer == nil || failed != nil || t.ended {
		return nil
	}
	for !d.lost.Load() {
		done, err := peer.Poll(pollSlice)
		switch {
		case err != nil:
			t.mu.Lock()
			t.fail(d, err)
			t.mu.Unlock()
			return nil
		case done:
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// drainPeers waits for the peers of all streams.
func (d *Device) drainPeers(ctx context.Context) error {
	return d.eachStream(func(s *Stream) error { return s.turns.drain(ctx, d) })
}

// close ends the turns. The batches of the stream and the work of the peer have finished, or the device is
// lost.
func (t *turns) close(d *Device) {
	if t.peer == nil {
		return
	}
	t.closing.Lock()
	t.ended = true
	t.closing.Unlock()
	t.peer.Close()
	t.held.drop()
	if !t.timeline.closed.Swap(true) {
		t.timeline.release()
	}
}
