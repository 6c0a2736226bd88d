package attention

import (
	"vkattn/internal/backend"
	"vkattn/internal/errs"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Stream is an order of calls on a device: each sees what the calls before it wrote. Calls may begin with Submit; on the
// CPU they are done when they return. A Stream has one owner at a time. Operations take nil for the device's default
// stream, which is locked and submits each call.
//
//	func (s *Stream) Submit() error                   // begins the calls that were recorded
//	func (s *Stream) Wait(ctx context.Context) error  // submits and waits until all calls are done
//	func (s *Stream) Close() error                    // waits for the calls that were submitted and drops the others; idempotent
//
//	// Vulkan returns the Vulkan stream, for copies, timestamps and dispatches of the caller's, and for
//	// vk.Commands.Order and NoBarrier; nil where the device is not Vulkan's. It stays the Stream's.
//	func (s *Stream) Vulkan() *vk.Stream
type Stream = problem.Stream

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
	return problem.NewStream(b), nil
}

// OnStream is the Stream of a Vulkan stream that stays the caller's, who may record work of his own into it; nil of nil.
func OnStream(s *vk.Stream) *Stream {
	if s == nil {
		return nil
	}
	return problem.NewStream(backend.VulkanStream{Stream: s})
}

// orderOf is a Vulkan stream as one of a backend; nil of nil.
func orderOf(s *vk.Stream) backend.Stream {
	if s == nil {
		return nil
	}
	return backend.VulkanStream{Stream: s}
}

// on returns the stream of the backend that a call of the named method on s is made on; nil: the default stream.
func (d *Device) on(method string, s *Stream) (backend.Stream, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if s == nil {
		return d.b.Shared(), nil
	}
	return d.takes(method, problem.StreamBackingOf(s))
}

// takes returns a stream of this device's backend.
func (d *Device) takes(method string, s problem.StreamBacking) (backend.Stream, error) {
	b, ok := s.(backend.Stream)
	switch {
	case !ok || b.Device() == backend.Device(backend.Vulkan{}):
		return nil, errs.Invalid("%s: the stream was not made by a device", method)
	case b.Device() != d.b:
		return nil, errs.Invalid("%s: the stream is of another device", method)
	}
	return b, nil
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
	return d.Do(func(*Stream) error { return f(d.order) })
}

// home is a Device for the packages of this library.
type home Device

func init() {
	backend.NewDevice = func(b backend.Device) any { return &Device{b: b, owned: true} }
	backend.HomeOf = func(d any) backend.Home { return (*home)(d.(*Device)) }
}

func (h *home) Backend() backend.Device { return (*Device)(h).backend() }

func (h *home) Begin(method string, s problem.StreamBacking, byDefault bool) (backend.Stream, error) {
	d := (*Device)(h)
	if err := d.usable(); err != nil {
		return nil, err
	}
	if !byDefault {
		return d.takes(method, s)
	}
	if shared := d.b.Shared(); shared != nil {
		return shared, nil
	}
	if err := d.lock(); err != nil {
		return nil, err
	}
	if _, err := d.defaultStream(); err != nil {
		d.mu.Unlock()
		return nil, err
	}
	return d.order, nil
}

func (h *home) End(byDefault bool, err error) error {
	if d := (*Device)(h); byDefault && d.b.Shared() == nil {
		if err == nil {
			err = d.order.Submit()
		}
		d.mu.Unlock()
	}
	return err
}
