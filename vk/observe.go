package vk

// Dispatched is a dispatch, or a launch of a cubin, that Observe timed. Ticks and Elapsed
// have its times when its batch has finished.
type Dispatched struct {
	Pipeline    *Pipeline      // open while the observer runs; nil for a launch
	Function    *CubinFunction // open while the observer runs; nil for a dispatch
	Name        string         // of the pipeline or the function
	Groups      [3]uint32      // workgroups, or CTAs
	LocalSize   [3]uint32      // invocations of a workgroup, or threads of a CTA
	SharedBytes uint32         // dynamic shared memory of a launch
	Begin, End  Mark
}

// Observe calls f with every dispatch and every launch that is recorded from now on. A nil f
// ends it. A barrier and a timestamp are recorded before each of them, and a timestamp after
// it, so that no other command of the stream overlaps it. Work that would otherwise overlap
// takes longer. f must not use the stream. The error matches ErrUnsupported if the queue has
// no timestamps.
func (s *Stream) Observe(f func(Dispatched)) error {
	const op = "Observe"
	if err := s.use(op); err != nil {
		return err
	}
	defer s.d.leave()
	if f != nil && s.d.info.Caps.Limits.TimestampValidBits == 0 {
		return unsupported(op, "the queue has no timestamps")
	}
	s.observer = f
	return nil
}

// Observed reports whether the stream has an observer.
func (s *Stream) Observed() bool { return s != nil && s.observer != nil }

// observed records a dispatch or a launch of an observed stream: with the barrier and the
// timestamps.
func (c *Commands) observed(d Dispatched, record func() error) error {
	if err := c.InnerBarrier(); err != nil {
		return err
	}
	begin, err := c.Timestamp()
	if err != nil {
		return err
	}
	if err := record(); err != nil {
		return err
	}
	end, err := c.Timestamp()
	if err != nil {
		return err
	}
	d.Begin, d.End = begin, end
	c.s.observer(d)
	return nil
}
