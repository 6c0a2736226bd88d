// Package dispatch has what every operation needs to dispatch a kernel: the description of
// its pipeline, a cache of pipelines, bindings of tensors, the bytes of a parameter block.
package dispatch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"vkattn/internal/errs"
	"vkattn/internal/problem"
	"vkattn/shaders"
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

// DescribeKernel describes a module and its constants to package vk. Push constants,
// bindings and shared memory are those that the SPIR-V declares.
func DescribeKernel(m *shaders.Module, local uint32, constants map[uint32]uint32) (*vk.PipelineDesc, error) {
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
		NoRobustness:   true, // argument checks and the kernel's own bounds prove every index
	}
	for id, value := range constants {
		desc.Constants = append(desc.Constants, vk.SpecConstant{ID: id, Value: value})
	}
	slices.SortFunc(desc.Constants, func(a, b vk.SpecConstant) int { return cmp.Compare(a.ID, b.ID) })
	return desc, nil
}

// ModuleName returns the name of a kernel's module for an access.
func ModuleName(kernel string, a problem.Access) string {
	if a == problem.AccessDescriptors {
		return kernel + "_ssbo"
	}
	return kernel + "_bda"
}

// BoolConstant is the value of a boolean specialization constant.
func BoolConstant(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Capabilities that several kernels need, by Vulkan's names.
var (
	NeedAddresses = vk.Need{Name: "bufferDeviceAddress", Have: func(c *vk.Caps) bool { return c.BufferDeviceAddress }}
	NeedInt16     = vk.Need{Name: "shaderInt16", Have: func(c *vk.Caps) bool { return c.Int16 }}
	NeedFloat16   = vk.Need{Name: "shaderFloat16", Have: func(c *vk.Caps) bool { return c.Float16 }}
)

// MatrixNeeds lists what kernels need that multiply cooperative matrices of f16 or bf16.
func MatrixNeeds(t problem.DType) []vk.Need {
	needs := []vk.Need{
		{Name: "VK_KHR_cooperative_matrix", Have: func(c *vk.Caps) bool { return c.CoopMat }},
		{Name: "vulkanMemoryModel", Have: func(c *vk.Caps) bool { return c.VulkanMemoryModel }},
		NeedFloat16,
		{Name: "subgroupSizeControl", Have: func(c *vk.Caps) bool { return c.SubgroupSizeControl }},
		{Name: "computeFullSubgroups", Have: func(c *vk.Caps) bool { return c.FullSubgroups }},
	}
	if t == problem.BF16 {
		needs[2] = vk.Need{Name: "shaderBFloat16CooperativeMatrix", Have: func(c *vk.Caps) bool { return c.BFloat16CoopMat }}
	}
	return needs
}

// A kernel reaches a tensor in one of two ways: by the device address of its first element,
// or through a storage buffer descriptor and the position of that element in it. See
// vk.Buffer.Window.

// BatchesInSpan returns how many batches a descriptor of span bytes covers, at most most.
// A batch has extent elements of size bytes and starts step elements after the previous
// one. One batch fits in span.
func BatchesInSpan(most, span, size, extent, step uint64) uint64 {
	if step == 0 || most <= 1 {
		return most
	}
	return min(most, 1+(span/size-extent)/step)
}

// EmptyBinding returns a few bytes of a buffer for a binding that the kernel does not use.
// Vulkan requires a buffer in each.
func EmptyBinding(b *vk.Buffer) vk.BufferRange {
	return vk.BufferRange{Buffer: b, Size: min(b.Size(), 4)}
}

// ParamBytes returns the first n bytes of a block. The module declares n bytes; Go rounds
// the size of the struct up to a multiple of 8. T has no pointers, and n is at most its size.
func ParamBytes[T any](p *T, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), n)
}

// Step is the distance in bytes from the first element of a tensor of one batch, query head
// or KV head to that of the next.
type Step struct{ Batch, Head, KVHead uint64 }

// To returns the distance to a batch and query head. group is the number of query heads of a
// KV head.
func (s Step) To(batch, head, group int) uint64 {
	return s.Batch*uint64(batch) + s.Head*uint64(head) + s.KVHead*uint64(head/group)
}

// LargestFragment returns the device's largest subgroup-scope fragment of f16 or bf16 with
// float32 sums, up to 16x16x16. The error matches problem.ErrUnsupported if it has none.
func LargestFragment(caps *vk.Caps, dtype problem.DType) (frag vk.CoopMatShape, err error) {
	component := vk.Float16
	switch {
	case dtype == problem.F32:
		return frag, fmt.Errorf("%w: there are no float32 cooperative matrices", problem.ErrUnsupported)
	case dtype == problem.BF16:
		component = vk.BFloat16
	}
	if why := caps.Without(append(MatrixNeeds(dtype), NeedFloat16)...); why != "" {
		return frag, fmt.Errorf("%w: %s", problem.ErrUnsupported, why)
	}
	for _, f := range caps.CoopMatShapes {
		if f.A == component && f.B == component && f.C == vk.Float32 && f.Result == vk.Float32 && f.Scope == vk.ScopeSubgroup &&
			!f.Saturating && f.M%8 == 0 && f.N%8 == 0 && f.K%8 == 0 && max(f.M, f.N, f.K) <= 16 && f.M*f.N*f.K > frag.M*frag.N*frag.K {
			frag = f
		}
	}
	if frag.M == 0 {
		return frag, fmt.Errorf("%w: the device has no subgroup-scope fragment of %v with float32 sums", problem.ErrUnsupported, dtype)
	}
	return frag, nil
}
