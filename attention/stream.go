package attention

import (
	"context"

	"vkattn/internal/backend"
	"vkattn/internal/errs"
	"vkattn/vk"
)

// Stream is an order of calls on a device: each sees what the calls before it wrote. Calls may begin with Submit; on the
// CPU they are done when they return. A Stream has one owner at a time. Operations take nil for the device's default
// stream, which is locked and submits each call.
type Stream struct{ b backend.Stream }

// NewStream makes a stream. The name is for debuggers.
func (d *Device) NewStream(name string) (*Stream, error) {
	if err := d.lock(); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	return d.newStream(name)
}

func (d *Device) newStream(name string) (*Stream, error) {
	b, err := d.b.NewStream(name)
	if err != nil {
		return nil, err
	}
	return &Stream{b}, nil
}

// OnStream is the Stream of a Vulkan stream that stays the caller's, who may record work of his own into it; nil of nil.
func OnStream(s *vk.Stream) *Stream {
	if s == nil {
		return nil
	}
	return &Stream{backend.VulkanStream{Stream: s}}
}

// orderOf is a Vulkan stream as one of a backend; nil of nil.
func orderOf(s *vk.Stream) backend.Stream {
	if s == nil {
		return nil
	}
	return backend.VulkanStream{Stream: s}
}

// Vulkan returns the Vulkan stream, for copies, timestamps and dispatches of the caller's, and for [vk.Commands.Order]
// and NoBarrier; nil on the CPU. It stays the Stream's.
func (s *Stream) Vulkan() *vk.Stream {
	if s == nil || s.b == nil {
		return nil
	}
	return s.b.Vulkan()
}

// Submit begins the calls that were recorded.
func (s *Stream) Submit() error {
	if s == nil || s.b == nil {
		return errs.Unmade("NewStream")
	}
	return s.b.Submit()
}

// Wait submits and waits until all calls are done.
func (s *Stream) Wait(ctx context.Context) error {
	switch {
	case s == nil || s.b == nil:
		return errs.Unmade("NewStream")
	case ctx == nil:
		return errs.Invalid("Wait: no context")
	}
	return s.b.Wait(ctx)
}

// Close waits for the calls that were submitted and drops the others. It is idempotent.
func (s *Stream) Close() error {
	if s == nil || s.b == nil {
		return nil
	}
	return s.b.Close()
}

// on returns the stream of the backend that a call of the named method on s is made on; nil: the default stream.
func (d *Device) on(method string, s *Stream) (backend.Stream, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	switch {
	case s == nil:
		return d.b.Shared(), nil
	case s.b == nil || s.b.Device() == backend.Device(backend.Vulkan{}):
		return nil, errs.Invalid("%s: the stream was not made by a device", method)
	case s.b.Device() != d.b:
		return nil, errs.Invalid("%s: the stream is of another device", method)
	}
	return s.b, nil
}

// call makes a call with f on the stream s or, where it is nil, on the default stream.
func (d *Device) call(method string, s *Stream, f func(s backend.Stream) error) error {
	b, err := d.on(method, s)
	switch {
	case err != nil:
		return err
	case b != nil:
		return f(b)
	}
	return d.Do(func(s *Stream) error { return f(s.b) })
}

// home is a Device for the packages of this library.
type home Device

func init() {
	backend.NewDevice = func(b backend.Device) any { return &Device{b: b, owned: true} }
	backend.NewStream = func(b backend.Stream) any { return &Stream{b} }
	backend.HomeOf = func(d any) backend.Home { return (*home)(d.(*Device)) }
}

func (h *home) Backend() backend.Device { return (*Device)(h).backend() }

func (h *home) Begin(method string, stream any) (backend.Stream, error) {
	d := (*Device)(h)
	b, err := d.on(method, stream.(*Stream))
	if err != nil || b != nil {
		return b, err
	}
	if err := d.lock(); err != nil {
		return nil, err
	}
	s, err := d.defaultStream()
	if err != nil {
		d.mu.Unlock()
		return nil, err
	}
	return s.b, nil
}

func (h *home) End(stream any, err error) error {
	if d := (*Device)(h); stream.(*Stream) == nil && d.b.Shared() == nil {
		if err == nil {
			err = d.stream.Submit()
		}
		d.mu.Unlock()
	}
	return err
}
