package problem

import "sync/atomic"

// Memory is attention.Memory, whose comment documents it.
type Memory struct {
	b      Backing
	closed atomic.Bool
}

// Backing is the memory as its device has it.
type Backing interface {
	Device() any     // whose memory it is; comparable
	Address() uint64 // of its first byte; the device's memories do not overlap where their addresses do not
	Size() uint64    // bytes
	Close() error    // it frees the memory once no work in flight uses it
}

// NewMemory is the Memory of a backing.
func NewMemory(b Backing) *Memory { return &Memory{b: b} }

// BackingOf returns what NewMemory was given, nil of nil.
func BackingOf(m *Memory) Backing {
	if m == nil {
		return nil
	}
	return m.b
}

// Size is 0 of nil.
func (m *Memory) Size() uint64 {
	if m == nil || m.b == nil {
		return 0
	}
	return m.b.Size()
}

// Closed is true of nil.
func (m *Memory) Closed() bool { return m == nil || m.b == nil || m.closed.Load() }

// Close is idempotent.
func (m *Memory) Close() error {
	if m == nil || m.b == nil || m.closed.Swap(true) {
		return nil
	}
	return m.b.Close()
}
