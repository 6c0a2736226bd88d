package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cudapath"
	"vkattn/vk"
)

// need is what a command computes with. It decides what --device auto takes.
type need int

const (
	needAny    need = iota // a GPU, or else the CPU tier
	needVulkan             // a Vulkan device
	needTiers              // a Vulkan device of any kind, or else the CPU tier: rows of tiers that cannot run say why
	needCPU                // the CPU tier
)

// needOf is what a tier needs.
func needOf(tier attention.Tier) need {
	switch tier {
	case attention.TierAuto, attention.TierNoCUDA:
		return needAny
	case attention.TierCPU:
		return needCPU
	}
	return needVulkan
}

// needOfTiers is what a list of tiers needs. all: without a list all tiers of the device run,
// otherwise TierAuto.
func needOfTiers(tiers []attention.Tier, all bool) need {
	switch {
	case len(tiers) == 0 && all:
		return needTiers
	case len(tiers) == 0:
		return needAny
	case len(tiers) == 1:
		return needOf(tiers[0])
	}
	least := needCPU
	for _, tier := range tiers {
		switch needOf(tier) {
		case needVulkan:
			return needTiers
		case needAny:
			least = needAny
		}
	}
	return least
}

// openDevice opens the device of --device. what names the need in errors. It returns nil for
// the CPU tier, which needs no device. Where "auto" falls back on the CPU it says why. The
// caller closes the device.
func (a *app) openDevice(name string, need need, what string) (*vk.Device, error) {
	auto := name == "" || strings.EqualFold(name, "auto")
	cpu := strings.EqualFold(name, "cpu")
	switch {
	case cpu && need == needVulkan:
		return nil, unsupportedf("%s does not run on --device cpu", what)
	case a.validation && (cpu || auto && need == needCPU):
		return nil, badInputf("--validation needs a Vulkan device, but this runs on the CPU")
	case cpu, auto && need == needCPU:
		return nil, nil
	case need == needCPU:
		return nil, unsupportedf("tier cpu does not run on a Vulkan device: leave out --device %s", name)
	}
	if auto {
		name = "auto"
	}
	dev, err := vk.Open(vk.Options{Device: name, GPUOnly: need == needAny && !a.validation, Validation: a.validation,
		Stats: a.stats, Debug: a.labels, Timeout: a.timeout})
	switch {
	case errors.Is(err, vk.ErrInvalid): // several devices have that name
		return nil, badInputf("--device %s: %w", name, err)
	case err == nil:
		a.noteDevice(dev, auto)
		return dev, nil
	case !errors.Is(err, vk.ErrNoDevice):
		return nil, err
	}
	if auto && a.validation {
		return nil, unsupportedf("--validation needs a Vulkan device: %w", err)
	}
	if auto && need != needVulkan {
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

// openAny is openDevice for commands that also compute on a CUDA device without Vulkan: "cuda", "cuda:" and an ordinal
// or UUID, or auto on a machine that has CUDA and no Vulkan device for the tiers. It returns nil for the CPU. The caller
// closes the device with closeAny.
func (a *app) openAny(name string, tiers []attention.Tier, need need, what string) (*attention.Device, error) {
	which, named := strings.CutPrefix(strings.ToLower(name), "cuda")
	which, of := strings.CutPrefix(which, ":")
	named = named && (which == "" || of)
	others := func(tier attention.Tier) bool {
		return tier != attention.TierCUDA && tier != attention.TierCPU && tier != attention.TierAuto
	}
	auto := name == "" || strings.EqualFold(name, "auto")
	if auto && need != needCPU && !a.validation && !slices.ContainsFunc(tiers, others) && cudapath.Available() == nil {
		list, _ := vk.Devices()
		named = !slices.ContainsFunc(list, func(d vk.DeviceInfo) bool { return need == needTiers || d.Type != vk.DeviceCPU })
		which = ""
	}
	if !named {
		dev, err := a.openDevice(name, need, what)
		if dev == nil || err != nil {
			return nil, err
		}
		return attention.On(dev), nil
	}
	if i := slices.IndexFunc(tiers, others); i >= 0 || need == needCPU {
		return nil, unsupportedf("tier %v does not run on --device %s, which has tier cuda alone", tiers[max(i, 0)], name)
	}
	if a.validation {
		return nil, badInputf("--validation needs a Vulkan device, but --device %s is none", name)
	}
	dev, err := cudapath.OpenDevice(cudapath.DeviceOptions{Device: which})
	switch {
	case errors.Is(err, vk.ErrInvalid) || errors.Is(err, vk.ErrNoDevice):
		return nil, badInputf("--device %s: %w", name, err)
	case errors.Is(err, vk.ErrUnsupported):
		return nil, unsupportedf("--device %s: %w", name, err)
	case err == nil && auto:
		fmt.Fprintf(a.stderr, "vkattn: there is no Vulkan device; computing on CUDA, %s\n", deviceLabel(dev))
	}
	return dev, err
}

// closeAny closes a device of openAny, which may be nil.
func closeAny(dev *attention.Device) { _, _ = dev.Vulkan().Close(), dev.Close() }

// noteDevice prints what the user should know of a device that was opened.
func (a *app) noteDevice(dev *vk.Device, auto bool) {
	for _, d := range dev.PassedOver() {
		fmt.Fprintf(a.stderr, "vkattn: device %d (%s) is passed over: %s\n", d.Index, d.Name, flagtext.OneLine(d.Unusable))
	}
	if auto && dev.Info().Type == vk.DeviceCPU {
		if hint := vk.DriverHint(); hint != "" {
			fmt.Fprintf(a.stderr, "vkattn: %s; computing on %s\n", hint, dev.Info().Name)
		}
	}
	if note := dev.PipelineCacheNote(); note != "" {
		fmt.Fprintf(a.stderr, "vkattn: %s\n", note)
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
func deviceLabel(dev *attention.Device) string {
	if c := cudapath.ContextOf(dev); c != nil {
		return c.Info().Name
	}
	if gpu := dev.Vulkan(); gpu != nil {
		return gpu.Info().Name
	}
	return "cpu"
}
