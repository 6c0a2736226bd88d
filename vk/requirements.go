package vk

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// Requirements are what kernels need of a device, by Vulkan's names, for a program that creates the device
// itself and gives it to [Wrap].
type Requirements struct {
	APIVersion uint32    // of the instance and of the device, at least
	Features   []Feature // to enable
	// Enabled has the booleans of Features, for External.Enabled. Its SubgroupOps are needed too, and
	// CoopMatShapes that suffice; a device may have others that do.
	Enabled Caps
	Limits  []Limit // suffice together, with subgroups of 32

	kernels Kernels
}

// Feature is a feature or an extension of a device.
type Feature struct {
	Name      string // member of Struct, such as "timelineSemaphore"; "" for an extension without features
	Struct    string // such as "VkPhysicalDeviceTimelineSemaphoreFeatures"
	Extension string // such as "VK_KHR_timeline_semaphore"; "" if every device has the structure
	Core      uint32 // the version of Vulkan from which on Extension need not be enabled; 0: none

	bit int // of the features
}

// Limit is a member of VkPhysicalDeviceLimits, or maxComputeWorkgroupSubgroups, with its least value.
type Limit struct {
	Name  string
	Least uint32
}

// Kernels returns the pipelines that a device with the given capabilities would run, or the reason why it
// cannot run them.
type Kernels func(*Caps) (list []*PipelineDesc, why string)

// Require finds what kernels need. It takes a device with every capability, switches each off in turn and
// leaves off those without which the kernels run. The error matches ErrUnsupported if they do not run even
// there.
func Require(kernels Kernels) (Requirements, error) {
	const op = "Require"
	if kernels == nil {
		return Requirements{}, invalid(op, "no kernels")
	}
	info := DeviceInfo{effectiveAPI: 1<<22 | 4<<12, Caps: everything()}
	if why := kernels.refuse(&info); why != "" {
		return Requirements{}, unsupported(op, "%s", why)
	}
	runs := func(change func(*DeviceInfo)) bool {
		less := info
		change(&less)
		ok := kernels.refuse(&less) == ""
		if ok {
			info = less
		}
		return ok
	}
	r := Requirements{kernels: kernels}
	for minor := uint32(3); minor >= 1 && runs(func(d *DeviceInfo) { d.effectiveAPI = 1<<22 | minor<<12 }); minor-- {
	}
	r.APIVersion = info.effectiveAPI
	for bit := range featureCount {
		if !runs(func(d *DeviceInfo) { d.Caps.setBits(d.Caps.bits() &^ (1 << bit)) }) {
			f := hostFeature(bit)
			f.bit = bit
			r.Features = append(r.Features, f)
		}
	}
	for o := SubgroupBasic; o <= SubgroupQuad; o <<= 1 {
		runs(func(d *DeviceInfo) { d.Caps.SubgroupOps &^= o })
	}
	for _, s := range info.Caps.CoopMatShapes {
		runs(func(d *DeviceInfo) {
			d.Caps.CoopMatShapes = slices.DeleteFunc(slices.Clone(d.Caps.CoopMatShapes), func(t CoopMatShape) bool { return s == t })
		})
	}
	for _, l := range limits {
		low, high := uint32(0), *l.of(&info.Caps.Limits) // refused with low, or every device has more; runs with high
		for low+1 < high {
			if mid := low + (high-low)/2; runs(func(d *DeviceInfo) { *l.of(&d.Caps.Limits) = mid }) {
				high = mid
			} else {
				low = mid
			}
		}
		if high > 1 {
			r.Limits = append(r.Limits, Limit{l.name, high})
		}
	}
	r.Enabled.setBits(info.Caps.bits())
	r.Enabled.SubgroupOps, r.Enabled.CoopMatShapes = info.Caps.SubgroupOps, info.Caps.CoopMatShapes
	return r, nil
}

// refuse says why a device does not run the kernels, "" if it does.
func (k Kernels) refuse(info *DeviceInfo) string {
	if why := unusable(info); why != "" {
		return why
	}
	list, why := k(&info.Caps)
	if why != "" {
		return why
	}
	for _, p := range list {
		if p == nil {
			return "no pipeline"
		}
		if err := info.checkPipeline(p); err != nil {
			return err.(*Error).Detail
		}
	}
	return ""
}

// everything has each capability, as far as kernels of cooperative matrices and others ask for it. Its
// subgroups and matrices are those of most GPUs.
func everything() (c Caps) {
	c.setBits(1<<featureCount - 1)
	c.SubgroupSize, c.MinSubgroupSize, c.MaxSubgroupSize = 32, 32, 32
	c.SubgroupOps = SubgroupQuad<<1 - 1
	for _, t := range []ComponentType{Float16, BFloat16} {
		c.CoopMatShapes = append(c.CoopMatShapes, CoopMatShape{M: 16, N: 16, K: 16, A: t, B: t, C: Float32, Result: Float32, Scope: ScopeSubgroup})
	}
	c.Limits.MinStorageBufferOffsetAlignment = 1
	for _, l := range limits {
		*l.of(&c.Limits) = 1<<31 - 1
	}
	c.Limits.MaxWorkGroupCount = [3]uint32{1<<31 - 1, 1<<16 - 1, 1<<16 - 1}
	return c
}

// limits are those that kernels may need, by Vulkan's names.
var limits = []struct {
	name string
	of   func(*Limits) *uint32
}{
	{"maxComputeSharedMemorySize", func(l *Limits) *uint32 { return &l.MaxSharedBytes }},
	{"maxComputeWorkGroupInvocations", func(l *Limits) *uint32 { return &l.MaxInvocations }},
	{"maxComputeWorkgroupSubgroups", func(l *Limits) *uint32 { return &l.MaxSubgroupsPerWorkgroup }},
	{"maxComputeWorkGroupSize[0]", func(l *Limits) *uint32 { return &l.MaxWorkGroupSize[0] }},
	{"maxComputeWorkGroupSize[1]", func(l *Limits) *uint32 { return &l.MaxWorkGroupSize[1] }},
	{"maxComputeWorkGroupSize[2]", func(l *Limits) *uint32 { return &l.MaxWorkGroupSize[2] }},
	{"maxPushConstantsSize", func(l *Limits) *uint32 { return &l.MaxPushConstantBytes }},
	{"maxPerStageDescriptorStorageBuffers", func(l *Limits) *uint32 { return &l.MaxStorageBuffers }},
}

// Extensions lists the device extensions to enable. apiVersion is the smaller of the versions of the device
// and of the instance: newer versions contain some of the extensions.
func (r Requirements) Extensions(apiVersion uint32) (names []string) {
	for _, f := range r.Features {
		if f.Extension != "" && (f.Core == 0 || apiVersion < f.Core) && !slices.Contains(names, f.Extension) {
			names = append(names, f.Extension)
		}
	}
	return names
}

// Missing lists what a device does not support of the requirements, "" if it can be created with them. The
// device is one of [Devices].
func (r Requirements) Missing(info *DeviceInfo) string {
	switch {
	case info == nil:
		return "no device"
	case r.kernels == nil:
		return "the requirements were not made by Require"
	}
	created := *info // with the required features alone
	created.Caps.setBits(info.Caps.bits() & r.Enabled.bits())
	why := r.kernels.refuse(&created)
	if why == "" {
		return ""
	}
	var gaps []string
	if info.effectiveAPI < r.APIVersion {
		gaps = append(gaps, "Vulkan "+Version(r.APIVersion))
	}
	have := info.Caps.bits()
	for _, f := range r.Features {
		if have>>f.bit&1 == 0 {
			gaps = append(gaps, f.String())
		}
	}
	if gaps == nil {
		return why // properties and limits
	}
	return strings.Join(gaps, ", ") + ": not supported"
}

// String has a line for each requirement.
func (r Requirements) String() string {
	lines := []string{"Vulkan " + Version(r.APIVersion)}
	for _, f := range r.Features {
		line := f.String()
		switch {
		case f.Core > r.APIVersion:
			line += ", part of Vulkan " + Version(f.Core)
		case f.Core != 0:
			line = f.Name
		}
		lines = append(lines, line)
	}
	for i, name := range subgroupOpNames {
		if r.Enabled.SubgroupOps>>i&1 != 0 {
			lines = append(lines, "VK_SUBGROUP_FEATURE_"+name+"_BIT")
		}
	}
	for _, s := range r.Enabled.CoopMatShapes {
		lines = append(lines, "cooperative matrices such as "+s.String())
	}
	for _, l := range r.Limits {
		lines = append(lines, fmt.Sprintf("%s >= %d", l.Name, l.Least))
	}
	return strings.Join(lines, "\n")
}

var subgroupOpNames = [...]string{"BASIC", "VOTE", "ARITHMETIC", "BALLOT", "SHUFFLE", "SHUFFLE_RELATIVE", "CLUSTERED", "QUAD"}

func (f Feature) String() string {
	switch {
	case f.Name == "":
		return f.Extension
	case f.Extension == "":
		return f.Name
	}
	return f.Name + " (" + f.Extension + ")"
}

// FeatureChain is a VkPhysicalDeviceFeatures2, whose pNext chain has a structure for each other feature. C code may
// use it: the garbage collector neither moves nor frees it before Close.
type FeatureChain struct {
	mu  sync.Mutex
	c   *featureChain
	pin runtime.Pinner
}

// pinnedChains are the open chains. The finalizer of a Pinner that still pins panics.
var pinnedChains sync.Map

// Chain returns the features as VkDeviceCreateInfo.pNext takes them; pEnabledFeatures is NULL then. The memory
// is the caller's until Close, which may follow vkCreateDevice at once. The caller may set further members, and
// chain further structures of C memory to the last one. Vulkan allows each structure once, and
// VkPhysicalDeviceVulkan11Features to VkPhysicalDeviceVulkan14Features only in place of the structures that they
// contain: a program that chains one of these sets its members by the names of Features. The error matches
// ErrInvalid for requirements that Require did not return.
func (r Requirements) Chain() (*FeatureChain, error) {
	if r.kernels == nil {
		return nil, unmade("Chain")
	}
	f := &FeatureChain{c: newFeatureChain(r.Enabled.bits())}
	f.pin.Pin(f.c)
	pinnedChains.Store(f, nil)
	return f, nil
}

// Pointer is the VkPhysicalDeviceFeatures2, nil after Close.
func (f *FeatureChain) Pointer() unsafe.Pointer {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return unsafe.Pointer(f.c)
}

// Close frees the chain. It may be called again, also by another goroutine.
func (f *FeatureChain) Close() error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.c != nil {
		f.pin.Unpin()
		pinnedChains.Delete(f)
		f.c = nil
	}
	return nil
}
