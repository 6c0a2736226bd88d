package vk

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"

	"vkattn/internal/hostmem"
)

// Scratch memory of recorded commands: a pool of buffers that the device reuses, with zeros
// in front.

const (
	// scratchIdle, or a 16th of the device's memory if that is more, bounds the memory of
	// unused buffers. All of it was in use at the same time before. The largest buffer does
	// not count: a call that needs more than the bound would allocate in every run. On an
	// H200, gradients with 1 GiB of scratch took 2.6 ms of the device and another 100 ms to
	// allocate, in which its clocks fell to 345 MHz.
	scratchIdle, scratchShare = 256 << 20, 16
	// scratchLeast is the least size of a buffer, maxZeros the most zeros of one.
	scratchLeast, zerosLeast, maxZeros = 64 << 10, 4 << 10, 16 << 20
	// zeroPatience is how long recording into a caller's command buffer waits for zeros,
	// in ns. An idle device takes a tenth of it.
	zeroPatience = 1_000_000
)

// Scratch returns scratch memory for the commands recorded next: size bytes of b from
// first on, with any contents, and before them zeros bytes that are 0. first is a
// multiple of 256. The commands must leave the zeros at 0 each time they are executed. The
// memory is held until the commands have finished, or, in a caller's command buffer, until
// Reset or Release.
//
// The device owns the buffers and reuses them, so that in the steady state nothing is
// allocated. It writes the zeros of a buffer once, in its own submission before the
// commands are submitted. The error matches ErrUnsupported if the device cannot submit
// (see QueueIsUnguarded), if the caller may submit to another queue and the zeros are not
// written within a millisecond, and for sizes that are too large to be reused. A caller
// who holds the lock of the queue (External) must not request zeros.
func (c *Commands) Scratch(zeros, size uint64) (b *Buffer, first uint64, err error) {
	const op = "Scratch"
	d := c.Device()
	if err := d.enter(op); err != nil {
		return nil, 0, err
	}
	defer d.leave()
	batch, err := c.record(op)
	if err != nil {
		return nil, 0, err
	}
	switch {
	case zeros > 0 && d.unguarded:
		return nil, 0, unsupported(op, "zeros take a submission, and the queue has no lock")
	case zeros > maxZeros || zeros > 0 && size > scratchIdle/4:
		return nil, 0, unsupported(op, "%d bytes with %d zeros cannot be reused", size, zeros)
	}
	s, err := d.scratch.take(op, d, zeros, size)
	if err != nil {
		return nil, 0, err
	}
	if zeros > 0 {
		if err := d.scratch.zero(op, d, s, c.s == nil && c.recording() == nil && !d.owned); err != nil {
			s.release()
			return nil, 0, err
		}
	}
	batch.keep = append(batch.keep, s)
	return s.buf, s.zeros, nil
}

// SharedScratch returns scratch memory without zeros that calls of the same batch take in turn: where an earlier call has had it,
// a barrier is recorded, behind which nothing uses it. So a batch takes the memory of its largest call, and not of all of them, unless calls grow.
func (c *Commands) SharedScratch(size uint64) (b *Buffer, first uint64, err error) {
	batch, err := c.enter("SharedScratch")
	if err != nil {
		return nil, 0, err
	}
	s := batch.shared
	again := s != nil && s.room() >= size
	if again {
		c.innerBarrier(batch)
	}
	c.d.leave()
	if again {
		return s.buf, s.zeros, nil
	}
	b, first, err = c.Scratch(0, size)
	if err == nil {
		batch.shared = batch.keep[len(batch.keep)-1].(*scratch)
	}
	return b, first, err
}

// scratch is a buffer that one batch uses at a time. Releasing it returns it to the pool.
type scratch struct {
	pool   *scratchPool
	buf    *Buffer
	zeros  uint64 // bytes at its start, a multiple of 256
	zeroed uint64 // value of the pool's timeline at which they are 0; 0: not requested yet
}

func (s *scratch) retain() error    { return nil }
func (s *scratch) seen(uint64) bool { return false }
func (s *scratch) release()         { s.pool.put(s) }
func (s *scratch) room() uint64     { return s.buf.size - s.zeros }

func (s *scratch) destroy() {
	if !s.buf.closed.Swap(true) {
		s.buf.release()
	}
}

// scratchPool is the list of a device's unused scratch buffers, the longest unused first.
type scratchPool struct {
	mu        sync.Mutex
	idle      []*scratch
	idleBytes uint64
	bound     uint64 // of idleBytes without the largest buffer

	zeroing sync.Mutex // guards the stream
	stream  *Stream
}

// largestScratch bounds a buffer, so that sums of sizes do not overflow.
const largestScratch = 1 << 60

// take returns the smallest buffer that suffices and is not far too large, of several the
// one used last. If there is none it creates one.
func (p *scratchPool) take(op string, d *Device, zeros, size uint64) (*scratch, error) {
	if size > largestScratch {
		return nil, outOfMemory(op, "%s of scratch memory", hostmem.Bytes(size))
	}
	wantZeros, wantRoom := roomy(max(zeros, zerosLeast)), roomy(max(size, scratchLeast))
	p.mu.Lock()
	if p.bound == 0 {
		p.bound = scratchBound(d.info.Caps.MemoryHeaps)
	}
	best := -1
	for i := len(p.idle) - 1; i >= 0; i-- {
		s := p.idle[i]
		if s.zeros >= zeros && s.room() >= size && s.room()/8 <= max(size, scratchLeast) &&
			(best < 0 || s.buf.size < p.idle[best].buf.size) {
			best = i
			if s.buf.size == wantZeros+wantRoom {
				break
			}
		}
	}
	if best >= 0 {
		s := p.idle[best]
		p.idle = slices.Delete(p.idle, best, best+1)
		p.idleBytes -= s.buf.size
		p.mu.Unlock()
		return s, nil
	}
	p.mu.Unlock()
	s := &scratch{pool: p, zeros: wantZeros}
	o := BufferOptions{Name: "scratch"}
	var err error
	if s.buf, err = d.newBuffer(op, wantZeros+wantRoom, o); err != nil {
		s.buf, err = d.newBuffer(op, wantZeros+max(size, 1), o) // near a limit
	}
	if err != nil {
		return nil, err
	}
	s.buf.lent = true
	return s, nil
}

// roomy rounds n up by at most a quarter, so that slowly growing sizes reuse a buffer. The
// result is a multiple of 256, as n is at least 1024.
func roomy(n uint64) uint64 { return alignUp(n, 1<<(bits.Len64(n)-3)) }

// scratchBound is the bound of a device with these heaps.
func scratchBound(heaps []Heap) uint64 {
	bound := uint64(scratchIdle)
	for _, h := range heaps {
		if h.DeviceLocal {
			bound = max(bound, h.Bytes/scratchShare)
		}
	}
	return bound
}

// put returns a buffer to the pool. If the pool is over its bound it closes the buffers
// that were unused longest, but not the largest.
func (p *scratchPool) put(s *scratch) {
	p.mu.Lock()
	p.idle = append(p.idle, s)
	p.idleBytes += s.buf.size
	largest := slices.MaxFunc(p.idle, func(a, b *scratch) int { return cmp.Compare(a.buf.size, b.buf.size) })
	var gone []*scratch
	p.idle = slices.DeleteFunc(p.idle, func(s *scratch) bool {
		if s == largest || p.idleBytes-largest.buf.size <= p.bound {
			return false
		}
		p.idleBytes -= s.buf.size
		gone = append(gone, s)
		return true
	})
	p.mu.Unlock()
	for _, s := range gone {
		s.destroy()
	}
}

// claim takes one buffer out of the pool again. It returns false if another batch uses it, or it is closed.
func (p *scratchPool) claim(s *scratch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.idle, s)
	if i < 0 {
		return false
	}
	p.idle = slices.Delete(p.idle, i, i+1)
	p.idleBytes -= s.buf.size
	return true
}

// drop closes all unused buffers and reports whether there were any.
func (p *scratchPool) drop() bool {
	p.mu.Lock()
	gone := p.idle
	p.idle, p.idleBytes = nil, 0
	p.mu.Unlock()
	for _, s := range gone {
		s.destroy()
	}
	return len(gone) > 0
}

// zero writes the zeros of a buffer by a submission whose barrier precedes all later work
// on the device's queue. With elsewhere set the commands may go to another queue, so zero
// waits until the zeros are written.
func (p *scratchPool) zero(op string, d *Device, s *scratch, elsewhere bool) (err error) {
	p.zeroing.Lock()
	defer p.zeroing.Unlock()
	if p.stream == nil {
		if p.stream, err = d.newStream("scratch"); err != nil {
			return err
		}
	}
	if s.zeroed == 0 {
		b, err := p.stream.record(op)
		if err != nil {
			return err
		}
		if err := b.hold(s.buf); err != nil {
			return err
		}
		hostCmdFill(d.c, &b.recorder, s.buf.handle, 0, s.zeros, 0)
		p.stream.barrier(b)
		value, err := p.stream.submit(true)
		if err != nil {
			return err
		}
		s.zeroed = value
	}
	if !elsewhere {
		return nil
	}
	r := hostTimelineWait(d.c, p.stream.timeline.handle, s.zeroed, uint64(zeroPatience))
	if r == ResultTimeout {
		return unsupported(op, "the device has other work, and nothing orders its zeros before the caller's")
	}
	return d.check("vkWaitSemaphores", r)
}
