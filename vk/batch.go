package vk

import "time"

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
	b.keep = b.keep[:0]
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
