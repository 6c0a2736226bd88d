package vk

// featureBits has for each feature bit of feature_table.go, in its order, its field in Caps, for
// probing, enabling and the caller's claims in Wrap.
var featureBits = [featureCount]func(*Caps) *bool{
	func(c *Caps) *bool { return &c.Float16 },
	func(c *Caps) *bool { return &c.Int8 },
	func(c *Caps) *bool { return &c.Int16 },
	func(c *Caps) *bool { return &c.Int64 },
	func(c *Caps) *bool { return &c.Storage16 },
	func(c *Caps) *bool { return &c.UniformStorage16 },
	func(c *Caps) *bool { return &c.Storage8 },
	func(c *Caps) *bool { return &c.BFloat16 },
	func(c *Caps) *bool { return &c.BFloat16Dot },
	func(c *Caps) *bool { return &c.BFloat16CoopMat },
	func(c *Caps) *bool { return &c.ScalarBlockLayout },
	func(c *Caps) *bool { return &c.WorkgroupLayout },
	func(c *Caps) *bool { return &c.WorkgroupLayoutScalar },
	func(c *Caps) *bool { return &c.WorkgroupLayout8 },
	func(c *Caps) *bool { return &c.WorkgroupLayout16 },
	func(c *Caps) *bool { return &c.SubgroupSizeControl },
	func(c *Caps) *bool { return &c.FullSubgroups },
	func(c *Caps) *bool { return &c.SubgroupExtendedTypes },
	func(c *Caps) *bool { return &c.TimelineSemaphore },
	func(c *Caps) *bool { return &c.BufferDeviceAddress },
	func(c *Caps) *bool { return &c.VulkanMemoryModel },
	func(c *Caps) *bool { return &c.MemoryModelDeviceScope },
	func(c *Caps) *bool { return &c.Sync2 },
	func(c *Caps) *bool { return &c.Maintenance4 },
	func(c *Caps) *bool { return &c.HostQueryReset },
	func(c *Caps) *bool { return &c.RobustBufferAccess },
	func(c *Caps) *bool { return &c.Robustness2 },
	func(c *Caps) *bool { return &c.PipelineExecutable },
	func(c *Caps) *bool { return &c.PipelineRobustness },
	func(c *Caps) *bool { return &c.CoopMat },
	func(c *Caps) *bool { return &c.CoopMat2.WorkgroupScope },
	func(c *Caps) *bool { return &c.CoopMat2.FlexibleDimensions },
	func(c *Caps) *bool { return &c.CoopMat2.Reductions },
	func(c *Caps) *bool { return &c.CoopMat2.Conversions },
	func(c *Caps) *bool { return &c.CoopMat2.PerElement },
	func(c *Caps) *bool { return &c.CoopMat2.TensorAddressing },
	func(c *Caps) *bool { return &c.CoopMat2.BlockLoads },
	func(c *Caps) *bool { return &c.ExternalMemoryFd },
	func(c *Caps) *bool { return &c.ExternalMemoryDedicated },
	func(c *Caps) *bool { return &c.ExternalSemaphoreFd },
	func(c *Caps) *bool { return &c.CalibratedTimestamps },
	func(c *Caps) *bool { return &c.MemoryBudget },
	func(c *Caps) *bool { return &c.BinaryImport },
	func(c *Caps) *bool { return &c.DebugUtils },
}

func (c *Caps) bits() (b uint64) {
	for bit, field := range featureBits {
		if *field(c) {
			b |= 1 << bit
		}
	}
	return b
}

// setBits sets the booleans from the bits of b and clears what depends on a false one.
func (c *Caps) setBits(b uint64) {
	for bit, field := range featureBits {
		*field(c) = b>>bit&1 != 0
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
