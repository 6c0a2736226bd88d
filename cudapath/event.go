package cudapath

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"vkattn/vk"
)

// Event records the device time at which a stream reaches a point.
type Event struct {
	c      *Context
	handle uint64
	closed atomic.Bool
}

// NewEvent creates an event. It may be recorded any number of times. The caller closes it.
func (c *Context) NewEvent() (*Event, error) {
	const op = "NewEvent"
	if err := c.enter(op); err != nil {
		return nil, err
	}
	defer c.leave()
	e := &Event{c: c}
	if err := c.call("cuEventCreate", c.lib.api.cuEventCreate, uintptr(unsafe.Pointer(&e.handle)), eventDefault); err != nil {
		return nil, err
	}
	c.own(e)
	return e, nil
}

// Record records an event in the stream: its time is when all earlier work of the stream
// has finished.
func (s *Stream) Record(e *Event) error {
	const op = "Record"
	return s.do(op, func() error {
		if e == nil || e.c != s.c || e.closed.Load() {
			return invalid(op, "no open event of this context")
		}
		return s.c.call("cuEventRecord", s.c.lib.api.cuEventRecord, uintptr(e.handle), uintptr(s.handle))
	})
}

// Since is the device time from an earlier event to this one, with a resolution of half a
// microsecond. Both must have been recorded and reached (after Stream.Wait). The error matches
// vk.ErrTimestamps for a time that is none: below 0, or longer than a Duration.
func (e *Event) Since(earlier *Event) (time.Duration, error) {
	const op = "Since"
	if e == nil {
		return 0, unmade(op)
	}
	if err := e.c.enter(op); err != nil {
		return 0, err
	}
	defer e.c.leave()
	if earlier == nil || earlier.c != e.c || e.closed.Load() || earlier.closed.Load() {
		return 0, invalid(op, "no open events of one context")
	}
	var ms float32
	err := e.c.call("cuEventElapsedTime", e.c.lib.api.cuEventElapsedTime, uintptr(unsafe.Pointer(&ms)), uintptr(earlier.handle), uintptr(e.handle))
	ns := float64(ms) * float64(time.Millisecond)
	switch {
	case err != nil:
		return 0, err
	case !(ns >= 0 && ns < math.MaxInt64): // NaN too
		return 0, refuse(op, vk.ErrTimestamps, "%v ms", float64(ms))
	}
	return time.Duration(ns), nil
}

// Close destroys the event.
func (e *Event) Close() error {
	if e != nil && !e.closed.Swap(true) {
		e.c.drop(e)
	}
	return nil
}

func (e *Event) destroy() {
	e.c.lib.api.in(e.c.handle, e.c.lib.api.cuEventDestroy_v2, uintptr(e.handle))
}
