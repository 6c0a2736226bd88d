package vk

import "time"

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

// A descriptor pool holds this many sets and buffers; a batch takes more pools as
// it needs them and keeps them for its next use.
const (
	poolSets    = 64
	poolBuffers = 512
)

// queryCount is the number of timestamps in a query pool.
const queryCount = 64

// batch is a command buffer and everything that must live until it has executed. A stream
// reuses its batches when they have finished.
type batch struct {
	id   uint64 // unique in the device while it is recorded or in flight
	pool uint64 // VkCommandPool; 0 for a caller's command buffer
	recorder
	value uint64 // of the stream's timeline when it has finished
	keep  []Resource

	shared *scratch // of keep: that of SharedScratch

	descriptors             []uint64 // VkDescriptorPools
	current                 int      // the pool in use
	setsLeft, bindingsLeft  uint32
	handles, starts, ranges [maxBindings]uint64 // scratch for one set
	params                  paramMemory

	queries []uint64      // VkQueryPools
	marks   int           // timestamps written
	sent    time.Duration // of hostNow: when it was submitted, if it has timestamps
	lost    bool          // never executed; it only has timestamps and staging memory

	recording *Recording // that owns the batch; nil: a stream or the caller does

	staged *stagingRing // ring whose space the batch reads
	mark   uint64       // and the position up to which it is free when this is done
}

// hold makes the batch a holder of r, once.
func (b *batch) hold(r Resource) error {
	if !made(r) {
		return unmade("use of a resource")
	}
	if r.seen(b.id) {
		return nil
	}
	if err := r.retain(); err != nil {
		r.seen(0)
		return err
	}
	b.keep = append(b.keep, r)
	return nil
}

// drop releases what the batch holds. The work has finished or was never submitted.
func (b *batch) drop() {
	for i, r := range b.keep {
		b.keep[i] = nil
		r.release()
	}
	b.keep, b.shared = b.keep[:0], nil
}

// reset makes descriptor pools and parameters empty for the next recording.
func (b *batch) reset(d *Device) error {
	b.params.reset()
	for i := 0; i <= b.current && i < len(b.descriptors); i++ {
		if err := d.check("vkResetDescriptorPool", hostResetDescriptorPool(d.c, &b.recorder, b.descriptors[i])); err != nil {
			return err
		}
	}
	b.current, b.setsLeft, b.bindingsLeft = 0, poolSets, poolBuffers
	return nil
}

// descriptorSet makes a set of the scratch arrays' first n buffers, for the next dispatch.
func (b *batch) descriptorSet(d *Device, layout uint64, n uint32) (err error) {
	if len(b.descriptors) > 0 && (b.setsLeft == 0 || b.bindingsLeft < n) {
		b.current++
		b.setsLeft, b.bindingsLeft = poolSets, poolBuffers
	}
	if b.current >= len(b.descriptors) {
		if err := b.addPool(d); err != nil {
			return err
		}
		b.setsLeft, b.bindingsLeft = poolSets, poolBuffers
	}
	r := hostDescriptorSet(d.c, &b.recorder, b.descriptors[b.current], layout, n, &b.handles, &b.starts, &b.ranges)
	if err := d.check("vkAllocateDescriptorSets", r); err != nil {
		return err
	}
	b.setsLeft--
	b.bindingsLeft -= n
	return nil
}

func (b *batch) addPool(d *Device) error {
	var pool uint64
	r := hostCreateDescriptorPool(d.c, poolSets, poolBuffers, &pool)
	if err := d.check("vkCreateDescriptorPool", r); err != nil {
		return err
	}
	b.descriptors = append(b.descriptors, pool)
	return nil
}

// reserve creates the pools that the next sets of n buffers each need.
func (b *batch) reserve(d *Device, sets int, n uint32) error {
	room := 0
	if b.current < len(b.descriptors) {
		room = int(min(b.setsLeft, b.bindingsLeft/n))
		room += (len(b.descriptors) - b.current - 1) * int(min(poolSets, poolBuffers/n))
	}
	for ; room < sets; room += int(min(poolSets, poolBuffers/n)) {
		if err := b.addPool(d); err != nil {
			return err
		}
		if b.current == len(b.descriptors)-1 { // the first of all, or the one a failure left out
			b.setsLeft, b.bindingsLeft = poolSets, poolBuffers
		}
	}
	return nil
}

// destroy frees the Vulkan objects; the work is finished.
func (b *batch) destroy(d *Device) {
	b.drop()
	b.params.destroy()
	for _, p := range b.descriptors {
		d.c.destroy(d.c.DestroyDescriptorPool, p)
	}
	for _, p := range b.queries {
		d.c.destroy(d.c.DestroyQueryPool, p)
	}
	if b.pool != 0 {
		d.c.destroy(d.c.DestroyCommandPool, b.pool)
	}
	b.descriptors, b.queries, b.pool = nil, nil, 0
}

// newBatch makes a batch with a command buffer of its own.
func (d *Device) newBatch() (*batch, error) {
	b := &batch{}
	r := hostCreateCommands(d.c, d.info.queueFamily, &b.pool, &b.commands)
	if err := d.check("vkCreateCommandPool", r); err != nil {
		return nil, err
	}
	return b, nil
}
