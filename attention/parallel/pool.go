package parallel

import (
	"errors"
	"sync"

	"vkattn/vk"
)

// pool keeps the device buffers of an operation's last call for the next one. Allocating them and
// importing them into another API takes milliseconds, and most calls have the sizes of the one
// before.
type pool struct {
	mu     sync.Mutex
	free   []*vk.Buffer
	closed bool
}

// take returns a buffer of exactly that size; nil if there is none.
func (p *pool) take(dev *vk.Device, size uint64, o vk.BufferOptions) *vk.Buffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, b := range p.free {
		if b.Device() == dev && b.Size() == size && b.Memory() == o.Memory && b.Exportable() == o.Exportable {
			p.free[i] = p.free[len(p.free)-1]
			p.free = p.free[:len(p.free)-1]
			return b
		}
	}
	return nil
}

// keep keeps the buffers of a call that has finished, and closes those that it did not take.
func (p *pool) keep(list []*vk.Buffer) error {
	p.mu.Lock()
	old := p.free
	p.free = list
	if p.closed {
		p.free, old = nil, append(old, list...)
	}
	p.mu.Unlock()
	return closeAll(old)
}

// drop closes all buffers.
func (p *pool) drop() error { return p.keep(nil) }

// close closes all buffers, also those that calls under way return later.
func (p *pool) close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	return p.drop()
}

// bytes is the size of all buffers.
func (p *pool) bytes() (n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.free {
		n += b.Size()
	}
	return n
}

func closeAll(list []*vk.Buffer) error {
	var all []error
	for _, b := range list {
		all = append(all, b.Close())
	}
	return errors.Join(all...)
}
