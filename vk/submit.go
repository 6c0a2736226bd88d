package vk

// #include "host.h"
import "C"

// Submit submits the recorded work and returns the value that the stream's timeline has
// when the work has finished. With nothing recorded it returns the value of the last
// submission. If it fails, the recorded work is dropped.
func (s *Stream) Submit() (uint64, error) {
	if err := s.use("Submit"); err != nil {
		return 0, err
	}
	defer s.d.leave()
	return s.submit(true)
}

// submit submits the batch. Only a submission that the caller asked for performs the
// signals of SignalTo: a batch that is submitted because staging is full is incomplete.
func (s *Stream) submit(signal bool) (uint64, error) {
	value := s.submitted.Load()
	b := s.b
	if b == nil {
		if !signal || len(s.signals.handles)+len(s.waits.handles) == 0 && !s.turns.busy() {
			return value, nil
		}
		var err error
		if b, err = s.begin("Submit"); err != nil {
			return 0, err
		}
	}
	s.b = nil
	d := s.d
	C.vka_cmd_host_barrier(d.c, b.commands, d.barrierScope())
	err := d.check("vkEndCommandBuffer", C.vka_end(d.c, b.commands))
	if err == nil {
		err = s.send(b, value+1, signal)
	}
	if err != nil {
		s.waits.release()
		s.signals.release()
		if b.marks > 0 || b.staged != nil { // in the order of the others
			s.mu.Lock()
			s.inflight = append(s.inflight, &batch{value: value, marks: b.marks, lost: true, staged: b.staged, mark: b.mark})
			s.mu.Unlock()
		}
		b.destroy(d)
		return 0, err
	}
	s.submitted.Store(value + 1)
	return value + 1, nil
}

// submission is the semaphores of one vkQueueSubmit.
type submission struct {
	waits, signals                      int
	wait, waitValues, set, signalValues [C.VKA_MAX_SUBMIT_SEMAPHORES]uint64
}

func (l *submission) waitFor(t *Timeline, v uint64) {
	l.wait[l.waits], l.waitValues[l.waits] = t.handle, v
	l.waits++
}

func (l *submission) signal(t *Timeline, v uint64) {
	l.set[l.signals], l.signalValues[l.signals] = t.handle, v
	l.signals++
}

func (s *Stream) send(b *batch, value uint64, signal bool) error {
	var l submission
	l.waits = copy(l.wait[:], s.waits.handles)
	copy(l.waitValues[:], s.waits.values)
	if signal {
		l.signals = copy(l.set[:], s.signals.handles)
		copy(l.signalValues[:], s.signals.values)
	}
	if err := s.takeTurn(&l); err != nil {
		return err
	}
	// Last, as all drivers seen so far signal in this order. Vulkan does not require it.
	l.signal(s.timeline, value)
	d := s.d
	d.worked.Store(true)
	r := d.withQueue(func() C.VkResult {
		return C.vka_submit(d.c, b.commands, C.uint32_t(l.waits), u64(&l.wait[0]), u64(&l.waitValues[0]),
			C.uint32_t(l.signals), u64(&l.set[0]), u64(&l.signalValues[0]))
	})
	if err := d.check("vkQueueSubmit", r); err != nil {
		return err
	}
	s.tookTurn(b)
	s.waits.moveTo(b)
	if signal {
		s.signals.moveTo(b)
	}
	b.value = value
	s.mu.Lock()
	s.inflight = append(s.inflight, b)
	s.mu.Unlock()
	return nil
}
