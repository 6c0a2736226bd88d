package vk

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
