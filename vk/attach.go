package vk

import (
	"reflect"
	"sync"
)

// Attached is what another package keeps with a Buffer or a Device: an import of
// the buffer's memory into another API, for one.
type Attached interface {
	// Detach is called once, when its owner is destroyed: after all work that held
	// the owner, and for a device after everything made from it. It must not use the
	// device, and runs on any goroutine that does.
	Detach()
}

// attachments are values by key, as in a context.Context: there are one or two.
type attachments struct {
	opening sync.Mutex // one open at a time; not held by the owner's end, which open may meet

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

// add keeps what open makes, unless there is a value already.
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

// detach lets go of the values, the latest first.
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

// Attach returns the value for the key, made by open if there is none yet. Keys
// are compared as those of a context.Context are. The value stays until the buffer
// is destroyed: closed, and all work that uses it finished. open may use the
// buffer, but not attach to it; its error is returned as it is. ErrInvalid for a key
// that is nil or cannot be compared, and for an open that is nil or makes nothing.
func (b *Buffer) Attach(key any, open func() (Attached, error)) (Attached, error) {
	const op = "Buffer.Attach"
	if b == nil || b.d == nil {
		return nil, unmade(op)
	}
	if v := b.attached.get(key); v != nil {
		return v, nil
	}
	if err := b.retain(); err != nil { // against a Close meanwhile
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

// Attach returns the value for the key, made by open if there is none yet. It
// stays until the device is closed. open may use the device, but not attach to it.
// Errors as for Buffer.Attach.
func (d *Device) Attach(key any, open func() (Attached, error)) (Attached, error) {
	const op = "Device.Attach"
	if d == nil || d.c == nil && !d.Closed() {
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
