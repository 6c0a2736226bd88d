package vk

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
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

// Pipeline is a handle of a compiled pipeline. It is safe for concurrent use.
type Pipeline struct {
	*compiled
	name   string
	closed atomic.Bool
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
	if err := d.info.checkPipeline(desc); err != nil {
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

// checkPipeline applies the device's limits.
func (info *DeviceInfo) checkPipeline(p *PipelineDesc) error {
	const op = "Pipeline"
	c, l := &info.Caps, &info.Caps.Limits
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
		if why := c.Without(Need{"computeFullSubgroups", func(c *Caps) bool { return c.FullSubgroups }}); why != "" {
			return cannot("%s", why)
		}
		if p.LocalSize[0]%size != 0 {
			return bad("full subgroups of %d need a local size in x that is a multiple, not %v", size, p.LocalSize)
		}
	}
	if err := info.checkSPIRV(op, p.Code); err != nil {
		err.(*Error).Detail = p.Name + ": " + err.(*Error).Detail
		return err
	}
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
	if p.retain() != nil { // another goroutine may close it during the call
		return nil, closed(op)
	}
	defer p.release()
	if !p.d.stats {
		return nil, unsupported(op, "the device was not opened with Stats, or cannot tell")
	}
	list, r := hostStatistics(p.d.c, p.handle)
	return list, p.d.check("vkGetPipelineExecutableStatisticsKHR", r)
}

// checkSPIRV checks the version and the capabilities of a module: a driver that does not
// have them need not return an error.
func (info *DeviceInfo) checkSPIRV(op string, code []byte) error {
	if len(code) < 20 || len(code)%4 != 0 {
		return invalid(op, "%d bytes are no SPIR-V module", len(code))
	}
	if binary.LittleEndian.Uint32(code) != 0x07230203 {
		return invalid(op, "the code does not start like little-endian SPIR-V")
	}
	have := uint32(3) // SPIR-V 1.3 comes with Vulkan 1.1
	switch v := info.effectiveAPI >> 12; {
	case v >= 1<<10|3:
		have = 6
	case v >= 1<<10|2:
		have = 5
	}
	if v := binary.LittleEndian.Uint32(code[4:]); v>>16 != 1 || v>>8&0xff > have {
		return unsupported(op, "SPIR-V %d.%d; Vulkan %s takes up to 1.%d", v>>16, v>>8&0xff, Version(info.effectiveAPI), have)
	}
	var missing []string
	var needs []Need
	require := func(id uint32, need Need, kind string) {
		if !need.Have(&info.Caps) {
			missing = append(missing, fmt.Sprintf("%s (%s %d)", need.Name, kind, id))
			needs = append(needs, need)
		}
	}
	for at := 20; at < len(code); {
		w := binary.LittleEndian.Uint32(code[at:])
		n := int(w >> 16)
		if n == 0 || at+4*n > len(code) {
			return invalid(op, "broken SPIR-V instruction at byte %d", at)
		}
		switch w & 0xffff {
		case 17: // OpCapability
			if n != 2 {
				return invalid(op, "broken OpCapability at byte %d", at)
			}
			id := binary.LittleEndian.Uint32(code[at+4:])
			if need, ok := capabilities[id]; ok {
				require(id, need, "capability")
			}
		case 331: // OpExecutionModeId
			if n < 3 {
				return invalid(op, "broken OpExecutionModeId at byte %d", at)
			}
			if id := binary.LittleEndian.Uint32(code[at+8:]); id == 38 { // LocalSizeId
				require(id, Need{"maintenance4", func(c *Caps) bool { return c.Maintenance4 }}, "execution mode")
			}
		case 10, 11, 14, 15, 16: // what stands between them
		default:
			at = len(code)
		}
		at += 4 * n
	}
	if missing != nil {
		return unsupported(op, "the code needs %s; %s", strings.Join(missing, ", "), info.Caps.Without(needs...))
	}
	return nil
}

// capabilities maps capabilities of compute kernels to the Caps that they need. Others are
// left to the driver.
var capabilities = map[uint32]Need{
	9:    {"float16", func(c *Caps) bool { return c.Float16 }},
	11:   {"int64", func(c *Caps) bool { return c.Int64 }},
	22:   {"int16", func(c *Caps) bool { return c.Int16 }},
	39:   {"int8", func(c *Caps) bool { return c.Int8 }},
	61:   {"subgroup operations", ops(SubgroupBasic)},
	62:   {"subgroup vote", ops(SubgroupVote)},
	63:   {"subgroup arithmetic", ops(SubgroupArithmetic)},
	64:   {"subgroup ballot", ops(SubgroupBallot)},
	65:   {"subgroup shuffle", ops(SubgroupShuffle)},
	66:   {"relative subgroup shuffle", ops(SubgroupShuffleRelative)},
	67:   {"clustered subgroup operations", ops(SubgroupClustered)},
	68:   {"quad subgroup operations", ops(SubgroupQuad)},
	4428: {"workgroup memory layout", func(c *Caps) bool { return c.WorkgroupLayout }},
	4429: {"8-bit workgroup memory layout", func(c *Caps) bool { return c.WorkgroupLayout8 }},
	4430: {"16-bit workgroup memory layout", func(c *Caps) bool { return c.WorkgroupLayout16 }},
	4433: {"16-bit storage", func(c *Caps) bool { return c.Storage16 }},
	4434: {"16-bit storage in uniform and storage buffers", func(c *Caps) bool { return c.UniformStorage16 }},
	4448: {"8-bit storage", func(c *Caps) bool { return c.Storage8 }},
	5116: {"bfloat16", func(c *Caps) bool { return c.BFloat16 }},
	5117: {"bfloat16 dot product", func(c *Caps) bool { return c.BFloat16Dot }},
	5118: {"bfloat16 cooperative matrices", func(c *Caps) bool { return c.BFloat16CoopMat }},
	5345: {"the Vulkan memory model", func(c *Caps) bool { return c.VulkanMemoryModel }},
	5346: {"the memory model at device scope", func(c *Caps) bool { return c.MemoryModelDeviceScope }},
	5347: {"buffer device addresses", func(c *Caps) bool { return c.BufferDeviceAddress }},
	5430: {"cooperative matrix reductions", func(c *Caps) bool { return c.CoopMat2.Reductions }},
	5431: {"cooperative matrix conversions", func(c *Caps) bool { return c.CoopMat2.Conversions }},
	5432: {"per-element cooperative matrix operations", func(c *Caps) bool { return c.CoopMat2.PerElement }},
	5433: {"cooperative matrix tensor addressing", func(c *Caps) bool { return c.CoopMat2.TensorAddressing }},
	5434: {"cooperative matrix block loads", func(c *Caps) bool { return c.CoopMat2.BlockLoads }},
	5439: {"tensor addressing", func(c *Caps) bool { return c.CoopMat2.TensorAddressing }},
	6022: {"cooperative matrices", func(c *Caps) bool { return c.CoopMat }},
}

func ops(want SubgroupOps) func(*Caps) bool {
	return func(c *Caps) bool { return c.SubgroupOps&want == want }
}
