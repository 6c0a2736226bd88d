package vk

import (
	"fmt"
	"reflect"
	"slices"
)

// DeviceInfo describes a physical device.
type DeviceInfo struct {
	Index              int // position in the loader's list
	Name               string
	UUID               [16]byte // the same device in CUDA has the same UUID
	DriverUUID         [16]byte // devices must have equal driver UUIDs to share memory
	VendorID, DeviceID uint32
	Type               DeviceType
	APIVersion         uint32 // of the device; Version formats it
	DriverVersion      uint32 // encoded as the vendor likes
	DriverName         string // e.g. "llvmpipe"; empty if the driver does not tell
	DriverInfo         string // e.g. "Mesa 26.2.0 (LLVM 21)"
	Caps               Caps
	Unusable           string   // why Open would refuse the device; empty if it would not
	failed             error    // the call that failed, if that is why
	pipelineCacheUUID  [16]byte // key of the pipeline cache file
	queueFamily        uint32

	effectiveAPI uint32 // the smaller of the device's and the instance's version
}

// Version formats a packed Vulkan version as "1.4.312".
func Version(v uint32) string {
	return fmt.Sprintf("%d.%d.%d", v>>22&0x7f, v>>12&0x3ff, v&0xfff)
}

// DeviceType is VkPhysicalDeviceType.
type DeviceType uint32

// Kinds of devices.
const (
	DeviceOther DeviceType = iota
	DeviceIntegrated
	DeviceDiscrete
	DeviceVirtual
	DeviceCPU
)

func (t DeviceType) String() string {
	if names := [...]string{"other", "integrated", "discrete", "virtual", "cpu"}; int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("DeviceType(%d)", uint32(t))
}

// Caps are the capabilities of a device. Each feature is queried separately. In an open
// Device true means supported and enabled.
type Caps struct {
	// Shader arithmetic and storage.
	Float16            bool // 16-bit float arithmetic
	Int8, Int16, Int64 bool
	Storage16          bool // 16-bit types in storage buffers (and behind buffer addresses)
	UniformStorage16   bool // 16-bit types in uniform buffers too
	Storage8           bool
	BFloat16           bool // bfloat16 type: conversions and storage, no arithmetic
	BFloat16Dot        bool
	BFloat16CoopMat    bool // bfloat16 cooperative matrices; CoopMatShapes says which
	ScalarBlockLayout  bool
	// WorkgroupLayout: shared memory may be declared as blocks and aliased
	// (VK_KHR_workgroup_memory_explicit_layout, with the 8- and 16-bit parts).
	WorkgroupLayout, WorkgroupLayoutScalar, WorkgroupLayout8, WorkgroupLayout16 bool

	// Subgroups.
	SubgroupSize                     uint32 // of a pipeline that requires no size
	MinSubgroupSize, MaxSubgroupSize uint32 // both SubgroupSize without SubgroupSizeControl
	SubgroupSizeControl              bool   // a pipeline may ask for a size between the two, which may be equal
	FullSubgroups                    bool   // a pipeline may demand full subgroups
	SubgroupOps                      SubgroupOps
	SubgroupExtendedTypes            bool // subgroup operations on 8-, 16- and 64-bit types

	// Host side.
	TimelineSemaphore, BufferDeviceAddress    bool
	VulkanMemoryModel, MemoryModelDeviceScope bool
	Sync2, Maintenance4, HostQueryReset       bool
	RobustBufferAccess, Robustness2           bool // reported; enabled only by Options.RobustBufferAccess
	PipelineExecutable, PipelineRobustness    bool

	// Cooperative matrices.
	CoopMat       bool
	CoopMatShapes []CoopMatShape
	CoopMat2      CoopMat2

	// Extensions without a feature structure.
	ExternalMemoryFd                   bool // buffers as opaque file descriptors, both ways
	ExternalMemoryDedicated            bool // such buffers need a dedicated allocation
	ExternalSemaphoreFd                bool // timeline semaphores as opaque file descriptors, both ways
	CalibratedTimestamps, MemoryBudget bool
	BinaryImport                       bool // cubins can be launched (VK_NVX_binary_import), see Device.NewCubin
	DebugUtils                         bool

	// ShaderCores is the number of SMs (NVIDIA), compute units (AMD) or shader cores
	// (Arm); 0 if the driver does not tell.
	ShaderCores uint32

	Limits      Limits
	MemoryHeaps []Heap

	supported uint64 // bits of all features that the device has, enabled or not
}

// CoopMat2 is VK_NV_cooperative_matrix2, feature by feature.
type CoopMat2 struct {
	WorkgroupScope, FlexibleDimensions, Reductions, Conversions, PerElement, TensorAddressing, BlockLoads bool

	MaxWorkgroupInvocations uint32 // of a workgroup that uses workgroup-scope matrices
	MaxDimension            uint32 // of a flexible dimension
	ReservedSharedBytes     uint32 // taken from Limits.MaxSharedBytes at workgroup scope
	Flexible                []CoopMatShape
}

// CoopMatShape is one supported multiply-add: A is MxK, B is KxN, C and Result
// are MxN. In CoopMat2.Flexible M, N and K are granularities, and
// WorkgroupInvocations is the workgroup size the line is for (0 at subgroup
// scope).
type CoopMatShape struct {
	M, N, K              uint32
	A, B, C, Result      ComponentType
	Scope                Scope
	Saturating           bool
	WorkgroupInvocations uint32
}

func (s CoopMatShape) String() string {
	t := fmt.Sprintf("%dx%dx%d %v*%v+%v->%v %v", s.M, s.N, s.K, s.A, s.B, s.C, s.Result, s.Scope)
	if s.WorkgroupInvocations != 0 {
		t += fmt.Sprintf("/%d", s.WorkgroupInvocations)
	}
	if s.Saturating {
		t += " saturating"
	}
	return t
}

// ComponentType is VkComponentTypeKHR.
type ComponentType uint32

// Component types of cooperative matrices.
const (
	Float16  ComponentType = 0
	Float32  ComponentType = 1
	Float64  ComponentType = 2
	SInt8    ComponentType = 3
	SInt16   ComponentType = 4
	SInt32   ComponentType = 5
	SInt64   ComponentType = 6
	UInt8    ComponentType = 7
	UInt16   ComponentType = 8
	UInt32   ComponentType = 9
	UInt64   ComponentType = 10
	BFloat16 ComponentType = 1000141000
	E4M3     ComponentType = 1000491002
	E5M2     ComponentType = 1000491003
)

func (t ComponentType) String() string {
	names := [...]string{"f16", "f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"}
	switch {
	case int(t) < len(names):
		return names[t]
	case t == BFloat16:
		return "bf16"
	case t == E4M3:
		return "e4m3"
	case t == E5M2:
		return "e5m2"
	}
	return fmt.Sprintf("ComponentType(%d)", uint32(t))
}

// Scope is VkScopeKHR.
type Scope uint32

// Scopes of cooperative matrices.
const (
	ScopeDevice      Scope = 1
	ScopeWorkgroup   Scope = 2
	ScopeSubgroup    Scope = 3
	ScopeQueueFamily Scope = 5
)

func (s Scope) String() string {
	switch s {
	case ScopeDevice:
		return "device"
	case ScopeWorkgroup:
		return "workgroup"
	case ScopeSubgroup:
		return "subgroup"
	case ScopeQueueFamily:
		return "queue family"
	}
	return fmt.Sprintf("Scope(%d)", uint32(s))
}

// SubgroupOps is the set of subgroup operations compute shaders may use
// (VkSubgroupFeatureFlagBits).
type SubgroupOps uint32

// Kinds of subgroup operations.
const (
	SubgroupBasic SubgroupOps = 1 << iota
	SubgroupVote
	SubgroupArithmetic
	SubgroupBallot
	SubgroupShuffle
	SubgroupShuffleRelative
	SubgroupClustered
	SubgroupQuad
)

// Limits of a device, in bytes and invocations.
type Limits struct {
	MaxSharedBytes                  uint32 // shared memory of a workgroup
	MaxInvocations                  uint32 // of a workgroup
	MaxWorkGroupSize                [3]uint32
	MaxWorkGroupCount               [3]uint32
	MaxSubgroupsPerWorkgroup        uint32 // of a pipeline that requires a subgroup size; 0: not known
	MaxStorageBufferRange           uint64 // of a descriptor
	MinStorageBufferOffsetAlignment uint64
	MaxStorageBuffers               uint32 // bindings of one pipeline
	MaxPushConstantBytes            uint32
	MaxAllocationBytes              uint64 // guaranteed for one memory allocation; a driver may grant more
	MaxBufferBytes                  uint64 // of one buffer; 0 if the driver does not tell
	MaxAllocations                  uint32 // live memory allocations
	NonCoherentAtomSize             uint64
	TimestampPeriodNs               float64 // nanoseconds per tick
	TimestampValidBits              uint32  // 0: no timestamps
	MaxTimelineDifference           uint64
}

// Heap is a memory heap. Budget and Usage are what VK_EXT_memory_budget reported when the
// device was listed; 0 without the extension.
type Heap struct {
	Bytes         uint64
	DeviceLocal   bool
	Budget, Usage uint64
}

// featureFields are the paths to the booleans of Caps. Their indices are the feature bits of feature_table.go.
var featureFields = booleans(reflect.TypeFor[Caps](), nil)

func booleans(t reflect.Type, path []int) (list [][]int) {
	for i := range t.NumField() {
		at := append(path[:len(path):len(path)], i)
		switch f := t.Field(i).Type; f.Kind() {
		case reflect.Bool:
			list = append(list, at)
		case reflect.Struct:
			list = append(list, booleans(f, at)...)
		}
	}
	return list
}

var featureCount = len(featureFields)

// featureOf is the bit of the boolean of a name.
func featureOf(name string) int {
	return slices.IndexFunc(featureFields, func(path []int) bool { return reflect.TypeFor[Caps]().FieldByIndex(path).Name == name })
}

// feature is the boolean of a feature bit, for probing, enabling and the caller's claims in Wrap.
func (c *Caps) feature(bit int) *bool {
	return reflect.ValueOf(c).Elem().FieldByIndex(featureFields[bit]).Addr().Interface().(*bool)
}

func (c *Caps) bits() (b uint64) {
	for bit := range featureCount {
		if *c.feature(bit) {
			b |= 1 << bit
		}
	}
	return b
}

// setBits sets the booleans from the bits of b and clears what depends on a false one.
func (c *Caps) setBits(b uint64) {
	for bit := range featureCount {
		*c.feature(bit) = b>>bit&1 != 0
	}
	if !c.CoopMat {
		c.CoopMatShapes = nil
	}
	if !c.CoopMat2.FlexibleDimensions {
		c.CoopMat2.Flexible = nil
	}
	if !c.SubgroupSizeControl {
		c.MinSubgroupSize, c.MaxSubgroupSize = c.SubgroupSize, c.SubgroupSize
	}
}
