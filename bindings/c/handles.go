//go:build cgo && linux

package main

// #include "calls.h"
import "C"

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"vkattn/internal/errs"
)

// kind is what a handle stands for: C.KIND_DEVICE and so on.
type kind int

var kindNames = [...]string{"device", "op", "buffer", "stream", "requirements", "call", "append"}

func (k kind) String() string { return kindNames[k] }

// object is what a handle stands for. Calls hold it for reading, or, if only one thread at a time may use it, for
// writing; destroying holds it for writing.
type object struct {
	id    uintptr
	kind  kind
	home  *object // the device that it is of; nil: none
	value io.Closer

	mu   sync.RWMutex
	gone bool
	slot *C.vka_slot // what C has of it; nil: nothing
}

// publish lets C use an object without Go, with data in C's memory, which is freed with the object. The caller holds the object.
func (o *object) publish(data unsafe.Pointer) {
	objects.Lock()
	defer objects.Unlock()
	s := &C.vka_slots[uint64(o.id)%C.SLOTS]
	if s.data != nil {
		C.free(data)
		return
	}
	o.slot, s.data = s, data
	atomic.StoreUint64((*uint64)(&s.key), o.key())
}

// key is the object's in its slot.
func (o *object) key() uint64 {
	if o.kind == C.KIND_STREAM {
		return 2*uint64(o.id) + 1
	}
	return 2 * uint64(o.id)
}

// retract leaves objects to Go again. If C uses one of them, it leaves them as they were and returns that one.
func retract(list []*object) (used *object) {
	keys := make([]uint64, len(list))
	for i, o := range list {
		if o.slot == nil {
			continue
		}
		keys[i] = atomic.SwapUint64((*uint64)(&o.slot.key), 0)
		if atomic.LoadUint32((*uint32)(&o.slot.users)) > 0 {
			used = o
			break
		}
	}
	for i, key := range keys {
		if used != nil && key != 0 {
			atomic.StoreUint64((*uint64)(&list[i].slot.key), key)
		}
	}
	return used
}

// tryLock is TryLock of an object that one thread at a time uses, in Go or in C.
func (o *object) tryLock() bool {
	if !o.mu.TryLock() {
		return false
	}
	if o.slot != nil && !atomic.CompareAndSwapUint32((*uint32)(&o.slot.users), 0, 1) {
		o.mu.Unlock()
		return false
	}
	return true
}

func (o *object) unlock() {
	if o.slot != nil {
		o.value.(*stream).share((*C.vka_stream)(o.slot.data))
		atomic.AddUint32((*uint32)(&o.slot.users), ^uint32(0))
	}
	o.mu.Unlock()
}

// objects are those of handles. A handle is a number that is never used again, so that one that was destroyed is none.
var objects = struct {
	sync.Mutex
	last uintptr
	live map[uintptr]*object
}{live: map[uintptr]*object{}}

// handle stores a handle of a new object in out, which the caller has checked.
func handle(out unsafe.Pointer, k kind, home *object, value io.Closer) *object {
	objects.Lock()
	defer objects.Unlock()
	objects.last++
	o := &object{id: objects.last, kind: k, home: home, value: value}
	objects.live[o.id] = o
	*(*uintptr)(out) = o.id
	return o
}

// find returns the object of a handle.
func find(h unsafe.Pointer, k kind) (*object, error) {
	objects.Lock()
	defer objects.Unlock()
	o := objects.live[uintptr(h)]
	switch {
	case h == nil:
		return nil, invalid("the %v is NULL", k)
	case o == nil && uintptr(h) <= objects.last:
		return nil, invalid("the %v was destroyed", k)
	case o == nil:
		return nil, invalid("%#x is no handle of kind %v", uintptr(h), k)
	case o.kind != k:
		return nil, invalid("the handle is of kind %v, want %v", o.kind, k)
	}
	return o, nil
}

// call holds the objects that a call uses.
type call struct{ held []func() }

func (c *call) end() {
	for i := len(c.held) - 1; i >= 0; i-- {
		c.held[i]()
	}
}

// hold keeps the object of a handle, and its device, from being destroyed until the call ends.
func hold[T io.Closer](c *call, h unsafe.Pointer, k kind) (*object, T, error) {
	var none T
	o, err := find(h, k)
	if err != nil {
		return nil, none, err
	}
	if o.home != nil {
		if err := c.lock(o.home); err != nil {
			return nil, none, err
		}
	}
	if err := c.lock(o); err != nil {
		return nil, none, err
	}
	return o, o.value.(T), nil
}

// using makes a call with f on the object of a handle, which it holds.
func using[T io.Closer](h unsafe.Pointer, k kind, f func(o *object, x T) error) C.vkattn_status {
	return status(func() error {
		c := call{}
		defer c.end()
		o, x, err := hold[T](&c, h, k)
		if err != nil {
			return err
		}
		return f(o, x)
	})
}

func (c *call) lock(o *object) error {
	lock, unlock := o.mu.TryRLock, o.mu.RUnlock
	if o.kind == C.KIND_STREAM {
		lock, unlock = o.tryLock, o.unlock
	}
	if !lock() {
		return busy("another thread uses or destroys the %v", o.kind)
	}
	c.held = append(c.held, unlock)
	if o.gone {
		return invalid("the %v was destroyed", o.kind)
	}
	return nil
}

// of are the objects of a device, newest first.
func of(home *object) (list []*object) {
	objects.Lock()
	defer objects.Unlock()
	for _, o := range objects.live {
		if o.home == home {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b *object) int { return cmp.Compare(b.id, a.id) })
	return list
}

// destroy destroys an object, a device with those that are of it.
func (o *object) destroy() error {
	c := call{}
	defer c.end()
	if o.home != nil {
		if err := c.lock(o.home); err != nil {
			return err
		}
	}
	if !o.mu.TryLock() {
		return busy("another thread uses the %v", o.kind)
	}
	defer o.mu.Unlock()
	if o.gone {
		return invalid("the %v was destroyed", o.kind)
	}
	needing := of(o)
	if op, ok := o.value.(*operation); ok {
		needing = op.calls(o)
	}
	if used := retract(append(needing, o)); used != nil {
		return busy("another thread uses the %v", used.kind)
	}
	if o.kind == C.KIND_DEVICE {
		for _, child := range needing { // no call uses them: it would hold the device
			_ = child.drop()
		}
	}
	return o.drop()
}

// drop closes an object that no call uses, and not C.
func (o *object) drop() error {
	objects.Lock()
	delete(objects.live, o.id)
	if o.slot != nil {
		C.free(o.slot.data)
		o.slot.data = nil
	}
	objects.Unlock()
	o.gone, o.slot = true, nil
	return o.value.Close()
}

//export goDestroy
func goDestroy(h unsafe.Pointer, k C.int) C.vkattn_status {
	return status(func() error {
		if h == nil {
			return nil
		}
		o, err := find(h, kind(k))
		if err != nil {
			return err
		}
		return o.destroy()
	})
}

// bytes is n bytes of C memory. What C gives out lies in the address space, and a slice of it must.
func bytes(p unsafe.Pointer, n uint64, what string) ([]byte, error) {
	switch {
	case p == nil && n == 0:
		return []byte{}, nil
	case p == nil:
		return nil, invalid("%s is NULL, with %d bytes", what, n)
	case n > math.MaxInt64 || uintptr(p)+uintptr(n) < uintptr(p):
		return nil, invalid("%s has %d bytes, which no memory has", what, n)
	}
	return unsafe.Slice((*byte)(p), n), nil
}

// taken returns a copy of a struct whose first member is its size.
func taken[T any](p *T, what string) (none T, err error) {
	if err := sized(p, what); err != nil {
		return none, err
	}
	return *p, nil
}

// sized checks the size of a struct. A library that adds members takes the smaller sizes of earlier ones.
func sized[T any](p *T, what string) error {
	if p == nil {
		return invalid("%s is NULL", what)
	}
	if got, want := *(*C.size_t)(unsafe.Pointer(p)), C.size_t(unsafe.Sizeof(*p)); got != want {
		return invalid("%s->size is %d, want %d, the sizeof of the struct", what, got, want)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return &fault{C.VKATTN_ERROR_INVALID, fmt.Sprintf(format, args...), errs.ErrInvalid}
}

func busy(format string, args ...any) error {
	return &fault{C.VKATTN_ERROR_BUSY, fmt.Sprintf(format, args...), nil}
}
