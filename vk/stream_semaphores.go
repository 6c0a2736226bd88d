package vk

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
