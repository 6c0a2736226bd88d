package vk

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
	"time"
)

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
		hostDestroyLayouts(d.c, l.sets, l.layout)
	}
	if s.cache.handle != 0 {
		d.c.destroy(d.c.DestroyPipelineCache, s.cache.handle)
	}
	s.list, s.layouts = nil, nil
}

// pipelineKey is a PipelineDesc as a comparable value.
type pipelineKey struct {
	hash                      [32]byte
	constants                 string
	subgroup, push, buffers   uint32
	full, noRobustness, stats bool
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

// build compiles the pipeline. Constants are passed to C as two arrays of numbers.
func (c *compiled) build(desc *PipelineDesc) error {
	d := c.d
	if err := d.layoutFor(c); err != nil {
		return err
	}
	n := len(desc.Constants)
	ids, values := make([]uint32, n), make([]uint32, n)
	for i, s := range desc.Constants {
		ids[i], values[i] = s.ID, s.Value
	}
	var flags uint32
	if desc.FullSubgroups {
		flags |= pipelineFullSubgroups
	}
	if desc.NoRobustness && d.info.Caps.PipelineRobustness {
		flags |= pipelineNoRobustness
	}
	if d.stats {
		flags |= pipelineStatistics
	}
	subgroup := desc.SubgroupSize
	if d.info.Caps.MinSubgroupSize == d.info.Caps.MaxSubgroupSize {
		subgroup = 0 // checkPipeline has compared it with the only size
	}
	start := time.Now()
	r := hostCreatePipeline(d.c, d.pipelines.cache.handle, c.layout,
		desc.Code, ids, values, subgroup, flags, &c.handle)
	c.compile = time.Since(start)
	if err := d.check("vkCreateComputePipelines", r); err != nil {
		err.(*Error).Detail = desc.Name
		return err
	}
	if c.handle == 0 { // some drivers return success without a pipeline
		return &Error{Op: "vkCreateComputePipelines", Err: ErrUnsupported, Detail: desc.Name + ": the driver made no pipeline"}
	}
	d.setName(objectPipeline, c.handle, desc.Name)
	return nil
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
		c.d.c.destroy(c.d.c.DestroyPipeline, c.handle)
	}
	c.gone = true
}

type layoutKey struct{ buffers, push uint32 }

type layouts struct{ sets, layout uint64 }

// layoutFor returns the layouts for a number of bindings and push constants, and creates
// them if needed. They live as long as the device.
func (d *Device) layoutFor(c *compiled) error {
	s := &d.pipelines
	s.mu.Lock()
	defer s.mu.Unlock()
	k := layoutKey{c.nbindings, c.push}
	l, ok := s.layouts[k]
	if !ok {
		r := hostCreateLayouts(d.c, k.buffers, k.push, &l.sets, &l.layout)
		if err := d.check("vkCreatePipelineLayout", r); err != nil {
			return err
		}
		s.layouts[k] = l
	}
	c.sets, c.layout = l.sets, l.layout
	return nil
}
