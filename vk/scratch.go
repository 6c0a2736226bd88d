package vk

// #include "host.h"
import "C"

import (
	"math/bits"
	"slices"
	"sync"
)

const (
	// scratchIdle bounds the memory that waits for its next use. It was all in use at
	// once before: as much comes back as a program had in flight.
	scratchIdle = 256 << 20
	// scratchLeast is the least that a buffer has, and maxZeros the most of zeros.
	scratchLeast, zerosLeast, maxZeros = 64 << 10, 4 << 10, 16 << 20
	// zeroPatience is how long a caller's command buffer waits for zeros, in ns: an idle
	// device takes a tenth.
	zeroPatience = 1_000_000
)

// Scratch gives memory for what is recorded next, held until that has finished, or of a
// caller's command buffer until Reset or Release: size bytes of b from first on, with
// anything in them, and before them zeros bytes that are 0. What is recorded has to
// leave those at 0, each time that it is executed. first is a multiple of 256.
//
// Buffers are the device's and used again, so that nothing is allocated once they are
// there. Zeros are written once for a buffer, by a submission of the device's own that
// comes before that of what is recorded: ErrUnsupported where none may be made (see
// QueueIsUnguarded), where the caller may submit to another queue and the device does not
// get to it within a millisecond, and for sizes that are not kept for another use. A
// caller who has locked the queue (External) must not ask for zeros.
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
		return nil, 0, unsupported(op, "%d bytes with %d zeros are not kept", size, zeros)
	}
	s, err := d.scratch.take(op, d, zeros, size)
	if err != nil {
		return nil, 0, err
	}
	if zeros > 0 {
		if err := d.scratch.zero(op, d, s, c.s == nil && !d.owned); err != nil {
			s.release()
			return nil, 0, err
		}
	}
	batch.keep = append(batch.keep, s)
	return s.buf, s.zeros, nil
}

// scratch is a buffer that one batch has at a time: the Resource gives it back.
type scratch struct {
	pool   *scratchPool
	buf    *Buffer
	zeros  uint64 // bytes at its start, a multiple of 256
	zeroed uint64 // value of the pool's stream when they are 0; 0: nobody has asked for them
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

// scratchPool is the buffers of a device that nothing uses, the longest unused first.
type scratchPool struct {
	mu        sync.Mutex
	idle      []*scratch
	idleBytes uint64

	zeroing sync.Mutex // guards the stream
	stream  *Stream
}

// take finds the smallest buffer that does, unless it is far too large, of several the
// last one used, or makes one.
func (p *scratchPool) take(op string, d *Device, zeros, size uint64) (*scratch, error) {
	wantZeros, wantRoom := roomy(max(zeros, zerosLeast)), roomy(max(size, scratchLeast))
	p.mu.Lock()
	best := -1
	for i := len(p.idle) - 1; i >= 0; i-- {
		s := p.idle[i]
		if s.zeros >= zeros && s.room() >= size && s.room()/8 <= max(size, scratchLeast) &&
			(best < 0 || s.buf.size < p.idle[best].buf.size) {
			if best = i; s.buf.size == wantZeros+wantRoom {
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
	return s, err
}

// roomy is n and up to a quarter, so that sizes that grow find a buffer: a multiple of
// 256, as n is at least 1024.
func roomy(n uint64) uint64 { return alignUp(n, 1<<(bits.Len64(n)-3)) }

// put takes a buffer back and lets go of those longest unused where they are too many.
func (p *scratchPool) put(s *scratch) {
	p.mu.Lock()
	p.idle = append(p.idle, s)
	p.idleBytes += s.buf.size
	n := 0
	for p.idleBytes > scratchIdle {
		p.idleBytes -= p.idle[n].buf.size
		n++
	}
	gone := slices.Clone(p.idle[:n])
	p.idle = slices.Delete(p.idle, 0, n)
	p.mu.Unlock()
	for _, s := range gone {
		s.destroy()
	}
}

// drop lets go of what is idle, and reports whether there was any.
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

// zero sees to it that a buffer's zeros are there for what is submitted to the device's
// queue from now on: its barrier covers all that comes later there. With elsewhere that
// may be another queue, so they have to be there now.
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
		C.vka_cmd_fill(d.c, b.commands, C.uint64_t(s.buf.handle), 0, C.uint64_t(s.zeros), 0)
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
	r := C.vka_timeline_wait(d.c, C.uint64_t(p.stream.timeline.handle), C.uint64_t(s.zeroed), zeroPatience)
	if r == C.VK_TIMEOUT {
		return unsupported(op, "the device has other work, and nothing orders its zeros before the caller's")
	}
	return d.check("vkWaitSemaphores", r)
}
