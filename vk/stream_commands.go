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

// semaphoreList lists timelines and values in the form that C takes. It holds the
// timelines until moveTo passes them to a batch.
type semaphoreList struct {
	timelines []*Timeline
	handles   []uint64
	values    []uint64
}

func (l *semaphoreList) add(t *Timeline, v uint64) {
	l.timelines = append(l.timelines, t)
	l.handles = append(l.handles, t.handle)
	l.values = append(l.values, v)
}

func (l *semaphoreList) moveTo(b *batch) {
	for _, t := range l.timelines {
		b.keep = append(b.keep, t)
	}
	l.clear()
}

func (l *semaphoreList) release() {
	for _, t := range l.timelines {
		t.release()
	}
	l.clear()
}

func (l *semaphoreList) clear() {
	clear(l.timelines)
	l.timelines, l.handles, l.values = l.timelines[:0], l.handles[:0], l.values[:0]
}

// Timeline is the timeline of the stream. Its value is the number of finished
// submissions. Other streams may wait for it; only the stream signals it.
func (s *Stream) Timeline() *Timeline {
	if s == nil {
		return nil
	}
	return s.timeline
}

// maxSemaphores leaves room for the semaphores of the stream and of its peer.
const maxSemaphores = maxSubmitSemaphores - 2

// WaitFor makes the next submission wait on the device until t reaches value. A value
// that only a later submission to the same device signals is never reached. The
// submission holds t. The error matches ErrInvalid for a timeline of another device, and
// for more timelines than one submission takes.
func (s *Stream) WaitFor(t *Timeline, value uint64) error {
	const op = "WaitFor"
	if s == nil {
		return unmade(op)
	}
	return s.depend(op, t, value, &s.waits)
}

// SignalTo makes the next Submit set t to value when its work has finished. The value must
// be above all values that t was set to or will be set to before; this is not checked.
// SignalTo returns the same errors as WaitFor. For the stream's own timeline the error
// matches ErrInvalid.
func (s *Stream) SignalTo(t *Timeline, value uint64) error {
	const op = "SignalTo"
	if s == nil {
		return unmade(op)
	}
	return s.depend(op, t, value, &s.signals)
}

// errOwnTimeline is the error of signalling the timeline of a stream.
func errOwnTimeline(op string) error {
	return invalid(op, "a stream's own timeline is its own to signal")
}

func (s *Stream) depend(op string, t *Timeline, value uint64, list *semaphoreList) error {
	if err := s.use(op); err != nil {
		return err
	}
	defer s.d.leave()
	if t == nil || t.d != s.d {
		return invalid(op, "no timeline of this device")
	}
	if list == &s.signals && t == s.timeline {
		return errOwnTimeline(op)
	}
	if len(list.handles) >= maxSemaphores {
		return invalid(op, "more than %d timelines in one submission", maxSemaphores)
	}
	if err := t.retain(); err != nil {
		return err
	}
	list.add(t, value)
	return nil
}
