package vk

// Commands records work into a stream's current batch or into the caller's command
// buffer. It is not safe for concurrent use. Recorded commands may run in any order
// unless a Barrier separates them, or, on a stream, Order.
type Commands struct {
	d        *Device
	s        *Stream // nil: the caller's command buffer, or that of a Recording
	b        *batch  // nil: nothing recorded since the last submission
	released bool    // Release was called
	launched bool    // a launch was recorded
}

// WrapCommands returns a Commands that records into the caller's command buffer, which
// must be in the recording state and of the device's queue family. Its descriptor sets
// and the resources it holds live until Release. Call Release when the command buffer has
// executed or will not be executed.
func (d *Device) WrapCommands(cb VkCommandBuffer) (*Commands, error) {
	const op = "WrapCommands"
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.leave()
	if cb == 0 {
		return nil, invalid(op, "no command buffer")
	}
	c := &Commands{d: d, b: &batch{id: d.batches.Add(1), recorder: recorder{commands: cb}}}
	d.mu.Lock()
	d.wrapped[c] = struct{}{}
	d.mu.Unlock()
	return c, nil
}

// Release frees the descriptor sets and the resources of a wrapped command buffer. On a
// stream it returns an error.
func (c *Commands) Release() error {
	if c != nil && c.s != nil {
		return invalid("Release", "the commands are a stream's; Close that")
	}
	if c.recording() != nil {
		return invalid("Release", "the commands are a Recording's; Close that")
	}
	if !c.Device().stay() {
		return nil
	}
	defer c.d.life.RUnlock()
	if c.released {
		return nil
	}
	c.d.mu.Lock()
	delete(c.d.wrapped, c)
	c.d.mu.Unlock()
	c.destroy()
	return nil
}

// Reset prepares for recording a wrapped command buffer again. Call it when the command
// buffer has executed or will not be executed, and after vkBeginCommandBuffer. It releases
// held resources but keeps descriptor pools and other memory for the next recording. On a
// stream it returns an error.
func (c *Commands) Reset() error {
	const op = "Reset"
	if c != nil && c.s != nil {
		return invalid(op, "the commands are a stream's; Submit those")
	}
	if c.recording() != nil {
		return invalid(op, "the commands are a Recording's; make another one")
	}
	if err := c.Device().enter(op); err != nil {
		return err
	}
	defer c.d.leave()
	if c.released {
		return closed(op)
	}
	c.b.drop()
	c.b.id = c.d.batches.Add(1)
	return c.b.reset(c.d)
}

func (c *Commands) destroy() {
	if !c.released {
		c.released = true
		c.b.destroy(c.d)
	}
}

// Device is the device that the commands are recorded for.
func (c *Commands) Device() *Device {
	if c == nil {
		return nil
	}
	return c.d
}

// enter enters the device and returns the batch to record into. After a nil error the
// caller must leave the device.
func (c *Commands) enter(op string) (*batch, error) {
	if err := c.Device().enter(op); err != nil {
		return nil, err
	}
	b, err := c.record(op)
	if err != nil {
		c.d.leave()
	}
	return b, err
}

// record returns the batch to record into. The caller has entered the device.
func (c *Commands) record(op string) (*batch, error) {
	if c.s == nil {
		if c.released {
			return nil, closed(op)
		}
		return c.b, nil
	}
	if c.b == nil {
		if _, err := c.s.begin(op); err != nil {
			return nil, err
		}
	}
	if c.s.NoBarrier {
		c.s.uses.untold = true
	}
	return c.b, nil
}

// Barrier orders all shader and transfer work recorded so far before all work recorded
// later, and makes its writes visible.
func (c *Commands) Barrier() error {
	b, err := c.enter("Barrier")
	if err != nil {
		return err
	}
	defer c.d.leave()
	c.barrier(b)
	return nil
}

// InnerBarrier is Barrier between the dispatches of one call that Order has told of: what it reads and writes
// is still remembered, since dispatches behind the barrier do so too.
func (c *Commands) InnerBarrier() error {
	b, err := c.enter("InnerBarrier")
	if err != nil {
		return err
	}
	defer c.d.leave()
	c.innerBarrier(b)
	return nil
}

// Copy records a copy of src to dst, of the same size, on a stream in its order: see Order. In
// one buffer the two must not overlap. The batch holds both buffers. The error matches ErrInvalid for ranges that
// exceed their buffers, differ in size or belong to another device.
func (c *Commands) Copy(dst, src BufferRange) error {
	const op = "Copy"
	b, err := c.enter(op)
	if err != nil {
		return err
	}
	defer c.d.leave()
	from, n, err := c.d.checkRange(op, src)
	if err != nil {
		return err
	}
	to, room, err := c.d.checkRange(op, dst)
	if err != nil {
		return err
	}
	if room < n || dst.Size != 0 && room != n {
		return invalid(op, "%d bytes to %d", n, room)
	}
	reads, writes := [1]BufferRange{src}, [1]BufferRange{{Buffer: dst.Buffer, Offset: dst.Offset, Size: n}}
	c.follow(b, reads[:], writes[:])
	return c.copy(b, dst.Buffer, to, src.Buffer, from, n)
}

func (c *Commands) copy(b *batch, dst *Buffer, to uint64, src *Buffer, from, n uint64) error {
	x, y := src.offset+from, dst.offset+to
	if src.handle == dst.handle && x < y+n && y < x+n {
		return invalid("Copy", "source and destination overlap")
	}
	if err := b.hold(src); err != nil {
		return err
	}
	if err := b.hold(dst); err != nil {
		return err
	}
	hostCmdCopy(c.d.c, &b.recorder, src.handle, x, dst.handle, y, n)
	return nil
}

// Fill records setting a range to a repeated 32-bit word, on a stream in its order: see Order.
// Offset and size are multiples of 4; size 0 fills up to the end of the buffer, with the whole last word. The batch
// holds the buffer. The error matches ErrInvalid for a range that exceeds the buffer or
// belongs to another device.
func (c *Commands) Fill(dst BufferRange, word uint32) error {
	const op = "Fill"
	b, err := c.enter(op)
	if err != nil {
		return err
	}
	defer c.d.leave()
	at, n, err := c.d.checkRange(op, dst)
	if err != nil {
		return err
	}
	if dst.Size == 0 {
		n = min(alignUp(n, 4), dst.Buffer.capacity-at)
	}
	if at%4 != 0 || n%4 != 0 || dst.Buffer.offset%4 != 0 {
		return invalid(op, "%d bytes at %d: multiples of 4 are needed", n, at)
	}
	if err := b.hold(dst.Buffer); err != nil {
		return err
	}
	writes := [1]BufferRange{dst}
	c.follow(b, nil, writes[:])
	hostCmdFill(c.d.c, &b.recorder, dst.Buffer.handle, dst.Buffer.offset+at, n, word)
	return nil
}

// Keep holds resources until the recorded work has finished, such as buffers that a
// kernel uses through addresses. The error matches ErrClosed for a closed resource and
// ErrInvalid for nil; the resources before it in the list are then held.
func (c *Commands) Keep(list ...Resource) error {
	const op = "Keep"
	b, err := c.enter(op)
	if err != nil {
		return err
	}
	defer c.d.leave()
	for _, r := range list {
		if err := b.hold(r); err != nil {
			return err
		}
	}
	return nil
}

var noLabel = func() {}

// Label names the commands recorded until end is called, for debugging tools. Without
// Options.Debug it does nothing. A label ends with its batch at the latest.
func (c *Commands) Label(name string) (end func()) {
	if d := c.Device(); d == nil || !d.debug {
		return noLabel
	}
	b, err := c.enter("Label")
	if err != nil {
		return noLabel
	}
	defer c.d.leave()
	hostCmdLabel(c.d.c, &b.recorder, name)
	id := b.id
	return func() {
		if c.d.enter("Label") != nil {
			return
		}
		defer c.d.leave()
		if !c.released && c.b != nil && c.b.id == id {
			hostCmdLabelEnd(c.d.c, &c.b.recorder)
			id = 0
		}
	}
}

// barrier records a barrier. The caller has entered the device.
func (c *Commands) barrier(b *batch) {
	c.innerBarrier(b)
	if c.s != nil {
		c.s.uses.clear()
	}
}

func (c *Commands) innerBarrier(b *batch) {
	hostCmdBarrier(c.d.c, &b.recorder, c.d.barrierScope())
	if c.s != nil {
		c.s.barriers++
	}
}

// paramBlock is the size of a parameter buffer and the largest size that Params accepts.
const paramBlock = 16 << 10

// Params copies at most 16 KiB of kernel parameters into memory of the batch and returns
// their range, to be bound by Dispatch. It is for parameters that do not fit the device's
// push constants. The bytes do not change until the batch has finished, or, in a caller's
// command buffer, until Reset or Release, however often it is executed. Params does not
// allocate once the stream has recorded a batch of the same size.
//
// The memory is the host's, which the device reads: no command is recorded and no
// barrier needed. vkCmdUpdateBuffer would take a buffer just the same, and two
// barriers, as the last execution may still be reading when the next one writes.
func (c *Commands) Params(data []byte) (BufferRange, error) {
	const op = "Params"
	b, err := c.enter(op)
	if err != nil {
		return BufferRange{}, err
	}
	defer c.d.leave()
	if len(data) == 0 || len(data) > paramBlock {
		return BufferRange{}, invalid(op, "%d bytes; 1 to %d are possible", len(data), paramBlock)
	}
	return b.params.put(op, c.d, data)
}

// paramMemory is the parameters of a batch: buffers of paramBlock bytes, filled one
// after another and reused by the batch.
type paramMemory struct {
	blocks  []*Buffer
	current int    // the block in use
	used    uint64 // bytes of it
}

func (m *paramMemory) put(op string, d *Device, data []byte) (BufferRange, error) {
	size := uint64(len(data))
	if m.used+size > paramBlock {
		m.current, m.used = m.current+1, 0
	}
	if m.current == len(m.blocks) {
		b, err := d.newBuffer(op, paramBlock, BufferOptions{Memory: Upload, Name: "parameters"})
		if err != nil {
			return BufferRange{}, err
		}
		b.lent = true
		m.blocks = append(m.blocks, b)
	}
	r := BufferRange{Buffer: m.blocks[m.current], Offset: m.used, Size: size}
	copy(r.Buffer.bytes()[m.used:], data)
	m.used = alignUp(m.used+size, d.info.Caps.Limits.MinStorageBufferOffsetAlignment)
	return r, nil
}

// reset makes the blocks empty; no work reads them any more.
func (m *paramMemory) reset() { m.current, m.used = 0, 0 }

func (m *paramMemory) destroy() {
	for _, b := range m.blocks {
		if !b.closed.Swap(true) {
			b.release()
		}
	}
	m.blocks = nil
	m.reset()
}
