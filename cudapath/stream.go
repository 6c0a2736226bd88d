package cudapath

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Stream is a CUDA stream: its work runs in order, and concurrently with other streams. It
// is not safe for concurrent use. A stream that Context.Turn returns belongs to its Vulkan
// stream, which closes it.
type Stream struct {
	c       *Context
	handle  uint64
	shared  bool // belongs to a Vulkan stream
	wrapped bool // the caller's
	closed  atomic.Bool

	recording *recording   // gets the launches, and there is no stream; nil: the driver does
	mu        sync.RWMutex // close against poll, which comes from other goroutines
}

// NewStream creates a stream. The caller closes it.
func (c *Context) NewStream() (*Stream, error) {
	const op = "NewStream"
	if err := c.enter(op); err != nil {
		return nil, err
	}
	defer c.leave()
	return c.newStream()
}

func (c *Context) newStream() (*Stream, error) {
	s := &Stream{c: c}
	if err := c.call("cuStreamCreate", c.lib.api.cuStreamCreate, uintptr(unsafe.Pointer(&s.handle)), streamNonBlocking); err != nil {
		return nil, err
	}
	c.own(s)
	return s, nil
}

// Handle is the CUstream.
func (s *Stream) Handle() uint64 {
	if s == nil {
		return 0
	}
	return uint64(s.handle)
}

// Context is the context of the stream.
func (s *Stream) Context() *Context {
	if s == nil {
		return nil
	}
	return s.c
}

// use starts a call on an open stream. After a nil error leave of the context must follow.
func (s *Stream) use(op string) error {
	if err := s.Context().enter(op); err != nil {
		return err
	}
	switch {
	case s.closed.Load():
		s.c.leave()
		return closed(op)
	case s.recording != nil && op != launchOp:
		s.c.leave()
		return unrecorded(op + " is no launch")
	}
	return nil
}

// launchOp is the method that launches kernels.
const launchOp = "Launch"

// do makes a call on an open stream with f.
func (s *Stream) do(op string, f func() error) error {
	if err := s.use(op); err != nil {
		return err
	}
	defer s.c.leave()
	return f()
}

// WaitFor makes later work of the stream wait on the device until the timeline reaches
// value.
func (s *Stream) WaitFor(t *Semaphore, value uint64) error {
	return s.at("WaitFor", t, value, s.waitFor)
}

// SignalTo sets the timeline to value when all work of the stream so far has finished. The
// value must be above all that the timeline was set to or will be set to before.
func (s *Stream) SignalTo(t *Semaphore, value uint64) error {
	return s.at("SignalTo", t, value, s.signalTo)
}

// at makes a call on a timeline with f.
func (s *Stream) at(op string, t *Semaphore, value uint64, f func(*Semaphore, uint64) error) error {
	return s.do(op, func() error {
		if err := t.usable(op, s.c); err != nil {
			return err
		}
		return f(t, value)
	})
}

func (s *Stream) waitFor(t *Semaphore, value uint64) error {
	a := s.c.lib.api
	return s.c.check("cuWaitExternalSemaphoresAsync", a.atValue(a.cuWaitExternalSemaphoresAsync, s.c.handle, s.handle, t.handle, value))
}

func (s *Stream) signalTo(t *Semaphore, value uint64) error {
	a := s.c.lib.api
	return s.c.check("cuSignalExternalSemaphoresAsync", a.atValue(a.cuSignalExternalSemaphoresAsync, s.c.handle, s.handle, t.handle, value))
}

// CopyFromHost copies src to a device address, in order with the other work of the stream.
// src may be changed when it returns.
func (s *Stream) CopyFromHost(address uint64, src []byte) error {
	return s.do("CopyFromHost", func() error {
		if len(src) == 0 {
			return nil
		}
		return s.c.call("cuMemcpyHtoDAsync", s.c.lib.api.cuMemcpyHtoDAsync_v2,
			uintptr(address), uintptr(unsafe.Pointer(&src[0])), uintptr(len(src)), uintptr(s.handle))
	})
}

// CopyToHost copies from a device address to dst, after the earlier work of the stream. dst
// has the bytes when it returns. It waits without a bound: Wait, which takes a context, may come first.
func (s *Stream) CopyToHost(dst []byte, address uint64) error {
	return s.do("CopyToHost", func() error {
		if len(dst) == 0 {
			return nil
		}
		return s.c.check("cuMemcpyDtoHAsync", s.c.lib.api.copyOut(s.c.handle, s.handle, dst, address))
	})
}

// Copy copies bytes from one device address to another.
func (s *Stream) Copy(dst, src, bytes uint64) error {
	return s.do("Copy", func() error {
		return s.c.call("cuMemcpyDtoDAsync", s.c.lib.api.cuMemcpyDtoDAsync_v2,
			uintptr(dst), uintptr(src), uintptr(bytes), uintptr(s.handle))
	})
}

// Fill sets bytes at a device address to a repeated 32-bit word. Both are multiples of 4.
func (s *Stream) Fill(address uint64, word uint32, bytes uint64) error {
	const op = "Fill"
	return s.do(op, func() error {
		if address%4 != 0 || bytes%4 != 0 {
			return invalid(op, "%d bytes at %#x: multiples of 4 are needed", bytes, address)
		}
		return s.c.call("cuMemsetD32Async", s.c.lib.api.cuMemsetD32Async,
			uintptr(address), uintptr(word), uintptr(bytes/4), uintptr(s.handle))
	})
}

// waitSlice bounds one poll of the driver, and so the delay after which a cancelled context
// is noticed. The end of the work is noticed at once.
const waitSlice = 2 * time.Millisecond

// Wait waits until all work of the stream has finished. If ctx is done first it returns the
// context's error and the work continues.
func (s *Stream) Wait(ctx context.Context) error {
	const op = "Wait"
	if ctx == nil {
		return invalid(op, "no context")
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if done, err := s.poll(op, waitSlice); done || err != nil {
			return err
		}
	}
}

// Query reports whether all work of the stream has finished, without waiting. Unlike the other
// methods it may be called from any goroutine.
func (s *Stream) Query() (finished bool, err error) { return s.poll("Query", 0) }

// poll waits at most for a time and reports whether the stream has finished.
func (s *Stream) poll(op string, atMost time.Duration) (done bool, err error) {
	if s == nil {
		return false, unmade(op)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.use(op); err != nil {
		return false, err
	}
	defer s.c.leave()
	r := s.c.lib.api.poll(s.c.handle, s.handle, atMost)
	if r == cudaNotReady {
		return false, nil
	}
	return true, s.c.check("cuStreamQuery", r)
}

// unfinished waits for a slice of time and reports whether an open stream has work after it.
func (s *Stream) unfinished() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return !s.closed.Load() &&
		s.c.lib.api.poll(s.c.handle, s.handle, waitSlice) == cudaNotReady
}

// Close destroys the stream; its work continues. For the stream of a Vulkan stream it
// returns an error.
func (s *Stream) Close() error {
	if s == nil {
		return nil
	}
	if s.shared {
		return invalid("Close", "the stream belongs to a Vulkan stream; close that")
	}
	s.close()
	return nil
}

// close destroys the stream once.
func (s *Stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed.Swap(true) && !s.wrapped {
		s.c.drop(s)
	}
}

func (s *Stream) destroy() {
	s.c.lib.api.in(s.c.handle, s.c.lib.api.cuStreamDestroy_v2, uintptr(s.handle))
}
