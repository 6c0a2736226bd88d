package vk

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
)

// Stream is a sequence of batches of work. Commands are recorded into the current batch;
// Submit submits it to the queue and starts the next. Several batches may be in flight.
// The batches of a stream run in order, as each begins with a barrier. Within a batch, calls
// of operations, copies, fills, uploads and downloads are in order where they depend on each
// other: Order says how. Dispatch and Launch are not, unless Order tells of them, or Barrier
// separates them.
//
// A Stream is not safe for concurrent use; several streams of a device are.
type Stream struct {
	*Commands

	// NoBarrier leaves all order within a batch to the caller: Order does nothing. He records
	// a Barrier where work depends on other work.
	NoBarrier bool

	name     string
	timeline *Timeline

	submitted atomic.Uint64 // the timeline's value when all that was submitted is done

	mu       sync.Mutex // guards inflight and the keep lists of its batches: see Device.reclaim
	inflight []*batch
	idle     []*batch

	waits, signals semaphoreList // of the next Submit
	turns          turns         // with a queue of another API: see Peer
	ticks          tickLog
	uses           uses             // since the last barrier, for Order
	barriers       int              // recorded so far
	observer       func(Dispatched) // of Observe; nil: none
	up, down       *stagingRing
	closed         bool
	gone           bool // destroyed
}

// NewStream creates a stream. The name is for debugging tools. The caller closes the
// stream; Device.Close closes it too. The error is Vulkan's, such as ErrOutOfMemory or
// ErrDeviceLost.
func (d *Device) NewStream(name string) (*Stream, error) {
	if err := d.enter("NewStream"); err != nil {
		return nil, err
	}
	defer d.leave()
	return d.newStream(name)
}

func (d *Device) newStream(name string) (*Stream, error) {
	t, err := d.newTimeline(false)
	if err != nil {
		return nil, err
	}
	t.lent = true
	d.setName(objectSemaphore, t.handle, name)
	s := &Stream{Commands: &Commands{d: d}, name: name, timeline: t}
	s.s = s
	d.mu.Lock()
	d.streams[s] = struct{}{}
	d.mu.Unlock()
	return s, nil
}

// use starts a call on an open stream. After a nil error leave must follow.
func (s *Stream) use(op string) error {
	if err := s.Device().enter(op); err != nil {
		return err
	}
	if s.closed {
		s.d.leave()
		return closed(op)
	}
	return nil
}

// begin starts recording a batch. It reuses a finished one if possible.
func (s *Stream) begin(op string) (*batch, error) {
	if s.closed {
		return nil, closed(op)
	}
	if err := s.retire(); err != nil {
		return nil, err
	}
	var b *batch
	if n := len(s.idle); n > 0 {
		b = s.idle[n-1]
		s.idle = s.idle[:n-1]
	} else {
		var err error
		if b, err = s.d.newBatch(); err != nil {
			return nil, err
		}
	}
	if err := b.reset(s.d); err != nil {
		b.destroy(s.d)
		return nil, err
	}
	if err := s.d.check("vkBeginCommandBuffer", hostBegin(s.d.c, b.pool, &b.recorder, true)); err != nil {
		b.destroy(s.d)
		return nil, err
	}
	b.id = s.d.batches.Add(1)
	b.marks = 0
	s.barrier(b)
	s.b = b
	return b, nil
}

// retire reclaims the batches that have finished.
func (s *Stream) retire() error {
	if len(s.inflight) == 0 {
		return nil
	}
	done, err := s.timeline.value()
	if err != nil {
		return err
	}
	return s.retireUpTo(done)
}

// retireUpTo reclaims the batches up to a value of the timeline. If timestamps cannot be read it
// reclaims all of them and returns the first error.
func (s *Stream) retireUpTo(done uint64) (first error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for ; n < len(s.inflight) && s.inflight[n].value <= done; n++ {
		b := s.inflight[n]
		b.drop()
		if b.staged != nil {
			b.staged.free(b.mark)
			b.staged = nil
		}
		if b.recording != nil {
			b.recording.stream = nil
			continue
		}
		if b.lost {
			s.ticks.lose(b.marks)
			continue
		}
		if err := s.ticks.read(s.d, b); err != nil && first == nil {
			first = err
		}
		s.idle = append(s.idle, b)
	}
	s.inflight = append(s.inflight[:0], s.inflight[n:]...)
	return first
}

// reclaim releases the resources that finished batches of all streams hold, and unused
// scratch memory. It reports whether there was any. The batches are left to their
// streams.
func (d *Device) reclaim() bool {
	some := false
	_ = d.eachStream(func(s *Stream) error {
		done, err := s.timeline.value()
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, b := range s.inflight {
			if b.value <= done && len(b.keep) > 0 {
				b.drop()
				some = true
			}
		}
		return nil
	})
	return d.scratch.drop() || some
}

// eachStream calls f with every open stream until f returns an error, which it returns. It
// holds their timelines meanwhile: another goroutine may close a stream.
func (d *Device) eachStream(f func(*Stream) error) (err error) {
	d.mu.Lock()
	streams := make([]*Stream, 0, len(d.streams))
	for s := range d.streams {
		if s.timeline.retain() == nil {
			streams = append(streams, s)
		}
	}
	d.mu.Unlock()
	for _, s := range streams {
		if err == nil {
			err = f(s)
		}
		s.timeline.release()
	}
	return err
}

// Wait submits the recorded work and waits until all work of the stream has finished. If
// ctx is done first it returns the context's error and the work continues. The error
// matches ErrDeviceLost if the device is lost.
func (s *Stream) Wait(ctx context.Context) error {
	const op = "Wait"
	if err := checkContext(op, ctx); err != nil {
		return err
	}
	if err := s.use(op); err != nil {
		return err
	}
	defer s.d.leave()
	if s.b == nil && len(s.signals.handles)+len(s.waits.handles) == 0 {
		// Only the peer may have unfinished work: the host waits for it directly.
		if err := s.waitForPeer(ctx, op); err != nil {
			return err
		}
		return s.wait(ctx, op, s.submitted.Load())
	}
	value, err := s.submit(true)
	if err != nil {
		return err
	}
	return s.wait(ctx, op, value)
}

// Finish is Wait for a caller who must not leave before the work has finished: no context ends it, but it
// returns an error that matches ErrTimeout when no submission to the device has finished for
// Options.Timeout.
func (s *Stream) Finish() error {
	const op = "Finish"
	d := s.Device()
	if d == nil {
		return unmade(op)
	}
	return s.Wait(d.limit(op))
}

// WaitValue waits until the submission that returned value (see Submit) has finished. It
// submits nothing. If ctx is done first it returns the context's error. The error matches
// ErrInvalid for a value that no submission has returned.
func (s *Stream) WaitValue(ctx context.Context, value uint64) error {
	const op = "WaitValue"
	if err := checkContext(op, ctx); err != nil {
		return err
	}
	if err := s.use(op); err != nil {
		return err
	}
	defer s.d.leave()
	if last := s.submitted.Load(); value > last {
		return invalid(op, "value %d; the last submission is %d", value, last)
	}
	return s.wait(ctx, op, value)
}

func (s *Stream) wait(ctx context.Context, op string, value uint64) error {
	if err := s.waitOn(ctx, op, s.timeline, value); err != nil {
		return err
	}
	return s.retireUpTo(value)
}

// Close waits for the submitted work of the stream, within Options.Timeout, and destroys the
// stream. Work that was not submitted is dropped. If the work does not finish, the error matches
// ErrTimeout: the stream is closed then, and what it holds stays until the device is closed.
func (s *Stream) Close() error {
	if !s.Device().stay() {
		return nil
	}
	defer s.d.life.RUnlock()
	if s.closed {
		return nil
	}
	var err error
	if !s.d.lost.Load() {
		const op = "Stream.Close"
		ctx := s.d.limit(op)
		err = s.waitOn(ctx, op, s.timeline, s.submitted.Load())
		if late := s.turns.drain(ctx, s.d); err == nil {
			err = late
		}
		if s.d.closing.Load() {
			return nil // Device.Close does the rest
		}
		if errors.Is(err, ErrTimeout) {
			s.closed = true
			return err
		}
	}
	s.d.mu.Lock()
	delete(s.d.streams, s)
	s.d.mu.Unlock()
	s.destroy()
	return err
}

// destroy frees everything. The work is finished, or the device is lost.
func (s *Stream) destroy() {
	if s.gone {
		return
	}
	s.closed, s.gone = true, true
	s.turns.close(s.d)
	_ = s.retireUpTo(math.MaxUint64)
	if s.b != nil {
		s.b.destroy(s.d)
		s.b = nil
	}
	s.mu.Lock()
	for _, b := range append(s.inflight, s.idle...) { // retireUpTo has left none of a Recording
		b.destroy(s.d)
	}
	s.inflight, s.idle = nil, nil
	s.mu.Unlock()
	s.waits.release()
	s.signals.release()
	s.up.close()
	s.down.close()
	if !s.timeline.closed.Swap(true) {
		s.timeline.release()
	}
}
