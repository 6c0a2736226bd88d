package vk

import (
	"slices"
	"sync"
	"unsafe"

	"vkattn/internal/hostmem"
)

// The allocator of device memory: memory types of each kind, shared blocks, and buffers as
// regions of them.

const (
	// blockBytes is the size of a shared allocation. A request of half of it or more
	// gets its own allocation.
	blockBytes = 64 << 20
	// minAlignment of a buffer's start, so that its address suits the widest loads.
	minAlignment = 256
	// budgetFloor is the least size of an allocation that is checked against the budget.
	budgetFloor = 1 << 20
)

// MemoryKind says who reads and writes a buffer.
type MemoryKind uint8

// Kinds of memory.
const (
	DeviceLocal MemoryKind = iota // the device; not mapped
	Upload                        // written by the host, read by the device; mapped
	Readback                      // written by the device, read by the host; mapped
)

func (k MemoryKind) String() string {
	if names := [...]string{"device local", "upload", "readback"}; int(k) < len(names) {
		return names[k]
	}
	return "unknown memory kind"
}

// MemoryStats describes the memory of a device's buffers.
type MemoryStats struct {
	Buffers        int    // open buffers, closed buffers in flight, and buffers of Commands.Scratch
	UsedBytes      uint64 // of those buffers, without wrapped ones
	AllocatedBytes uint64 // of all VkDeviceMemory objects
	Allocations    int    // live VkDeviceMemory objects
}

// block is one VkDeviceMemory.
type block struct {
	memory    uint64
	size      uint64
	typ       uint32
	mapped    unsafe.Pointer // nil unless host visible
	dedicated bool           // holds one buffer and is freed with it
	spans     spans
}

// region is a piece of a block.
type region struct {
	block        *block
	offset, size uint64
}

// allocator hands out device memory. All buffers live in blocks of 64 MiB, one
// list per memory type, or in a block of their own.
type allocator struct {
	d         *Device
	typeFlags []uint32
	typeHeap  []uint32

	mu       sync.Mutex
	blocks   [32][]*block
	heapUsed [16]uint64
	count    int
	used     uint64
	buffers  map[*Buffer]struct{}
}

func (a *allocator) init(d *Device, p *probe) {
	a.d = d
	a.buffers = map[*Buffer]struct{}{}
	a.typeFlags, a.typeHeap = p.typeFlags, p.typeHeap
}

// Memory describes the memory of the device's buffers.
func (d *Device) Memory() MemoryStats {
	if d == nil {
		return MemoryStats{}
	}
	a := &d.mem
	a.mu.Lock()
	defer a.mu.Unlock()
	s := MemoryStats{Buffers: len(a.buffers), UsedBytes: a.used, Allocations: a.count}
	for _, n := range a.heapUsed {
		s.AllocatedBytes += n
	}
	return s
}

// candidates lists the memory types for a kind, best first. It leaves out types with
// other than the four basic properties, such as protected or lazily allocated ones.
func (a *allocator) candidates(kind MemoryKind, mask uint32) []uint32 {
	const (
		local    = memoryDeviceLocal
		visible  = memoryHostVisible
		coherent = memoryHostCoherent
		cached   = memoryHostCached
	)
	score := func(t uint32) int {
		f := a.typeFlags[t]
		s := 0
		cost := func(bad bool, c int) {
			if bad {
				s += c
			}
		}
		switch kind {
		case Upload:
			cost(f&local != 0, 2) // host-visible VRAM is small
			cost(f&cached != 0, 1)
		case Readback:
			cost(f&cached == 0, 2)
			cost(f&local != 0, 1)
		default:
			cost(f&local == 0, 2)
			cost(f&visible != 0, 1)
		}
		return s
	}
	var list []uint32
	anyLocal := false
	for t, f := range a.typeFlags {
		if mask>>t&1 == 0 || f&^(local|visible|coherent|cached) != 0 {
			continue
		}
		if kind != DeviceLocal && f&(visible|coherent) != visible|coherent {
			continue // Vulkan guarantees a type with both, so that nothing needs flushing
		}
		anyLocal = anyLocal || f&local != 0
		list = append(list, uint32(t))
	}
	// If the fast memory is full the error is out of memory: slow memory is no substitute.
	if kind == DeviceLocal && anyLocal {
		list = slices.DeleteFunc(list, func(t uint32) bool { return a.typeFlags[t]&local == 0 })
	}
	slices.SortStableFunc(list, func(x, y uint32) int { return score(x) - score(y) })
	return list
}

// request is what a buffer needs.
type request struct {
	size, align uint64
	mask        uint32
	kind        MemoryKind
	dedicated   uint64 // the buffer for a Vulkan dedicated allocation, or 0
	export      bool
	fd          int // -1: none
}

// alloc allocates memory. If that fails it releases what finished work still holds and
// tries again.
func (a *allocator) alloc(q request) (region, error) {
	p, err := a.tryAlloc(q)
	if err != nil && a.d.reclaim() {
		p, err = a.tryAlloc(q)
	}
	return p, err
}

func (a *allocator) tryAlloc(q request) (region, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	types := a.candidates(q.kind, q.mask)
	if len(types) == 0 {
		return region{}, unsupported("allocate memory", "no %v memory type among %#x", q.kind, q.mask)
	}
	own := q.dedicated != 0 || q.export || q.fd >= 0 || q.size >= blockBytes/2
	var first error
	for _, t := range types {
		p, err := a.fromType(t, q, own)
		if err == nil {
			a.used += p.size
			return p, nil
		}
		if first == nil {
			first = err
		}
	}
	return region{}, first
}

func (a *allocator) fromType(t uint32, q request, own bool) (region, error) {
	if own {
		b, err := a.newBlock(t, q.size, q)
		if err != nil {
			return region{}, err
		}
		b.dedicated = true
		return region{b, 0, q.size}, nil
	}
	align := max(q.align, minAlignment)
	for _, b := range a.blocks[t] {
		if at, ok := b.spans.alloc(q.size, align); ok {
			return region{b, at, q.size}, nil
		}
	}
	heap := a.d.info.Caps.MemoryHeaps[a.typeHeap[t]].Bytes
	size := uint64(blockBytes)
	for size > heap/8 && size/2 >= q.size && size > 1<<20 {
		size /= 2 // a block must not take most of a small heap
	}
	b, err := a.newBlock(t, size, request{fd: -1})
	if err != nil {
		if b, err = a.newBlock(t, q.size, request{fd: -1}); err != nil {
			return region{}, err
		}
	}
	b.spans = newSpans(b.size)
	at, ok := b.spans.alloc(q.size, align)
	if !ok {
		a.freeBlock(b)
		return region{}, outOfMemory("allocate memory", "%s do not fit a block of %s", hostmem.Bytes(q.size), hostmem.Bytes(b.size))
	}
	a.blocks[t] = append(a.blocks[t], b)
	return region{b, at, q.size}, nil
}

// newBlock checks the limits and allocates memory from Vulkan. It does not check
// MaxAllocationBytes: drivers guarantee that size but may grant more (NVIDIA reports
// 4 GiB), or return out of memory.
func (a *allocator) newBlock(t uint32, size uint64, q request) (*block, error) {
	const op = "vkAllocateMemory"
	d, l := a.d, &a.d.info.Caps.Limits
	heap := a.typeHeap[t]
	if l.MaxAllocations > 0 && a.count >= int(l.MaxAllocations) {
		return nil, outOfMemory(op, "the device allows %d allocations", l.MaxAllocations)
	}
	// Imported memory (fd) is allocated already, but a heap cannot hold more than its size.
	if q.fd < 0 {
		if err := a.checkBlock(op, heap, size); err != nil {
			return nil, err
		}
	} else if total := d.info.Caps.MemoryHeaps[heap].Bytes; size > total {
		return nil, outOfMemory(op, "%s: the heap has %s", hostmem.Bytes(size), hostmem.Bytes(total))
	}
	b := &block{size: size, typ: t}
	var flags uint32
	if a.mappable(t) {
		flags |= memoryMap
	}
	if q.export {
		flags |= memoryExport
	}
	r := hostAllocate(d.c, size, t, flags, q.dedicated, q.fd, &b.memory, &b.mapped)
	if err := d.check(op, r); err != nil {
		return nil, err
	}
	a.count++
	a.heapUsed[heap] += size
	return b, nil
}

// mappable reports whether memory of a type is mapped when it is allocated. Every block of
// such a type is: a buffer of a mapped kind may use it later.
func (a *allocator) mappable(t uint32) bool {
	const both = memoryHostVisible | memoryHostCoherent
	return a.typeFlags[t]&both == both
}

func (a *allocator) freeBlock(b *block) {
	a.d.c.destroy(a.d.c.FreeMemory, b.memory)
	a.count--
	a.heapUsed[a.typeHeap[b.typ]] -= b.size
}

// free frees a region. One empty block of each type stays allocated for the next buffer.
// The caller holds mu.
func (a *allocator) free(r region) {
	b := r.block
	a.used -= r.size
	if b.dedicated {
		a.freeBlock(b)
		return
	}
	b.spans.release(r.offset, r.size)
	if b.spans.used > 0 {
		return
	}
	list := a.blocks[b.typ]
	for _, other := range list {
		if other != b && other.spans.used == 0 {
			a.blocks[b.typ] = slices.DeleteFunc(list, func(x *block) bool { return x == b })
			a.freeBlock(b)
			return
		}
	}
}

// destroy frees all buffers and blocks. The device is idle.
func (a *allocator) destroy() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for b := range a.buffers {
		a.destroyBuffer(b)
	}
	for t := range a.blocks {
		for _, b := range a.blocks[t] {
			a.freeBlock(b)
		}
		a.blocks[t] = nil
	}
}

// spans allocates from a range of bytes. free is ordered by offset, with neighbours
// merged. Allocation is best fit, so that large spans stay whole: it takes the smallest
// span that holds the request, the lowest of several.
type spans struct {
	size, used uint64
	free       []span
}

type span struct{ offset, size uint64 }

func newSpans(size uint64) spans { return spans{size: size, free: []span{{0, size}}} }

// alloc allocates size bytes at a multiple of align, a power of two.
func (s *spans) alloc(size, align uint64) (offset uint64, ok bool) {
	best := -1
	for i, f := range s.free {
		start := alignUp(f.offset, align)
		if pad := start - f.offset; f.size >= pad && f.size-pad >= size && (best < 0 || f.size < s.free[best].size) {
			best, offset = i, start
		}
	}
	if best < 0 {
		return 0, false
	}
	f := s.free[best]
	before := span{f.offset, offset - f.offset}
	after := span{offset + size, f.offset + f.size - offset - size}
	var rest []span
	if before.size > 0 {
		rest = append(rest, before)
	}
	if after.size > 0 {
		rest = append(rest, after)
	}
	s.free = slices.Replace(s.free, best, best+1, rest...)
	s.used += size
	return offset, true
}

// release frees an allocation of alloc.
func (s *spans) release(offset, size uint64) {
	i, _ := slices.BinarySearchFunc(s.free, offset, func(f span, o uint64) int {
		if f.offset < o {
			return -1
		}
		return 1
	})
	s.free = slices.Insert(s.free, i, span{offset, size})
	if i+1 < len(s.free) && s.free[i].offset+s.free[i].size == s.free[i+1].offset {
		s.free[i].size += s.free[i+1].size
		s.free = slices.Delete(s.free, i+1, i+2)
	}
	if i > 0 && s.free[i-1].offset+s.free[i-1].size == s.free[i].offset {
		s.free[i-1].size += s.free[i].size
		s.free = slices.Delete(s.free, i, i+1)
	}
	s.used -= size
}

func alignUp(v, align uint64) uint64 { return (v + align - 1) &^ (align - 1) }
