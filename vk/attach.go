package vk

import (
	"context"
	"reflect"
	"slices"
	"sync"
)

// Attached is a value that another package attaches to a Buffer or a Device, such as an
// import of the buffer's memory into another API.
type Attached interface {
	// Detach is called once, when the buffer or device is destroyed: for a buffer after
	// all work that held it, for a device after everything made from it. It runs on any
	// goroutine that uses the device and must not use the device.
	Detach()
}

// Waiter is an Attached of a device with work of its own. Device.Close waits for it before it
// destroys anything.
type Waiter interface {
	Attached
	// Wait waits until the work has finished. If ctx is done first, which Err tells, it
	// returns the context's error. It must not use the device.
	Wait(ctx context.Context) error
}

// attachments are values by key, as in a context.Context. There are one or two.
type attachments struct {
	opening sync.Mutex // one open at a time; detach does not take it, as it may run during open

	mu   sync.RWMutex // guards what follows
	list []attachment
	gone bool
}

type attachment struct {
	key   any
	value Attached
}

func (a *attachments) get(key any) Attached {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for i := range a.list {
		if a.list[i].key == key {
			return a.list[i].value
		}
	}
	return nil
}

// add stores the value that open returns, unless there is one already.
func (a *attachments) add(op string, key any, open func() (Attached, error)) (Attached, error) {
	if open == nil || key == nil || !reflect.ValueOf(key).Comparable() {
		return nil, invalid(op, "a comparable key and a function are needed")
	}
	a.opening.Lock()
	defer a.opening.Unlock()
	if v := a.get(key); v != nil {
		return v, nil
	}
	v, err := open()
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, invalid(op, "the function made nothing")
	}
	a.mu.Lock()
	gone := a.gone
	if !gone {
		a.list = append(a.list, attachment{key, v})
	}
	a.mu.Unlock()
	if gone {
		v.Detach()
		return nil, closed(op)
	}
	return v, nil
}

// wait waits for the work of all values.
func (a *attachments) wait(ctx context.Context) error {
	a.mu.RLock()
	list := slices.Clone(a.list)
	a.mu.RUnlock()
	for _, v := range list {
		if w, ok := v.value.(Waiter); ok {
			if err := w.Wait(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// detach detaches all values, the last one first.
func (a *attachments) detach() {
	a.mu.Lock()
	list := a.list
	a.list, a.gone = nil, true
	a.mu.Unlock()
	for i := len(list) - 1; i >= 0; i-- {
		list[i].value.Detach()
	}
}

// Attached is the value that Attach made for the key; nil if there is none.
func (b *Buffer) Attached(key any) Attached {
	if b == nil {
		return nil
	}
	return b.attached.get(key)
}

// Attach returns the value of a key. If there is none, it calls open and attaches the
// value until the buffer is destroyed, that is closed and not used by any work. Keys are
// compared with ==, as context.Context compares its keys. open may use the buffer but must
// not attach to it; Attach returns its error. The error matches ErrInvalid if the key is
// nil or not comparable, or if open is nil or returns nil.
func (b *Buffer) Attach(key any, open func() (Attached, error)) (Attached, error) {
	const op = "Buffer.Attach"
	if b == nil || b.d == nil {
		return nil, unmade(op)
	}
	if v := b.attached.get(key); v != nil {
		return v, nil
	}
	if err := b.retain(); err != nil { // a concurrent Close must not destroy the buffer
		return nil, err
	}
	v, err := b.attached.add(op, key, open)
	if b.d.stay() {
		defer b.d.life.RUnlock()
		b.release()
	}
	return v, err
}

// Attached is the value that Attach made for the key; nil if there is none.
func (d *Device) Attached(key any) Attached {
	if d == nil {
		return nil
	}
	return d.attached.get(key)
}

// Attach returns the value of a key. If there is none, it calls open and attaches the
// value until the device is closed. open may use the device but must not attach to it. Its
// errors match the same sentinels as the errors of Buffer.Attach.
func (d *Device) Attach(key any, open func() (Attached, error)) (Attached, error) {
	const op = "Device.Attach"
	if d.stay() {
		d.life.RUnlock()
	} else if !d.Closed() {
		return nil, unmade(op)
	}
	if v := d.attached.get(key); v != nil {
		return v, nil
	}
	if d.Closed() {
		return nil, closed(op)
	}
	return d.attached.add(op, key, open)
}
