package vk

// The methods of Commands, written out for Stream: promoted methods of a nil *Stream would
// dereference the nil pointer.

// commands is the Commands of the stream, nil for a nil Stream.
func (s *Stream) commands() *Commands {
	if s == nil || s.Commands == nil || s.Commands.s != s {
		return nil
	}
	return s.Commands
}

// Device is the device of the stream.
func (s *Stream) Device() *Device { return s.commands().Device() }

// Barrier is [Commands.Barrier].
func (s *Stream) Barrier() error { return s.commands().Barrier() }

// Copy is [Commands.Copy].
func (s *Stream) Copy(dst, src BufferRange) error { return s.commands().Copy(dst, src) }

// Dispatch is [Commands.Dispatch].
func (s *Stream) Dispatch(p *Pipeline, buffers []BufferRange, push []byte, groups [3]uint32, keep ...Resource) error {
	return s.commands().Dispatch(p, buffers, push, groups, keep...)
}

// Fill is [Commands.Fill].
func (s *Stream) Fill(dst BufferRange, word uint32) error { return s.commands().Fill(dst, word) }

// InnerBarrier is [Commands.InnerBarrier].
func (s *Stream) InnerBarrier() error { return s.commands().InnerBarrier() }

// Keep is [Commands.Keep].
func (s *Stream) Keep(list ...Resource) error { return s.commands().Keep(list...) }

// Label is [Commands.Label].
func (s *Stream) Label(name string) (end func()) { return s.commands().Label(name) }

// Launch is [Commands.Launch].
func (s *Stream) Launch(f *CubinFunction, l CubinLaunch, params []byte, keep ...Resource) error {
	return s.commands().Launch(f, l, params, keep...)
}

// Order is [Commands.Order].
func (s *Stream) Order(reads, writes []BufferRange) error { return s.commands().Order(reads, writes) }

// Params is [Commands.Params].
func (s *Stream) Params(data []byte) (BufferRange, error) { return s.commands().Params(data) }

// Release returns an error: see [Stream.Close].
func (s *Stream) Release() error { return s.commands().Release() }

// Reserve is [Commands.Reserve].
func (s *Stream) Reserve(dispatches, buffers int) error {
	return s.commands().Reserve(dispatches, buffers)
}

// Reset returns an error: see [Stream.Submit].
func (s *Stream) Reset() error { return s.commands().Reset() }

// Scratch is [Commands.Scratch].
func (s *Stream) Scratch(zeros, size uint64) (b *Buffer, first uint64, err error) {
	return s.commands().Scratch(zeros, size)
}

// Timestamp is [Commands.Timestamp].
func (s *Stream) Timestamp() (Mark, error) { return s.commands().Timestamp() }
