package vk

// #include "host.h"
import "C"

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
)

// Stream is a sequence of work. Recording goes into its current batch, Submit
// sends the batch off and starts another; several may be in flight. Batches of a
// stream run in order: each begins with a barrier. Within a batch Barrier
// separates what depends on each other.
//
// A stream has one owner at a time; different streams may be used at once.
type Stream struct {
	*Commands
	name     string
	timeline *Timeline

	submitted atomic.Uint64 // the timeline's value when all that was submitted is done

	mu       sync.Mutex // guards inflight and keep lists in it: see Device.reclaim
	inflight []*batch
	idle     []*batch

	waits, signals semaphoreList // for the next Submit
	turns          turns         // with a queue of another API
	ticks          tickLog
	up, down       *stagingRing
	closed         bool
}

// semaphoreList is timelines and values as C takes them. It holds the timelines,
// until it hands that over to a batch.
type semaphoreList struct {
	timelines []*Timeline
	handles   []uint64
	values    []uint64
}

func (l *semaphoreList) add(t *Timeline, v uint64) {
	l.timelines = append(l.timelines, t)
	l.handles = append(l.handles, t.handle)
	l.values = append(l.values, v)
}

func (l *semaphoreList) moveTo(b *batch) {
	for _, t := range l.timelines {
		b.keep = append(b.keep, t)
	}
	l.clear()
}

func (l *semaphoreList) release() {
	for _, t := range l.timelines {
		t.release()
	}
	l.clear()
}

func (l *semaphoreList) clear() {
	clear(l.timelines)
	l.timelines, l.handles, l.values = l.timelines[:0], l.handles[:0], l.values[:0]
}

// NewStream makes a stream. The name is for tools. The stream is the caller's to Close;
// Device.Close closes it too. ErrOutOfMemory and ErrDeviceLost as Vulkan says them.
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
	d.setName(C.VK_OBJECT_TYPE_SEMAPHORE, t.handle, name)
	s := &Stream{Commands: &Commands{d: d}, name: name, timeline: t}
	s.s = s
	d.mu.Lock()
	d.streams[s] = struct{}{}
	d.mu.Unlock()
	return s, nil
}

// use starts a call on an open stream; leave follows.
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

// begin opens a batch: a finished one if there is one.
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
	if err := s.d.check("vkBeginCommandBuffer", C.vka_begin(s.d.c, C.uint64_t(b.pool), b.commands)); err != nil {
		b.destroy(s.d)
		return nil, err
	}
	b.id = s.d.batches.Add(1)
	b.marks = 0
	C.vka_cmd_barrier(s.d.c, b.commands)
	s.b = b
	return b, nil
}

// Timeline is the stream's own: its value counts the submissions that have
// finished. Wait for it on other streams; never signal it.
func (s *Stream) Timeline() *Timeline {
	if s == nil {
		return nil
	}
	return s.timeline
}

// maxSemaphores leaves a place for the stream's own, and one for that of its peer.
const maxSemaphores = C.VKA_MAX_SUBMIT_SEMAPHORES - 2

// WaitFor makes the next submission wait on the device until t reaches value. A
// value that only a later submission to the same device signals is never reached. The
// submission holds t. ErrInvalid for a timeline of another device, and for more
// timelines than one submission takes.
func (s *Stream) WaitFor(t *Timeline, value uint64) error {
	const op = "WaitFor"
	if s == nil {
		return unmade(op)
	}
	return s.depend(op, t, value, &s.waits)
}

// SignalTo makes the next Submit set t to value when its work has finished. The
// value has to be above all that t was told before, which is not checked. Errors as
// for WaitFor; a stream's own timeline is refused too.
func (s *Stream) SignalTo(t *Timeline, value uint64) error {
	const op = "SignalTo"
	if s == nil {
		return unmade(op)
	}
	return s.depend(op, t, value, &s.signals)
}

func (s *Stream) depend(op string, t *Timeline, value uint64, list *semaphoreList) error {
	if err := s.use(op); err != nil {
		return err
	}
	defer s.d.leave()
	if t == nil || t.d != s.d {
		return invalid(op, "no timeline of this device")
	}
	if list == &s.signals && t == s.timeline {
		return invalid(op, "a stream's own timeline is its own to signal")
	}
	if len(list.handles) >= maxSemaphores {
		return invalid(op, "more than %d timelines in one submission", maxSemaphores)
	}
	if err := t.retain(); err != nil {
		return err
	}
	list.add(t, value)
	return nil
}

// retire takes back the batches that have finished.
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

func (s *Stream) retireUpTo(done uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for ; n < len(s.inflight) && s.inflight[n].value <= done; n++ {
		b := s.inflight[n]
		if b.lost {
			s.ticks.lose(b.marks)
			continue
		}
		b.drop()
		if b.staged != nil {
			b.staged.free(b.mark)
			b.staged = nil
		}
		if err := s.ticks.read(s.d, b); err != nil {
			return err
		}
		s.idle = append(s.idle, b)
	}
	s.inflight = append(s.inflight[:0], s.inflight[n:]...)
	return nil
}

// reclaim releases what finished batches of all streams hold, and scratch memory that
// nothing uses, and reports whether there was any. The batches themselves stay their
// owners' to take back.
func (d *Device) reclaim() bool {
	d.mu.Lock()
	streams := make([]*Stream, 0, len(d.streams))
	for s := range d.streams {
		streams = append(streams, s)
	}
	d.mu.Unlock()
	some := false
	for _, s := range streams {
		done, err := s.timeline.value()
		if err != nil {
			break
		}
		s.mu.Lock()
		for _, b := range s.inflight {
			if b.value <= done && len(b.keep) > 0 {
				b.drop()
				some = true
			}
		}
		s.mu.Unlock()
	}
	return d.scratch.drop() || some
}

// Wait submits what was recorded and waits until everything has finished. It ends
// early with the context's error; the work goes on. A lost device is ErrDeviceLost.
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
		// Only the peer may have something left: the host waits for it directly.
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

// WaitValue waits until the submission that returned value (see Submit) has finished;
// it submits nothing. It ends early with the context's error. ErrInvalid for a value
// that no submission has returned.
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

// Close waits for the stream's work and destroys it. What was recorded and not
// submitted is dropped.
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
		err = s.waitOn(context.Background(), "Close", s.timeline, s.submitted.Load())
		if s.d.closing.Load() {
			return nil // Device.Close does the rest
		}
	}
	s.d.mu.Lock()
	delete(s.d.streams, s)
	s.d.mu.Unlock()
	s.destroy()
	return err
}

// destroy frees everything; the work is finished, or the device lost.
func (s *Stream) destroy() {
	if s.closed {
		return
	}
	s.closed = true
	s.turns.close(s.d)
	_ = s.retireUpTo(math.MaxUint64)
	if s.b != nil {
		s.b.destroy(s.d)
		s.b = nil
	}
	s.mu.Lock()
	for _, b := range append(s.inflight, s.idle...) {
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
