package attention

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"vkattn/shaders"
	"vkattn/vk"
)

// kernelKey is what the pipelines of an operation differ by: a comparable value that,
// with the operation's configuration, describes one.
type kernelKey[C any] interface {
	comparable
	pipeline(cfg *C) (*vk.PipelineDesc, error)
}

// pipelines are those an operation has needed so far, by key; the zero value has
// none. Many goroutines may use it.
type pipelines[K kernelKey[C], C any] struct {
	closed atomic.Bool
	mu     sync.RWMutex
	made   map[K]*vk.Pipeline
}

// of finds or makes a pipeline.
func (p *pipelines[K, C]) of(dev *vk.Device, cfg *C, key K) (*vk.Pipeline, error) {
	p.mu.RLock()
	found := p.made[key]
	p.mu.RUnlock()
	if found != nil {
		return found, nil
	}
	return p.make(dev, cfg, key)
}

// make makes a pipeline. Two goroutines may both ask for it; the device compiles it
// once.
func (p *pipelines[K, C]) make(dev *vk.Device, cfg *C, key K) (*vk.Pipeline, error) {
	if p.closed.Load() {
		return nil, fmt.Errorf("attention: %w", vk.ErrClosed)
	}
	desc, err := key.pipeline(cfg)
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

// close gives them back to the device, which destroys those that no other operation
// has and no work in flight holds.
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

// describeKernel describes a module with its constants to the host layer, as far as the
// SPIR-V says it of itself.
func describeKernel(m *shaders.Module, local uint32, constants map[uint32]uint32) (*vk.PipelineDesc, error) {
	r, err := m.Reflect()
	if err != nil {
		return nil, err
	}
	shared, err := r.SharedBytes(constants)
	if err != nil {
		return nil, err
	}
	desc := &vk.PipelineDesc{
		Code:           m.Code,
		Hash:           m.Hash,
		PushBytes:      uint32(r.PushConstantBytes()),
		StorageBuffers: uint32(len(r.Bindings())),
		LocalSize:      [3]uint32{local, 1, 1},
		SharedBytes:    shared,
		NoRobustness:   true, // every index is proven by the checks of a call and the kernel's own bounds
	}
	for id, value := range constants {
		desc.Constants = append(desc.Constants, vk.SpecConstant{ID: id, Value: value})
	}
	slices.SortFunc(desc.Constants, func(a, b vk.SpecConstant) int { return cmp.Compare(a.ID, b.ID) })
	return desc, nil
}

// moduleName is that of the module of a kernel that reaches memory in one way.
func moduleName(kernel string, a Access) string {
	if a == AccessDescriptors {
		return kernel + "_ssbo"
	}
	return kernel + "_bda"
}
