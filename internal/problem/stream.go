package problem

import (
	"context"

	"vkattn/internal/errs"
	"vkattn/vk"
)

// Stream is attention.Stream, whose comment documents it.
type Stream struct{ b StreamBacking }

// StreamBacking is the stream as its device has it, a backend.Stream.
type StreamBacking interface {
	Vulkan() *vk.Stream // nil on a device that is not Vulkan's
	Submit() error
	Wait(ctx context.Context) error // it submits first
	Close() error
}

// NewStream is the Stream of a backing.
func NewStream(b StreamBacking) *Stream { return &Stream{b} }

// StreamBackingOf returns what NewStream was given, nil of nil.
func StreamBackingOf(s *Stream) StreamBacking {
	if s == nil {
		return nil
	}
	return s.b
}

// Vulkan is nil of nil.
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

// Close is idempotent.
func (s *Stream) Close() error {
	if s == nil || s.b == nil {
		return nil
	}
	return s.b.Close()
}
