package vk

import (
	"context"
	"sync/atomic"
	"time"
)

// Timeline is a timeline semaphore: a number that only grows, which streams and the host
// signal and wait for. It is safe for concurrent use.
type Timeline struct {
	refs
	d          *Device
	handle     uint64
	exportable bool
	lent       bool // of a stream, which closes it
	closed     atomic.Bool
	gone       bool // destroyed; under d.mu
}

// NewTimeline creates a timeline with value 0. The caller closes it. An exportable one
// needs Caps.ExternalSemaphoreFd; without it the error matches ErrUnsupported.
func (d *Device) NewTimeline(exportable bool) (*Timeline, error) {
	const op = "NewTimeline"
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.leave()
	if exportable && !d.info.Caps.ExternalSemaphoreFd {
		return nil, unsupported(op, "the device cannot export timeline semaphores as file descriptors")
	}
	return d.newTimeline(exportable)
}

func (d *Device) newTimeline(exportable bool) (*Timeline, error) {
	t := &Timeline{d: d, exportable: exportable}
	if err := d.check("vkCreateSemaphore", hostCreateTimeline(d.c, exportable, &t.handle)); err != nil {
		return nil, err
	}
	t.n.Store(1)
	d.mu.Lock()
	d.timelines[t] = struct{}{}
	d.mu.Unlock()
	return t, nil
}

// Handle is the VkSemaphore.
func (t *Timeline) Handle() uint64 {
	if t == nil {
		return 0
	}
	return t.handle
}

// use starts a call on an open timeline and holds it: another goroutine may close it during
// the call. After a nil error leave must follow.
func (t *Timeline) use(op string) error {
	if t == nil {
		return unmade(op)
	}
	if err := t.d.enter(op); err != nil {
		return err
	}
	if t.retain() != nil {
		t.d.leave()
		return closed(op)
	}
	return nil
}

func (t *Timeline) leave() {
	t.release()
	t.d.leave()
}

// Value returns the current value without waiting.
func (t *Timeline) Value() (uint64, error) {
	if err := t.use("Timeline.Value"); err != nil {
		return 0, err
	}
	defer t.leave()
	return t.value()
}

func (t *Timeline) value() (uint64, error) {
	v, r := hostTimelineValue(t.d.c, t.handle)
	return v, t.d.check("vkGetSemaphoreCounterValue", r)
}

// Signal sets the value from the host. It must be above the current value, or the error
// matches ErrInvalid, and below the values of all pending signals of queues. For the timeline
// of a stream the error matches ErrInvalid too.
func (t *Timeline) Signal(value uint64) error {
	const op = "Timeline.Signal"
	if err := t.use(op); err != nil {
		return err
	}
	defer t.leave()
	if t.lent {
		return errOwnTimeline(op)
	}
	now, err := t.value()
	if err != nil {
		return err
	}
	if value <= now {
		return invalid(op, "to %d, and the value is %d", value, now)
	}
	return t.set(value)
}

func (t *Timeline) set(value uint64) error {
	return t.d.check("vkSignalSemaphore", hostTimelineSignal(t.d.c, t.handle, value))
}

// Wait waits until the value is reached. If ctx is done first it returns the context's
// error; if the timeline or the device is closed first, the error matches ErrClosed.
func (t *Timeline) Wait(ctx context.Context, value uint64) error {
	const op = "Timeline.Wait"
	if err := checkContext(op, ctx); err != nil {
		return err
	}
	if err := t.use(op); err != nil {
		return err
	}
	defer t.leave()
	_, err := t.wait(ctx, op, value, nil)
	return err
}

// waitSlice bounds one blocking call of Vulkan, and so the delay after which a cancelled
// context or a closing device is noticed. A reached value is noticed at once.
const (
	waitSlice  = 10 * time.Millisecond
	firstSlice = 100 * time.Microsecond
)

// wait also ends, with dead set, if a peer on which the value depends will never finish.
func (t *Timeline) wait(ctx context.Context, op string, value uint64, peer Peer) (dead bool, err error) {
	slice := waitSlice
	if t.exportable {
		// If another API signals the timeline, a driver may notice it only after its
		// wait has timed out.
		slice = firstSlice
	}
	for {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if t.d.closing.Load() {
			return false, closed(op)
		}
		r := hostTimelineWait(t.d.c, t.handle, value, uint64(slice))
		if r != ResultTimeout {
			return false, t.d.check("vkWaitSemaphores", r)
		}
		if t.closed.Load() {
			return false, closed(op)
		}
		slice = min(2*slice, waitSlice)
		if peer != nil {
			if _, err := peer.Poll(0); err != nil {
				return true, err
			}
		}
	}
}

// Close closes the timeline. Work in flight holds it until it has finished. It does nothing
// for the timeline of a stream.
func (t *Timeline) Close() error {
	if t == nil || t.lent || t.closed.Swap(true) || !t.d.stay() {
		return nil
	}
	defer t.d.life.RUnlock()
	t.release()
	return nil
}

func (t *Timeline) retain() error {
	if t.closed.Load() || !t.acquire() {
		return closed("use of a timeline")
	}
	return nil
}

func (t *Timeline) release() {
	if t.drop() {
		t.d.mu.Lock()
		delete(t.d.timelines, t)
		t.destroy()
		t.d.mu.Unlock()
	}
}

// destroy destroys the semaphore once.
func (t *Timeline) destroy() {
	if !t.gone {
		t.gone = true
		t.d.c.destroy(t.d.c.DestroySemaphore, t.handle)
	}
}
