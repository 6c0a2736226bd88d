package vk

import "sync/atomic"

// Resource is what work in flight can hold: a *Buffer, a *Pipeline, a *Timeline,
// or a function made with OnDone.
type Resource interface {
	// retain adds a holder, or says that the resource is closed.
	retain() error
	// release drops one; the last destroys. The device is entered, or closing.
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

// seen spares a batch from holding the same object once per dispatch. Two batches
// recorded in turn may hold it several times, which costs a slot in a list.
func (r *refs) seen(batch uint64) bool { return r.batch.Swap(batch) == batch }

// made reports whether r is an object of a constructor: a nil pointer, or a zero value,
// has no state that could be looked at.
func made(r Resource) bool {
	switch r := r.(type) {
	case nil:
		return false
	case *Buffer:
		return r != nil && r.d != nil
	case *Pipeline:
		return r.device() != nil
	case *Timeline:
		return r != nil && r.d != nil
	}
	return true
}

// OnDone makes a Resource of a function: given to Keep, f is called once the work
// recorded so far has finished or was given up. It must not use the device, and
// runs on any goroutine that does.
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
