package attention

import (
	"vkattn/internal/plan"
	"vkattn/vk"
)

// TierReport tests every tier for every storage type on a device, at head dim 64. A nil
// device stands for a machine without one. Tier cuda is listed if the program imports
// vkattn/cudapath.
func TierReport(dev *vk.Device) []TierStatus { return plan.TierReport(dev) }

// TierReportOf is TierReport for a device that is listed but not open.
func TierReportOf(info *vk.DeviceInfo) []TierStatus { return plan.TierReportOf(info) }
