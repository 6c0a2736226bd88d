package vk

// Dispatch records a dispatch of groups workgroups of a pipeline. buffers are bindings 0
// to n-1 of set 0; push is the whole block of push constants. Dispatch checks group
// counts, ranges, alignments and the sizes of both lists. It cannot check addresses
// inside push: pass the buffers that they point to as keep. If a group count is 0 nothing
// is recorded. The batch holds pipeline, buffers and keep until it has finished. Dispatch
// does not allocate once the stream has recorded a batch of the same size.
func (c *Commands) Dispatch(p *Pipeline, buffers []BufferRange, push []byte, groups [3]uint32, keep ...Resource) error {
	if c != nil && c.s != nil && c.s.observer != nil {
		return c.observed(Dispatched{Pipeline: p, Name: p.Name(), Groups: groups, LocalSize: p.LocalSize()},
			func() error { return c.dispatch(p, buffers, push, groups, keep...) })
	}
	return c.dispatch(p, buffers, push, groups, keep...)
}

func (c *Commands) dispatch(p *Pipeline, buffers []BufferRange, push []byte, groups [3]uint32, keep ...Resource) error {
	const op = "Dispatch"
	b, err := c.enter(op)
	if err != nil {
		return err
	}
	d := c.d
	defer d.leave()
	if err := d.checkDispatch(op, p, buffers, push, groups); err != nil {
		return err
	}
	if groups[0] == 0 || groups[1] == 0 || groups[2] == 0 {
		return nil
	}
	if p.closed.Load() {
		return closed(op + ": pipeline")
	}
	for _, r := range keep {
		if err := b.hold(r); err != nil {
			return err
		}
	}
	if err := b.hold(p.compiled); err != nil {
		return err
	}
	if len(buffers) > 0 {
		for i := range buffers {
			if err := b.hold(buffers[i].Buffer); err != nil {
				return err
			}
			at, size, _ := buffers[i].resolve()
			b.handles[i] = buffers[i].Buffer.handle
			b.starts[i] = buffers[i].Buffer.offset + at
			// Round up to a whole word within the buffer: see padding.
			b.ranges[i] = min(alignUp(size, 4), buffers[i].Buffer.capacity-at)
		}
		if err := b.descriptorSet(d, p.sets, uint32(len(buffers))); err != nil {
			return err
		}
	}
	hostCmdDispatch(d.c, &b.recorder, p.handle, p.layout, len(buffers) > 0, push, &groups)
	return nil
}

func (d *Device) checkDispatch(op string, p *Pipeline, buffers []BufferRange, push []byte, groups [3]uint32) error {
	l := &d.info.Caps.Limits
	if p.device() != d {
		return invalid(op, "no pipeline of this device")
	}
	for i, n := range groups {
		if n > l.MaxWorkGroupCount[i] {
			return invalid(op, "%s: %v groups, the device allows %v", p.name, groups, l.MaxWorkGroupCount)
		}
	}
	if uint32(len(push)) != p.push {
		return invalid(op, "%s: %d bytes of push constants for %d", p.name, len(push), p.push)
	}
	if uint32(len(buffers)) != p.nbindings {
		return invalid(op, "%s: %d buffers for %d bindings", p.name, len(buffers), p.nbindings)
	}
	for i := range buffers {
		at, size, err := d.checkRange(op, buffers[i])
		if err != nil {
			return err
		}
		if (buffers[i].Buffer.offset+at)%l.MinStorageBufferOffsetAlignment != 0 {
			return invalid(op, "%s: binding %d at offset %d, not a multiple of %d", p.name, i, at, l.MinStorageBufferOffsetAlignment)
		}
		if size > l.MaxStorageBufferRange {
			return invalid(op, "%s: binding %d of %d bytes, the device allows %d", p.name, i, size, l.MaxStorageBufferRange)
		}
	}
	return nil
}

// Reserve allocates descriptors for the given number of dispatches with the given number
// of buffers each, so that none of them fails for lack of descriptors: an operation of
// several dispatches is then recorded completely or not at all.
func (c *Commands) Reserve(dispatches, buffers int) error {
	const op = "Reserve"
	b, err := c.enter(op)
	if err != nil {
		return err
	}
	defer c.d.leave()
	switch {
	case dispatches < 0 || buffers < 0 || buffers > maxBindings:
		return invalid(op, "%d dispatches of %d buffers", dispatches, buffers)
	case buffers == 0:
		return nil
	}
	return b.reserve(c.d, dispatches, uint32(buffers))
}
