package attention

import (
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// TierReport tests every tier for every storage type on a device, at head dim 64. A nil
// device stands for a machine without one. Tier cuda is listed if the program imports
// vkattn/cudapath.
func TierReport(dev *vk.Device) []TierStatus { return plan.TierReport(dev) }

// TierReportOf is TierReport for a device that is listed but not open.
func TierReportOf(info *vk.DeviceInfo) []TierStatus { return plan.TierReportOf(info) }

// Requirements finds what a device must have to compute a Config on a tier, forward and, if the tier has
// them, gradients: features and extensions, with the chain that enables them, and limits. A program that
// creates its own device enables Features and gives Requirements.Enabled to [vk.Wrap]. It asks the functions
// that plan a call, and no device. A tier that computes nothing of the Config on any device, tier cuda and
// tier cpu give an error that matches [ErrUnsupported]; a build without Vulkan [vk.ErrNoDevice].
//
// With Config.Access AccessAuto they do not contain bufferDeviceAddress, since kernels take descriptors
// without it. AccessAddresses asks for it: recording a call then takes the host half the time
// (890 and 1750 ns, H200).
func Requirements(tier Tier, cfg Config) (vk.Requirements, error) {
	return plan.Requirements(tier, problem.Config(cfg))
}
