package vk

import (
	"errors"
	"fmt"
)

// Recording is a command buffer that is recorded once and submitted many times, by Stream.Replay.
// A submission then costs the host a vkQueueSubmit, without the checks of the commands and their
// recording.
//
// A Recording keeps no resource open between its submissions. A program may close a buffer or a
// pipeline that it uses; the Recording can then not be submitted again. Scratch memory returns to the
// device's pool after each submission, and the next one takes the same buffer from there. A Recording
// belongs to one goroutine at a time, that of the stream it is submitted to.
type Recording struct {
	d      *Device
	b      *batch
	uses   []Resource
	scope  bool    // of its barriers
	stream *Stream // of the submission that has not been waited for; nil: none
	closed bool
	gone   bool // destroyed
}

// Record makes a Recording of the commands that f records, behind a barrier. f gets Commands for its own
// time only, in which it records a Barrier between commands that depend on each other: Order does nothing there.
// A launch of a cubin and a timestamp cannot be recorded. The caller closes the Recording; Device.Close destroys it too.
func (d *Device) Record(f func(*Commands) error) (*Recording, error) {
	const op = "Record"
	if f == nil {
		return nil, invalid(op, "no function")
	}
	r, c, err := d.beginRecording(op)
	if err != nil {
		return nil, err
	}
	err = f(c)
	if !d.stay() { // Device.Close has destroyed it
		return nil, closed(op)
	}
	defer d.life.RUnlock()
	c.released = true
	if err == nil && c.launched {
		err = unsupported(op, "a launch of a cubin")
	}
	if err == nil {
		hostCmdHostBarrier(d.c, &r.b.recorder, r.scope)
		err = d.check("vkEndCommandBuffer", hostEnd(d.c, &r.b.recorder))
	}
	if err != nil {
		r.destroy()
		return nil, err
	}
	r.uses = append(r.uses, r.b.keep...)
	r.b.drop()
	return r, nil
}

func (d *Device) beginRecording(op string) (*Recording, *Commands, error) {
	if err := d.enter(op); err != nil {
		return nil, nil, err
	}
	defer d.leave()
	b, err := d.newBatch()
	if err == nil {
		if err = b.reset(d); err == nil {
			err = d.check("vkBeginCommandBuffer", hostBegin(d.c, b.pool, &b.recorder, false))
		}
		if err != nil {
			b.destroy(d)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	r := &Recording{d: d, b: b, scope: d.barrierScope()}
	b.id, b.recording = d.batches.Add(1), r
	hostCmdBarrier(d.c, &b.recorder, r.scope)
	d.mu.Lock()
	d.recordings[r] = struct{}{}
	d.mu.Unlock()
	return r, &Commands{d: d, b: b}, nil
}

// recording is the Recording that the commands belong to; nil: none.
func (c *Commands) recording() *Recording {
	if c == nil || c.s != nil || c.b == nil {
		return nil
	}
	return c.b.recording
}

// ErrStale is the error of Stream.Replay for a Recording that has to be made again. Nothing was submitted.
var ErrStale = fmt.Errorf("%w: a recording that has to be made again", ErrInvalid)

// CanReplay reports whether the stream can submit a recording: all that it uses is open, its last
// submission has been waited for, no cubin was launched on the device for the first time since, and the
// stream is not observed. Replay may still return ErrStale, if another stream uses the scratch memory.
func (s *Stream) CanReplay(r *Recording) bool {
	d := s.Device()
	if r == nil || d == nil || r.d != d || s.Observed() || !d.stay() {
		return false
	}
	defer d.life.RUnlock()
	if r.closed || r.stream != nil || r.scope != d.barrierScope() {
		return false
	}
	for _, x := range r.uses {
		if !isOpen(x) {
			return false
		}
	}
	return true
}

// isOpen reports whether a resource can be held.
func isOpen(r Resource) bool {
	switch r := r.(type) {
	case *Buffer:
		return !r.closed.Load()
	case *Pipeline:
		return !r.closed.Load()
	case *Timeline:
		return !r.closed.Load()
	case *scratch:
		return !r.buf.closed.Load() // the pool has not dropped it
	}
	return true // retain tells
}

// Replay submits what the stream has recorded and behind it a recording, both by one vkQueueSubmit, and
// returns the value of Submit. The stream's timeline says when both have finished. The submission holds
// what the recording uses. An error that matches ErrStale says that nothing was submitted, and that the
// recording has to be made again, or that the stream is observed: an observer would not see the
// dispatches of a recording. After other errors what the stream had recorded is dropped.
//
// A recording is submitted again when Wait or WaitValue of the stream has returned for its last
// submission.
func (s *Stream) Replay(r *Recording) (uint64, error) {
	const op = "Replay"
	if s == nil || r == nil || r.d == nil {
		return 0, unmade(op)
	}
	if err := s.use(op); err != nil {
		return 0, err
	}
	defer s.d.leave()
	if r.d != s.d {
		return 0, invalid(op, "a recording of another device")
	}
	if r.closed || r.stream != nil || r.scope != s.d.barrierScope() || s.Observed() {
		return 0, ErrStale
	}
	r.b.id = s.d.batches.Add(1)
	for _, x := range r.uses {
		if !r.hold(x) {
			r.b.drop()
			return 0, ErrStale
		}
	}
	value, err := s.submitWith(true, r.b)
	if err != nil {
		r.b.drop()
		return 0, err
	}
	r.stream = s
	return value, nil
}

// hold makes the submission a holder of what it uses.
func (r *Recording) hold(x Resource) bool {
	if s, ok := x.(*scratch); ok {
		if !s.pool.claim(s) {
			return false
		}
		r.b.keep = append(r.b.keep, s)
		return true
	}
	return r.b.hold(x) == nil
}

// Close waits for the last submission, within Options.Timeout, and destroys the recording. If the
// submission does not finish, the error matches ErrTimeout: the recording is closed then, and destroyed
// with the device.
func (r *Recording) Close() error {
	if r == nil || !r.d.stay() {
		return nil
	}
	defer r.d.life.RUnlock()
	if r.closed {
		return nil
	}
	var err error
	if s := r.stream; s != nil {
		if !r.d.lost.Load() {
			err = r.d.await(r.d.limit("Recording.Close"), s.timeline.handle, r.b.value)
			if r.d.closing.Load() {
				return nil // Device.Close does the rest
			}
			if errors.Is(err, ErrTimeout) {
				r.closed = true
				return err
			}
		}
		_ = s.retireUpTo(r.b.value)
	}
	r.destroy()
	return err
}

// destroy frees the command buffer. The device is entered.
func (r *Recording) destroy() {
	r.d.mu.Lock()
	delete(r.d.recordings, r)
	r.d.mu.Unlock()
	r.free()
}

func (r *Recording) free() {
	if !r.gone {
		r.closed, r.gone = true, true
		r.uses = nil
		r.b.destroy(r.d)
	}
}
