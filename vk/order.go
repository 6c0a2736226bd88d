package vk

import "sync/atomic"

// Work that a stream orders by what it reads and writes: before a command that depends on one since the last barrier,
// a barrier is recorded. Commands that do not depend on each other may overlap.

// Ranges that are remembered between two barriers. One more has a barrier too: it then costs less than the comparisons.
const (
	maxOrderedReads  = 48
	maxOrderedWrites = 16
)

// usedRange is a range of a VkBuffer, in bytes, of whole 32-bit words: kernels read 16-bit elements by words, and write
// those of half a word by atomic operations on it. Buffers that are ranges of the same VkBuffer may overlap.
type usedRange struct{ handle, from, to uint64 }

func (a *usedRange) overlaps(b *usedRange) bool {
	return a.handle == b.handle && a.from < b.to && b.from < a.to
}

// uses are the ranges that ordered work has read and written since the last barrier.
type uses struct {
	reads, writes []usedRange
	untold        bool // and work that was recorded with NoBarrier may have used any
}

// depends reports whether work that reads and writes these ranges depends on what is remembered, or has no room in it.
func (u *uses) depends(reads, writes []BufferRange) bool {
	if u.untold {
		return true
	}
	if len(u.reads)+len(reads) > maxOrderedReads || len(u.writes)+len(writes) > maxOrderedWrites {
		return len(u.reads)+len(u.writes) > 0
	}
	for i := range reads {
		if s, ok := usedRangeOf(&reads[i]); ok && s.overlapsAny(u.writes) {
			return true
		}
	}
	for i := range writes {
		if s, ok := usedRangeOf(&writes[i]); ok && (s.overlapsAny(u.writes) || s.overlapsAny(u.reads)) {
			return true
		}
	}
	return false
}

func (a *usedRange) overlapsAny(list []usedRange) bool {
	for i := range list {
		if a.overlaps(&list[i]) {
			return true
		}
	}
	return false
}

// add remembers ranges, as many as there is room for: who has more calls Order again only behind a barrier.
func (u *uses) add(reads, writes []BufferRange) {
	for i := range reads {
		if s, ok := usedRangeOf(&reads[i]); ok {
			u.reads = append(u.reads, s)
		}
	}
	for i := range writes {
		if s, ok := usedRangeOf(&writes[i]); ok {
			u.writes = append(u.writes, s)
		}
	}
}

func (u *uses) clear() { u.reads, u.writes, u.untold = u.reads[:0], u.writes[:0], false }

// usedRangeOf returns the words of a range in its buffer; false for no buffer, and for a range outside of it.
func usedRangeOf(r *BufferRange) (usedRange, bool) {
	if r.Buffer == nil || r.Offset >= r.Buffer.size {
		return usedRange{}, false
	}
	size := r.Buffer.size - r.Offset
	if r.Size != 0 {
		size = min(size, r.Size)
	}
	at := r.Buffer.offset + r.Offset
	return usedRange{r.Buffer.handle, at &^ 3, alignUp(at+size, 4)}, true
}

// Order orders the commands recorded next behind earlier ones of the stream that Order, or a call of an operation such
// as attention.Op.Forward, has told of: if they read what those write, or write what those read or write, a barrier is
// recorded. Otherwise the commands may overlap. Who records dispatches of his own between such calls tells what they
// read and write; a size of 0 means up to the end of the buffer. Copy, Fill, Upload and Download of a stream order
// themselves. Two VkBuffers over the same memory are not seen to overlap. With Stream.NoBarrier, and in a command buffer
// of the caller's, Order does nothing. When NoBarrier is taken back, the next commands come behind all that was recorded
// with it.
//
// The error matches ErrInvalid for a buffer of another device and ErrClosed for a closed stream.
func (c *Commands) Order(reads, writes []BufferRange) error {
	const op = "Order"
	if c.Device() == nil {
		return unmade(op)
	}
	if !c.Ordered() {
		return nil
	}
	if err := c.d.enter(op); err != nil {
		return err
	}
	defer c.d.leave()
	if c.s.closed {
		return closed(op)
	}
	for _, list := range [2][]BufferRange{reads, writes} {
		for i := range list {
			if b := list[i].Buffer; b != nil && b.d != c.d {
				return invalid(op, "a buffer of another device")
			}
		}
	}
	b, err := c.record(op)
	if err != nil {
		return err
	}
	c.follow(b, reads, writes)
	return nil
}

// follow is Order for buffers of the device. The caller has entered it.
func (c *Commands) follow(b *batch, reads, writes []BufferRange) {
	if !c.Ordered() {
		return
	}
	if c.s.uses.depends(reads, writes) { // a batch begins with a barrier
		c.barrier(b)
	}
	c.s.uses.add(reads, writes)
}

// Ordered reports whether Order does anything: whether the commands are a stream's without NoBarrier.
func (c *Commands) Ordered() bool { return c != nil && c.s != nil && !c.s.NoBarrier }

// Barriers is the number of barriers that the stream has recorded, among them one at the start of each batch. It shows
// which calls may overlap.
func (s *Stream) Barriers() int {
	if s.commands() == nil {
		return 0
	}
	return s.barriers
}

// Resource is something that work in flight can hold: a *Buffer, a *Pipeline, a
// *Cubin, a *CubinFunction, a *Timeline, or the result of OnDone.
type Resource interface {
	// retain adds a holder. It returns an error if the resource is closed.
	retain() error
	// release removes a holder; the last one destroys the resource. The device is
	// entered, or closing.
	release()
	// seen reports whether the batch holds the resource already, and notes that it
	// does now.
	seen(batch uint64) bool
}

// refs counts holders: the owner, and each batch in flight that uses the object.
type refs struct {
	n     atomic.Int64
	batch atomic.Uint64
}

func (r *refs) acquire() bool {
	for {
		n := r.n.Load()
		if n == 0 {
			return false
		}
		if r.n.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// drop reports whether that was the last holder.
func (r *refs) drop() bool { return r.n.Add(-1) == 0 }

// seen keeps a batch from holding the same object once per dispatch. If two batches are
// recorded alternately they may hold it several times, which costs a slot in a list.
func (r *refs) seen(batch uint64) bool { return r.batch.Swap(batch) == batch }

// made reports whether r was returned by a constructor, and is not nil or a zero value.
func made(r Resource) bool {
	switch r := r.(type) {
	case nil:
		return false
	case *Buffer:
		return r != nil && r.d != nil
	case *Pipeline:
		return r.device() != nil
	case *Cubin:
		return r != nil && r.d != nil
	case *CubinFunction:
		return r != nil && r.cubin != nil
	case *Timeline:
		return r != nil && r.d != nil
	}
	return true
}

// OnDone returns a Resource for Keep: f is called once, when the work recorded so far has
// finished or was dropped. f runs on any goroutine that uses the device and must not use
// the device.
func OnDone(f func()) Resource { return &onDone{f: f} }

type onDone struct {
	f func()
	n atomic.Int64
}

func (o *onDone) retain() error { o.n.Add(1); return nil }

func (o *onDone) release() {
	if o.n.Add(-1) == 0 && o.f != nil {
		o.f()
	}
}

func (o *onDone) seen(uint64) bool { return false }
