package vk

// Dispatched is a dispatch that Observe timed. Ticks and Elapsed have its times when its
// batch has finished.
type Dispatched struct {
	Pipeline   *Pipeline // open while the observer runs
	Name       string    // of the pipeline
	Groups     [3]uint32
	Begin, End Mark
}

// Observe calls f with every dispatch that is recorded from now on. A nil f ends it. A
// barrier and a timestamp are recorded before each such dispatch, and a timestamp after
// it, so that no other command of the stream overlaps it. Work that would otherwise
// overlap takes longer. f must not use the stream. The error matches ErrUnsupported if the
// queue has no timestamps.
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

// observed is Dispatch of an observed stream.
func (c *Commands) observed(p *Pipeline, buffers []BufferRange, push []byte, groups [3]uint32, keep ...Resource) error {
	if err := c.Barrier(); err != nil {
		return err
	}
	begin, err := c.Timestamp()
	if err != nil {
		return err
	}
	if err := c.dispatch(p, buffers, push, groups, keep...); err != nil {
		return err
	}
	end, err := c.Timestamp()
	if err != nil {
		return err
	}
	c.s.observer(Dispatched{Pipeline: p, Name: p.name, Groups: groups, Begin: begin, End: end})
	return nil
}
