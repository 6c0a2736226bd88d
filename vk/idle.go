package vk

import (
	"context"
	"time"
)

// Waits of calls that take no context. A submission that never ends must not keep a program from ending.

// timeoutOf is the Timeout of Options and External, with its default.
func timeoutOf(o time.Duration) time.Duration {
	if o == 0 {
		return DefaultTimeout
	}
	return o
}

// Bounded returns a context for a short piece of work of a call that takes no context: it ends after
// Options.Timeout. The caller calls cancel.
func (d *Device) Bounded() (ctx context.Context, cancel context.CancelFunc) {
	switch {
	case d == nil || d.timeout == 0:
		return context.WithTimeout(context.Background(), DefaultTimeout)
	case d.timeout < 0:
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), d.timeout)
}

// limit is the context of a call that takes none. Its error is ErrTimeout when no submission to the device
// has finished for Options.Timeout, however many are queued. The waits of this package look at Err between
// two slices; Done never ends.
type limit struct {
	context.Context
	d      *Device
	op     string
	closes bool // the call is Device.Close, whose waits go on while the device closes
	done   uint64
	since  time.Time
}

func (d *Device) limit(op string) *limit {
	return &limit{Context: context.Background(), d: d, op: op}
}

func (l *limit) Err() error {
	switch {
	case !l.closes && l.d.closing.Load():
		return closed(l.op)
	case l.d.timeout < 0:
		return nil
	}
	now, done := time.Now(), l.d.finished()
	first := l.since.IsZero() // before the wait has asked for anything
	if first || done != l.done {
		l.since, l.done = now, done
	}
	if first {
		return nil
	}
	// What another call has waited for in vain need not be waited for again.
	if now.Sub(l.since) < l.d.timeout && l.d.hung.Load() != done+1 {
		return nil
	}
	l.d.hung.Store(done + 1)
	return refuse(l.op, ErrTimeout, "the device has finished no work for %v", l.d.timeout)
}

// finished is a number that grows whenever a submission of a stream finishes.
func (d *Device) finished() (n uint64) {
	_ = d.eachStream(func(s *Stream) error {
		if v, err := s.timeline.value(); err == nil {
			n += v
		}
		return nil
	})
	return n
}

// await waits until a timeline semaphore reaches a value.
func (d *Device) await(ctx context.Context, semaphore, value uint64) error {
	for slice := firstSlice; ; slice = min(2*slice, waitSlice) {
		r := hostTimelineWait(d.c, semaphore, value, uint64(slice))
		if r != ResultTimeout {
			return d.check("vkWaitSemaphores", r)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// idle waits for the device. On a wrapped device, whose other queues this package cannot
// lock, it waits for the streams of this Device.
func (d *Device) idle(ctx context.Context) error {
	if err := d.drainPeers(ctx); err != nil {
		return err
	}
	if !d.worked.Load() {
		return nil // null drivers, which have no hardware, do not implement waits
	}
	if !d.lost.Load() {
		err := d.eachStream(func(s *Stream) error { return d.await(ctx, s.timeline.handle, s.submitted.Load()) })
		if err == nil && d.owned && d.direct.Load() {
			err = d.awaitQueue(ctx)
		}
		if err != nil && (!d.owned || !d.lost.Load()) {
			return err
		}
	}
	if !d.owned {
		return nil
	}
	// Nothing is in flight: vkDeviceWaitIdle itself, which takes no limit, returns at once.
	return d.check("vkDeviceWaitIdle", d.withQueue(func() Result { return hostWaitIdle(d.c) }))
}

// awaitQueue waits for all that was submitted to the queue, also by the caller.
func (d *Device) awaitQueue(ctx context.Context) error {
	t, err := d.newTimeline(false)
	if err != nil {
		return err
	}
	const value = 1
	var l submission
	l.signal(t, value)
	err = d.check("vkQueueSubmit", d.withQueue(func() Result {
		return hostSubmit(d.c, nil, &l)
	}))
	if err == nil {
		if err = d.await(ctx, t.handle, value); err != nil && !d.lost.Load() {
			return err // the queue still has the semaphore: it is destroyed with the device
		}
	}
	t.closed.Store(true)
	t.release()
	return err
}

// lockLife waits until no call uses the device. New calls are refused meanwhile.
func (d *Device) lockLife(ctx context.Context) error {
	for !d.life.TryLock() {
		if err := ctx.Err(); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}
