package dispatch

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"vkattn/internal/errs"
	"vkattn/vk"
)

// kernelKey identifies a pipeline of an operation. It is comparable and, together with
// the operation's Config, describes the pipeline.
type kernelKey[C any] interface {
	comparable
	Pipeline(cfg *C) (*vk.PipelineDesc, error)
}

// Pipelines caches the pipelines of an operation by key. The zero value is empty. It is
// safe for concurrent use.
type Pipelines[K kernelKey[C], C any] struct {
	closed atomic.Bool
	mu     sync.RWMutex
	made   map[K]*vk.Pipeline
}

// Of returns the pipeline of a key and makes it if needed.
func (p *Pipelines[K, C]) Of(dev *vk.Device, cfg *C, key K) (*vk.Pipeline, error) {
	p.mu.RLock()
	found := p.made[key]
	p.mu.RUnlock()
	if found != nil {
		return found, nil
	}
	return p.make(dev, cfg, key)
}

// make makes a pipeline. If two goroutines ask for the same one, the device compiles it
// once.
func (p *Pipelines[K, C]) make(dev *vk.Device, cfg *C, key K) (*vk.Pipeline, error) {
	if p.closed.Load() {
		return nil, errs.ClosedOp
	}
	desc, err := key.Pipeline(cfg)
	if err != nil {
		return nil, err
	}
	made, err := dev.Pipeline(desc)
	switch {
	case errors.Is(err, vk.ErrUnsupported): // a feature that a plan does not ask for, on a device of the caller's
		return nil, errs.Refuse(err)
	case err != nil:
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return nil, errors.Join(errs.ClosedOp, made.Close())
	}
	if first := p.made[key]; first != nil {
		return first, made.Close()
	}
	if p.made == nil {
		p.made = map[K]*vk.Pipeline{}
	}
	p.made[key] = made
	return made, nil
}

// Close releases the pipelines. The device destroys one when no other operation and no
// work in flight holds it.
func (p *Pipelines[K, C]) Close() (err error) {
	p.closed.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, made := range p.made {
		err = errors.Join(err, made.Close())
	}
	p.made = nil
	return err
}

// All returns the pipelines that are made.
func (p *Pipelines[K, C]) All() []*vk.Pipeline {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.Collect(maps.Values(p.made))
}

// IsClosed reports whether close was called.
func (p *Pipelines[K, C]) IsClosed() bool { return p.closed.Load() }
