package vk

import "sync/atomic"

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
