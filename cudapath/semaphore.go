package cudapath

import (
	"sync/atomic"
	"unsafe"

	"vkattn/vk"
)

// Semaphore is a Vulkan timeline in CUDA, which streams wait for and signal.
type Semaphore struct {
	c      *Context
	handle uint64
	closed atomic.Bool
}

// ImportTimeline imports an exportable timeline into CUDA. It leaves no file descriptor
// open. The caller closes the Semaphore; timeline and Semaphore may be closed in either
// order.
func (c *Context) ImportTimeline(t *vk.Timeline) (*Semaphore, error) {
	const op = "ImportTimeline"
	if c == nil || c.lib == nil {
		return nil, unmade(op)
	}
	if t == nil {
		return nil, invalid(op, "no timeline")
	}
	s, err := c.importTimeline(op, t)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (c *Context) importTimeline(op string, t *vk.Timeline) (*Semaphore, error) {
	fd, err := exportTimeline(t)
	if err != nil {
		return nil, err
	}
	if err := c.enter(op); err != nil {
		closeFD(fd)
		return nil, err
	}
	defer c.leave()
	s, from := &Semaphore{c: c}, &externalSemaphore{kind: timelineFD, fd: int32(fd)}
	if err := c.call("cuImportExternalSemaphore", c.lib.api.cuImportExternalSemaphore,
		uintptr(unsafe.Pointer(&s.handle)), uintptr(unsafe.Pointer(from))); err != nil {
		closeFD(fd) // the import failed and did not take it
		return nil, err
	}
	c.own(s)
	return s, nil
}

func (t *Semaphore) usable(op string, c *Context) error {
	if t == nil || t.c != c {
		return invalid(op, "no timeline of this context")
	}
	if t.closed.Load() {
		return closed(op)
	}
	return nil
}

// Close closes the import. All work that waits for it or signals it must have finished.
func (t *Semaphore) Close() error {
	if t != nil && !t.closed.Swap(true) {
		t.c.drop(t)
	}
	return nil
}

func (t *Semaphore) destroy() {
	t.c.lib.api.in(t.c.handle, t.c.lib.api.cuDestroyExternalSemaphore, uintptr(t.handle))
}
