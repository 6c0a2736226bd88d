package vk

import "slices"

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
