package attention

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"vkattn/vk"
)

// kernelKey identifies a pipeline of an operation. It is comparable and, together with
// the operation's Config, describes the pipeline.
type kernelKey[C any] interface {
	comparable
	Pipeline(cfg *C) (*vk.PipelineDesc, error)
}

// pipelines caches the pipelines of an operation by key. The zero value is empty. It is
// safe for concurrent use.
type pipelines[K kernelKey[C], C any] struct {
	closed atomic.Bool
	mu     sync.RWMutex
	made   map[K]*vk.Pipeline
}

// of returns the pipeline of a key and makes it if needed.
func (p *pipelines[K, C]) of(dev *vk.Device, cfg *C, key K) (*vk.Pipeline, error) {
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
func (p *pipelines[K, C]) make(dev *vk.Device, cfg *C, key K) (*vk.Pipeline, error) {
	if p.closed.Load() {
		return nil, fmt.Errorf("attention: %w", vk.ErrClosed)
	}
	desc, err := key.Pipeline(cfg)
	if err != nil {
		return nil, err
	}
	made, err := dev.Pipeline(desc)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return nil, errors.Join(fmt.Errorf("attention: %w", vk.ErrClosed), made.Close())
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

// close releases the pipelines. The device destroys one when no other operation and no
// work in flight holds it.
func (p *pipelines[K, C]) close() (err error) {
	p.closed.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, made := range p.made {
		err = errors.Join(err, made.Close())
	}
	p.made = nil
	return err
}
