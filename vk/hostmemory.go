package vk

import "vkattn/internal/hostmem"

// Checks of memory before it is allocated: of the process, and of the heaps of a device.

// CheckHostMemory returns an error that matches ErrOutOfMemory, with the needed and
// the available memory, if this process cannot allocate that much host memory (see
// package hostmem for what limits it). Call it before the allocation: Go ends the
// process when one fails, and Linux when its pages are touched.
func CheckHostMemory(op string, needed uint64) error {
	if err := hostmem.Check(needed); err != nil {
		return refuse(op, ErrOutOfMemory, "%v", err)
	}
	return nil
}

// AvailableMemory is the number of bytes available to new buffers of a kind: the sum of
// what is left of the heaps, or of their budgets if the driver has VK_EXT_memory_budget. A
// device that is the CPU has at most what the process has (package hostmem). NewBuffer may
// still fail, as other programs allocate too.
func (d *Device) AvailableMemory(kind MemoryKind) (uint64, error) {
	if err := d.enter("AvailableMemory"); err != nil {
		return 0, err
	}
	defer d.leave()
	return d.mem.available(kind), nil
}

// CheckMemory returns an error that matches ErrOutOfMemory, with the needed and the
// available memory, if device-local buffers of that many bytes in sum do not fit.
func (d *Device) CheckMemory(op string, needed uint64) error {
	if err := d.enter(op); err != nil {
		return err
	}
	defer d.leave()
	if d.info.Type == DeviceCPU {
		if err := CheckHostMemory(op, needed); err != nil {
			return err
		}
	}
	available := d.mem.available(DeviceLocal)
	if needed > available && d.reclaim() {
		available = d.mem.available(DeviceLocal)
	}
	if needed > available {
		return outOfMemory(op, "%s", hostmem.Shortage("device memory", needed, available))
	}
	return nil
}

// available is the sum of what is left of the heaps for a kind.
func (a *allocator) available(kind MemoryKind) (total uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	budget, usage := a.budgets()
	seen := map[uint32]bool{}
	for _, t := range a.candidates(kind, ^uint32(0)) {
		heap := a.typeHeap[t]
		if seen[heap] {
			continue
		}
		seen[heap] = true
		size := a.d.info.Caps.MemoryHeaps[heap].Bytes
		left := size - min(size, a.heapUsed[heap])
		if budget[heap] > 0 {
			left = min(left, budget[heap]-min(budget[heap], usage[heap]))
		}
		total += left
	}
	if a.d.info.Type == DeviceCPU {
		total = min(total, hostmem.Available().Bytes)
	}
	return total
}

// budgets returns the budget of each heap, 0 if the driver does not tell.
func (a *allocator) budgets() (budget, usage [16]uint64) {
	if a.d.info.Caps.MemoryBudget {
		hostHeapBudget(a.d.instance, a.d.c.physical, &budget, &usage)
	}
	return budget, usage
}

// checkBlock returns an error if an allocation does not fit the heap, its budget or the
// host.
func (a *allocator) checkBlock(op string, heap uint32, size uint64) error {
	d := a.d
	total := d.info.Caps.MemoryHeaps[heap].Bytes
	if size > total || a.heapUsed[heap] > total-size {
		return outOfMemory(op, "%s: the heap has %s, %s in use here", hostmem.Bytes(size), hostmem.Bytes(total), hostmem.Bytes(a.heapUsed[heap]))
	}
	if size < budgetFloor {
		return nil
	}
	budget, usage := a.budgets()
	if budget[heap] > 0 && (usage[heap] > budget[heap] || size > budget[heap]-usage[heap]) {
		return outOfMemory(op, "%s: the budget is %s, %s in use", hostmem.Bytes(size), hostmem.Bytes(budget[heap]), hostmem.Bytes(usage[heap]))
	}
	if d.info.Type == DeviceCPU {
		return CheckHostMemory(op, size)
	}
	return nil
}
