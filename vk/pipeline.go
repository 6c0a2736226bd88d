package vk

// #include "host.h"
// #include <stdlib.h>
import "C"

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// SpecConstant sets a 32-bit specialization constant.
type SpecConstant struct{ ID, Value uint32 }

// PipelineDesc describes a compute pipeline with the entry point "main". Equal
// descriptions share a pipeline; Name is not compared.
type PipelineDesc struct {
	Name      string
	Code      []byte   // SPIR-V; not used after the call
	Hash      [32]byte // SHA-256 of Code; computed when zero
	Constants []SpecConstant
	// SubgroupSize requires a size; 0 leaves it to the driver. FullSubgroups requires
	// that every subgroup is full.
	SubgroupSize  uint32
	FullSubgroups bool
	PushBytes     uint32 // of push constants, a multiple of 4
	// StorageBuffers is the number of bindings of set 0, which are storage buffers.
	StorageBuffers uint32
	// LocalSize and SharedBytes are the workgroup size and the bytes of shared memory
	// that the code declares with these Constants. They are checked against the limits
	// of the device, as a driver may lose the device instead of returning an error.
	LocalSize   [3]uint32
	SharedBytes uint64
	// NoRobustness turns off bounds checks for this pipeline if the device can do so
	// (Caps.PipelineRobustness). Set it for kernels that prove their indices.
	NoRobustness bool
}

// pipelineKey is a PipelineDesc as a comparable value.
type pipelineKey struct {
	hash                      [32]byte
	constants                 string
	subgroup, push, buffers   uint32
	full, noRobustness, stats bool
}

// compiled is a pipeline that the handles of equal descriptions share.
type compiled struct {
	refs
	d               *Device
	key             pipelineKey
	handle          uint64
	layout, sets    uint64 // VkPipelineLayout and VkDescriptorSetLayout
	local           [3]uint32
	compile         time.Duration
	ready           chan struct{} // closed when handle or err is set
	err             error
	gone            bool // destroyed; under pipelineSet.mu
	push, nbindings uint32
}

// Pipeline is a handle of a compiled pipeline. It is safe for concurrent use.
type Pipeline struct {
	*compiled
	name   string
	closed atomic.Bool
}

type layoutKey struct{ buffers, push uint32 }
type layouts struct{ sets, layout uint64 }

type pipelineSet struct {
	mu      sync.Mutex
	list    map[pipelineKey]*compiled
	layouts map[layoutKey]layouts
	cache   cacheFile
}

func (s *pipelineSet) init() {
	s.list = map[pipelineKey]*compiled{}
	s.layouts = map[layoutKey]layouts{}
}

// Pipeline compiles a pipeline, or returns the one of an equal description. Concurrent
// calls with equal descriptions compile once. A description that exceeds a limit is
// refused before Vulkan is called: the error matches ErrInvalid if no device supports it,
// and ErrUnsupported if this device does not. The caller closes the handle; the pipeline
// is destroyed with its last handle.
func (d *Device) Pipeline(desc *PipelineDesc) (*Pipeline, error) {
	const op = "Pipeline"
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.leave()
	if desc == nil {
		return nil, invalid(op, "no description")
	}
	if err := d.checkPipeline(desc); err != nil {
		return nil, err
	}
	key := keyOf(desc, d.stats)
	set := &d.pipelines
	set.mu.Lock()
	c := set.list[key]
	if c != nil && c.acquire() {
		set.mu.Unlock()
		<-c.ready
		if c.err != nil {
			c.release()
			return nil, c.err
		}
		return &Pipeline{compiled: c, name: desc.Name}, nil
	}
	c = &compiled{d: d, key: key, local: desc.LocalSize, push: desc.PushBytes, nbindings: desc.StorageBuffers, ready: make(chan struct{})}
	c.n.Store(1)
	set.list[key] = c
	set.mu.Unlock()
	c.err = c.build(desc)
	close(c.ready)
	if c.err != nil {
		c.release()
		return nil, c.err
	}
	d.compiledOne()
	return &Pipeline{compiled: c, name: desc.Name}, nil
}

func keyOf(desc *PipelineDesc, stats bool) pipelineKey {
	k := pipelineKey{hash: desc.Hash, subgroup: desc.SubgroupSize, push: desc.PushBytes, buffers: desc.StorageBuffers,
		full: desc.FullSubgroups, noRobustness: desc.NoRobustness, stats: stats}
	if k.hash == [32]byte{} {
		k.hash = sha256.Sum256(desc.Code)
	}
	sorted := slices.SortedFunc(slices.Values(desc.Constants), func(a, b SpecConstant) int { return cmp.Compare(a.ID, b.ID) })
	var b []byte
	for _, c := range sorted {
		b = binary.LittleEndian.AppendUint32(b, c.ID)
		b = binary.LittleEndian.AppendUint32(b, c.Value)
	}
	k.constants = string(b)
	return k
}

// checkPipeline applies the device's limits.
func (d *Device) checkPipeline(p *PipelineDesc) error {
	const op = "Pipeline"
	c, l := &d.info.Caps, &d.info.Caps.Limits
	bad := func(format string, args ...any) error { return invalid(op, p.Name+": "+format, args...) }
	cannot := func(format string, args ...any) error { return unsupported(op, p.Name+": "+format, args...) }
	total := uint64(1)
	for i, n := range p.LocalSize {
		if n == 0 {
			return bad("local size %v", p.LocalSize)
		}
		if n > l.MaxWorkGroupSize[i] {
			return cannot("local size %v, the device allows %v", p.LocalSize, l.MaxWorkGroupSize)
		}
		total *= uint64(n)
	}
	if total > uint64(l.MaxInvocations) {
		return cannot("%d invocations in a workgroup, the device allows %d", total, l.MaxInvocations)
	}
	if p.SharedBytes > uint64(l.MaxSharedBytes) {
		return cannot("%d bytes of shared memory, the device has %d", p.SharedBytes, l.MaxSharedBytes)
	}
	if p.PushBytes%4 != 0 {
		return bad("%d bytes of push constants are no multiple of 4", p.PushBytes)
	}
	if p.PushBytes > l.MaxPushConstantBytes {
		return cannot("%d bytes of push constants, the device has %d", p.PushBytes, l.MaxPushConstantBytes)
	}
	if p.StorageBuffers > l.MaxStorageBuffers {
		return cannot("%d storage buffers, the device allows %d", p.StorageBuffers, l.MaxStorageBuffers)
	}
	for i, s := range p.Constants {
		for _, t := range p.Constants[:i] {
			if s.ID == t.ID {
				return bad("constant %d is given twice", s.ID)
			}
		}
	}
	size := c.SubgroupSize
	if n := p.SubgroupSize; n != 0 {
		size = n
		switch {
		case n&(n-1) != 0:
			return bad("subgroup size %d", n)
		case n < c.MinSubgroupSize || n > c.MaxSubgroupSize:
			return cannot("subgroup size %d, the device has %d to %d", n, c.MinSubgroupSize, c.MaxSubgroupSize)
		case c.SubgroupSizeControl && l.MaxSubgroupsPerWorkgroup > 0 && total > uint64(n)*uint64(l.MaxSubgroupsPerWorkgroup):
			return cannot("%d invocations are more than %d subgroups of %d", total, l.MaxSubgroupsPerWorkgroup, n)
		}
	}
	if p.FullSubgroups {
		if !c.FullSubgroups {
			return cannot("the device does not promise full subgroups")
		}
		if p.LocalSize[0]%size != 0 {
			return bad("full subgroups of %d need a local size in x that is a multiple, not %v", size, p.LocalSize)
		}
	}
	if err := d.checkSPIRV(op, p.Code); err != nil {
		err.(*Error).Detail = p.Name + ": " + err.(*Error).Detail
		return err
	}
	return nil
}

// build compiles the pipeline. Constants are passed to C as two arrays of numbers.
func (c *compiled) build(desc *PipelineDesc) error {
	d := c.d
	if err := d.layoutFor(c); err != nil {
		return err
	}
	n := len(desc.Constants)
	ids, values := make([]uint32, n+1), make([]uint32, n+1)
	for i, s := range desc.Constants {
		ids[i], values[i] = s.ID, s.Value
	}
	var flags C.uint32_t
	if desc.FullSubgroups {
		flags |= C.VKA_PIPELINE_FULL_SUBGROUPS
	}
	if desc.NoRobustness && d.info.Caps.PipelineRobustness {
		flags |= C.VKA_PIPELINE_NO_ROBUSTNESS
	}
	if d.stats {
		flags |= C.VKA_PIPELINE_STATISTICS
	}
	subgroup := desc.SubgroupSize
	if !d.info.Caps.SubgroupSizeControl {
		subgroup = 0 // the device has one size, and checkPipeline has compared it
	}
	start := time.Now()
	r := C.vka_create_pipeline(d.c, C.uint64_t(d.pipelines.cache.handle), C.uint64_t(c.layout),
		(*C.uint8_t)(unsafe.Pointer(&desc.Code[0])), C.size_t(len(desc.Code)),
		C.uint32_t(n), u32(&ids[0]), u32(&values[0]), C.uint32_t(subgroup), flags, u64(&c.handle))
	c.compile = time.Since(start)
	if err := d.check("vkCreateComputePipelines", r); err != nil {
		err.(*Error).Detail = desc.Name
		return err
	}
	if c.handle == 0 { // some drivers return success without a pipeline
		return &Error{Op: "vkCreateComputePipelines", Err: ErrUnsupported, Detail: desc.Name + ": the driver made no pipeline"}
	}
	d.setName(C.VK_OBJECT_TYPE_PIPELINE, c.handle, desc.Name)
	return nil
}

// layoutFor returns the layouts for a number of bindings and push constants, and creates
// them if needed. They live as long as the device.
func (d *Device) layoutFor(c *compiled) error {
	s := &d.pipelines
	s.mu.Lock()
	defer s.mu.Unlock()
	k := layoutKey{c.nbindings, c.push}
	l, ok := s.layouts[k]
	if !ok {
		r := C.vka_create_layouts(d.c, C.uint32_t(k.buffers), C.uint32_t(k.push), u64(&l.sets), u64(&l.layout))
		if err := d.check("vkCreatePipelineLayout", r); err != nil {
			return err
		}
		s.layouts[k] = l
	}
	c.sets, c.layout = l.sets, l.layout
	return nil
}

// Name is the name in the description.
func (p *Pipeline) Name() string {
	if p == nil {
		return ""
	}
	return p.name
}

// LocalSize is the workgroup size of the description.
func (p *Pipeline) LocalSize() [3]uint32 {
	if p.device() == nil {
		return [3]uint32{}
	}
	return p.local
}

// CompileTime is the time that the driver took to create the pipeline. It is near 0 if
// the pipeline was in its cache.
func (p *Pipeline) CompileTime() time.Duration {
	if p.device() == nil {
		return 0
	}
	return p.compile
}

// Handle is the VkPipeline.
func (p *Pipeline) Handle() uint64 {
	if p.device() == nil {
		return 0
	}
	return p.handle
}

// device is the device of the pipeline, nil for a zero Pipeline.
func (p *Pipeline) device() *Device {
	if p == nil || p.compiled == nil {
		return nil
	}
	return p.d
}

// Close releases the handle. The pipeline is destroyed when its last handle is closed and
// no work in flight uses it.
func (p *Pipeline) Close() error {
	if p == nil || p.closed.Swap(true) || !p.device().stay() {
		return nil
	}
	defer p.d.life.RUnlock()
	p.release()
	return nil
}

func (p *Pipeline) retain() error {
	if p.closed.Load() {
		return closed("use of a pipeline")
	}
	return p.compiled.retain()
}

func (c *compiled) retain() error {
	if !c.acquire() {
		return closed("use of a pipeline")
	}
	return nil
}

func (c *compiled) release() {
	if c.drop() {
		s := &c.d.pipelines
		s.mu.Lock()
		if s.list[c.key] == c {
			delete(s.list, c.key)
		}
		c.destroy()
		s.mu.Unlock()
	}
}

func (c *compiled) destroy() {
	if !c.gone && c.handle != 0 {
		C.vka_destroy_pipeline(c.d.c, C.uint64_t(c.handle))
	}
	c.gone = true
}

// destroy destroys all pipelines. The device is idle.
func (s *pipelineSet) destroy(d *Device) {
	s.cache.stop()
	d.savePipelineCache()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.list {
		c.destroy()
	}
	for _, l := range s.layouts {
		C.vka_destroy_layouts(d.c, C.uint64_t(l.sets), C.uint64_t(l.layout))
	}
	if s.cache.handle != 0 {
		C.vka_destroy_cache(d.c, C.uint64_t(s.cache.handle))
	}
	s.list, s.layouts = nil, nil
}

// Statistic is a number that the driver's compiler reports of a pipeline, such as its
// registers, spills or instructions.
type Statistic struct {
	Executable, Name, Description string
	Value                         float64
}

// Statistics returns the compiler's statistics in its order. Without Options.Stats, or
// without VK_KHR_pipeline_executable_properties, the error matches ErrUnsupported.
func (p *Pipeline) Statistics() ([]Statistic, error) {
	const op = "Statistics"
	if err := p.device().enter(op); err != nil {
		return nil, err
	}
	defer p.d.leave()
	if p.closed.Load() {
		return nil, closed(op)
	}
	if !p.d.stats {
		return nil, unsupported(op, "the device was not opened with Stats, or cannot tell")
	}
	var n C.uint32_t
	var list *C.vka_statistic
	if err := p.d.check("vkGetPipelineExecutableStatisticsKHR", C.vka_statistics(p.d.c, C.uint64_t(p.handle), &n, &list)); err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(list))
	out := make([]Statistic, 0, n)
	for _, s := range unsafe.Slice(list, int(n)) {
		out = append(out, Statistic{text(s.executable[:]), text(s.name[:]), text(s.description[:]), float64(s.value)})
	}
	return out, nil
}
