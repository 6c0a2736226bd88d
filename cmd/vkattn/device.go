package main

import (
	"errors"
	"fmt"
	"strings"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/vk"
)

// openDevice opens the device of --device for a tier. It returns nil for the CPU tier,
// which needs no device. With "auto" and no Vulkan device it prints a note and returns
// nil. The caller closes the device.
func (a *app) openDevice(name string, tier attention.Tier) (*vk.Device, error) {
	return a.openDeviceFor(name, tier, fmt.Sprintf("tier %v", tier))
}

// openDeviceFor is openDevice for what errors name.
func (a *app) openDeviceFor(name string, tier attention.Tier, what string) (*vk.Device, error) {
	auto := name == "" || strings.EqualFold(name, "auto")
	cpu := strings.EqualFold(name, "cpu")
	switch {
	case cpu && tier != attention.TierAuto && tier != attention.TierCPU:
		return nil, unsupportedf("%s does not run on --device cpu", what)
	case a.validation && (cpu || auto && tier == attention.TierCPU):
		return nil, badInputf("--validation needs a Vulkan device, but this runs on the CPU")
	case cpu, auto && tier == attention.TierCPU:
		return nil, nil
	case tier == attention.TierCPU:
		return nil, unsupportedf("tier cpu does not run on a Vulkan device: leave out --device %s", name)
	}
	if auto {
		name = "auto"
	}
	dev, err := vk.Open(vk.Options{Device: name, Validation: a.validation, Stats: a.stats, Debug: a.labels})
	switch {
	case errors.Is(err, vk.ErrInvalid): // several devices have that name
		return nil, badInputf("--device %s: %w", name, err)
	case err == nil:
		if auto && dev.Info().Type == vk.DeviceCPU {
			if hint := vk.DriverHint(); hint != "" {
				fmt.Fprintf(a.stderr, "vkattn: %s; computing on %s\n", hint, dev.Info().Name)
			}
		}
		if note := dev.PipelineCacheNote(); note != "" {
			fmt.Fprintf(a.stderr, "vkattn: %s\n", note)
		}
		return dev, nil
	case !errors.Is(err, vk.ErrNoDevice):
		return nil, err
	}
	if auto && a.validation {
		return nil, unsupportedf("--validation needs a Vulkan device: %w", err)
	}
	if auto && tier == attention.TierAuto {
		fmt.Fprintf(a.stderr, "vkattn: %s; computing on the CPU\n", flagtext.OneLine(err.Error()))
		return nil, nil
	}
	if auto {
		return nil, unsupportedf("%s needs a Vulkan device: %w", what, err)
	}
	// If there are devices, the name is wrong: bad input. Without devices the request
	// is unsupported.
	if list, listErr := vk.Devices(); listErr == nil && len(list) > 0 {
		return nil, badInputf("--device %s: %w", name, err)
	}
	return nil, unsupportedf("--device %s: %w", name, err)
}

// closeDevice closes a device of openDevice, which may be nil.
func closeDevice(dev *vk.Device) {
	if dev != nil {
		_ = dev.Close()
	}
}

// validated returns an error if the validation layers, where loaded, have reported
// messages.
func validated(dev *vk.Device) error {
	if dev == nil {
		return nil
	}
	if list := dev.ValidationMessages(); len(list) > 0 {
		return &coded{exitDevice, fmt.Errorf("%d messages of the validation layers, the first: %v", len(list), list[0])}
	}
	return nil
}

// deviceLabel is the name of a device in tables, "cpu" for nil.
func deviceLabel(dev *vk.Device) string {
	if dev == nil {
		return "cpu"
	}
	return dev.Info().Name
}
