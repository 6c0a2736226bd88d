package attention

import (
	"vkattn/internal/plan"
	"vkattn/vk"
)

// RegisterCUDA makes tier cuda available; package cudapath calls it. A later
// registration replaces an earlier one, and nil makes the tier unavailable.
func RegisterCUDA(c CUDA) { plan.RegisterCUDA(c) }

// RegisterCubins makes tier cubin available; package cudapath calls it. A later
// registration replaces an earlier one.
func RegisterCubins(c Cubins) { plan.RegisterCubins(c) }

// TierReport tests every tier for every storage type on a device, at head dim 64. A nil
// device stands for a machine without one. Tier cuda is listed if the program imports
// vkattn/cudapath.
func TierReport(dev *vk.Device) []TierStatus { return plan.TierReport(dev) }

// TierReportOf is TierReport for a device that is listed but not open.
func TierReportOf(info *vk.DeviceInfo) []TierStatus { return plan.TierReportOf(info) }
