package vk

import (
	"context"
)

// Copies between host slices and buffers go through a ring in mapped memory of the stream.
// Positions only grow; the offset is the position modulo the ring's size. An upload's
// space is free when its batch has finished; a download's space is free when its bytes
// have been copied out.
const (
	maxStaging = 32 << 20
	minStaging = 64 << 10
)

type stagingRing struct {
	buf        *Buffer
	size       uint64
	head, tail uint64 // next free position; first position in use
	sent       uint64 // uploads: head at the last submission
}

// reserve reserves up to n contiguous bytes and returns their offset in the buffer and
// their number, or false if the ring is full.
func (r *stagingRing) reserve(n uint64) (offset, got uint64, ok bool) {
	n = min(n, r.size/4) // so that filling, copying and reading can overlap
	at := r.head % r.size
	skip := uint64(0)
	if r.size-at < n {
		skip, at = r.size-at, 0
	}
	if r.head+skip+n-r.tail > r.size {
		return 0, 0, false
	}
	r.head += skip + alignUp(n, 16)
	return at, n, true
}

// free frees everything before position to.
func (r *stagingRing) free(to uint64) { r.tail = max(r.tail, to) }

func (r *stagingRing) close() {
	if r != nil && !r.buf.closed.Swap(true) {
		r.buf.release()
	}
}

// ring returns a staging ring for n bytes. It replaces a smaller one, which batches in
// flight still hold.
func (s *Stream) ring(r **stagingRing, kind MemoryKind, n uint64) (*stagingRing, error) {
	want := uint64(minStaging)
	for want < maxStaging && want < 4*n {
		want *= 2
	}
	if *r != nil && (*r).size >= want {
		return *r, nil
	}
	buf, err := s.d.newBuffer("staging", want, BufferOptions{Memory: kind, Name: s.name + " staging"})
	if err != nil {
		if *r != nil {
			return *r, nil // the small ring is slower, but works
		}
		return nil, err
	}
	(*r).close()
	*r = &stagingRing{buf: buf, size: want}
	return *r, nil
}

// makeRoom frees staging space: it submits the recorded work and waits for the oldest
// batch in flight.
func (s *Stream) makeRoom(ctx context.Context, op string) error {
	if _, err := s.submit(false); err != nil {
		return err
	}
	s.mu.Lock()
	value := uint64(0)
	if len(s.inflight) > 0 {
		value = s.inflight[0].value
	}
	s.mu.Unlock()
	return s.wait(ctx, op, value)
}

// Upload copies src to dst at byte offset off, after all work recorded before and before
// all work recorded later. It has copied src to staging memory when it returns; the copy
// to dst runs with the stream. src may have any size: if staging memory is full, Upload
// submits the recorded work and waits, within Options.Timeout.
func (s *Stream) Upload(dst *Buffer, off uint64, src []byte) error {
	const op = "Upload"
	if err := s.use(op); err != nil {
		return err
	}
	defer s.d.leave()
	if len(src) == 0 {
		return nil
	}
	if _, _, err := s.d.checkRange(op, BufferRange{dst, off, uint64(len(src))}); err != nil {
		return err
	}
	ctx := s.d.limit(op)
	b, err := s.record(op)
	if err != nil {
		return err
	}
	s.barrier(b)
	r, err := s.ring(&s.up, Upload, uint64(len(src)))
	if err != nil {
		return err
	}
	for len(src) > 0 {
		at, n, ok := r.reserve(uint64(len(src)))
		if !ok {
			if err := s.makeRoom(ctx, op); err != nil {
				return err
			}
			continue
		}
		copy(r.buf.bytes()[at:at+n], src[:n])
		if b, err = s.record(op); err != nil {
			return err
		}
		b.staged, b.mark = r, r.head
		if err := s.copy(b, dst, off, r.buf, at, n); err != nil {
			return err
		}
		src, off = src[n:], off+n
		// Half a ring at a time, so that the device copies one half while the host
		// fills the other.
		if len(src) > 0 && r.head-r.sent >= r.size/2 {
			if _, err := s.submit(false); err != nil {
				return err
			}
			r.sent = r.head
		}
	}
	if b, err = s.record(op); err != nil {
		return err
	}
	s.barrier(b)
	return nil
}

// Download submits the recorded work, waits for it and copies src at byte offset off to
// dst, which has the bytes when Download returns. Large sizes are pipelined: the device
// copies to staging memory while the host copies out of it. If ctx is done first, Download
// returns the context's error and dst is incomplete.
func (s *Stream) Download(ctx context.Context, dst []byte, src *Buffer, off uint64) error {
	const op = "Download"
	if err := checkContext(op, ctx); err != nil {
		return err
	}
	if err := s.use(op); err != nil {
		return err
	}
	defer s.d.leave()
	if len(dst) == 0 {
		return nil
	}
	if _, _, err := s.d.checkRange(op, BufferRange{src, off, uint64(len(dst))}); err != nil {
		return err
	}
	b, err := s.record(op)
	if err != nil {
		return err
	}
	s.barrier(b)
	r, err := s.ring(&s.down, Readback, uint64(len(dst)))
	if err != nil {
		return err
	}
	if r.tail != r.head { // a cancelled download may still write to it
		if err := s.wait(ctx, op, s.submitted.Load()); err != nil {
			return err
		}
		r.free(r.head)
	}
	type piece struct {
		at, n, value, end uint64
		to                []byte
	}
	var pending []piece
	finish := func() error {
		p := pending[0]
		pending = pending[1:]
		if err := s.wait(ctx, op, p.value); err != nil {
			return err
		}
		copy(p.to, r.buf.bytes()[p.at:p.at+p.n])
		r.free(p.end)
		return nil
	}
	for len(dst) > 0 {
		at, n, ok := r.reserve(uint64(len(dst)))
		if !ok {
			if err := finish(); err != nil { // an empty ring has room, so something is pending
				return err
			}
			continue
		}
		if b, err = s.record(op); err != nil {
			return err
		}
		if err := s.copy(b, r.buf, at, src, off, n); err != nil {
			return err
		}
		value, err := s.submit(len(dst) == int(n))
		if err != nil {
			return err
		}
		pending = append(pending, piece{at, n, value, r.head, dst[:n]})
		dst, off = dst[n:], off+n
	}
	for len(pending) > 0 {
		if err := finish(); err != nil {
			return err
		}
	}
	return nil
}
