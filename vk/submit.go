package vk

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

// submit is submitWith without a recording.
func (s *Stream) submit(signal bool) (uint64, error) { return s.submitWith(signal, nil) }

// submitWith submits the batch, and behind it the commands of a recording. Only a submission that the
// caller asked for performs the signals of SignalTo: a batch that is submitted because staging is full is
// incomplete.
func (s *Stream) submitWith(signal bool, again *batch) (uint64, error) {
	value := s.submitted.Load()
	b := s.b
	if b == nil && again == nil {
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
	var err error
	if b != nil {
		hostCmdHostBarrier(d.c, &b.recorder, d.barrierScope())
		err = d.check("vkEndCommandBuffer", hostEnd(d.c, &b.recorder))
	}
	if err == nil {
		err = s.send(b, again, value+1, signal)
	}
	if err != nil {
		s.waits.release()
		s.signals.release()
		if b == nil {
			return 0, err
		}
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

func (l *submission) waitFor(t *Timeline, v uint64) {
	l.wait[l.waits], l.waitValues[l.waits] = t.handle, v
	l.waits++
}

func (l *submission) signal(t *Timeline, v uint64) {
	l.set[l.signals], l.signalValues[l.signals] = t.handle, v
	l.signals++
}

// send submits b, again, or both in this order, in one vkQueueSubmit.
func (s *Stream) send(b, again *batch, value uint64, signal bool) error {
	var l submission
	var list [2]*batch
	var commands [2]VkCommandBuffer
	n := 0
	for _, x := range [2]*batch{b, again} {
		if x != nil {
			list[n], commands[n] = x, x.commands
			n++
		}
	}
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
	if b != nil && b.marks > 0 {
		b.sent = hostNow()
	}
	r := d.withQueue(func() Result {
		return hostSubmit(d.c, commands[:n], &l)
	})
	if err := d.check("vkQueueSubmit", r); err != nil {
		return err
	}
	last := list[n-1]
	s.tookTurn(last)
	s.waits.moveTo(last)
	if signal {
		s.signals.moveTo(last)
	}
	s.mu.Lock()
	for _, x := range list[:n] {
		x.value = value
		s.inflight = append(s.inflight, x)
	}
	s.mu.Unlock()
	return nil
}
