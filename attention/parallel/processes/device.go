package processes

import (
	"fmt"
	"strconv"

	"vkattn/attention/parallel"
	"vkattn/cudapath"
	"vkattn/internal/errs"
	"vkattn/vk"
)

// Device is the device of a rank for vk.Options: the CUDA device whose number is that of the rank
// on its host, so that CUDA_VISIBLE_DEVICES counts. If only one CUDA device is visible, it is that
// one. Without CUDA the rank counts the GPUs of Vulkan, best first (vk.Order). The error matches
// vk.ErrNoDevice if there are fewer GPUs.
func Device(localRank int) (string, error) {
	if localRank < 0 {
		return "", errs.Invalid("processes: rank %d of the host", localRank)
	}
	list := gpus()
	switch {
	case localRank < len(list):
		return list[localRank], nil
	case len(list) == 1 && cudapath.Available() == nil:
		return list[0], nil
	}
	return "", fmt.Errorf("processes: %w: rank %d of this host, which has %d GPUs", vk.ErrNoDevice, localRank, len(list))
}

// GPUs is the number of GPUs from which Device chooses.
func GPUs() int { return len(gpus()) }

// gpus names the GPUs of this host.
func gpus() (names []string) {
	if list, err := cudapath.Devices(); err == nil {
		for _, d := range list {
			names = append(names, fmt.Sprintf("%x", d.UUID))
		}
		return names
	}
	list, err := vk.Devices()
	if err != nil {
		return nil
	}
	for _, i := range vk.Order(list) {
		if list[i].Type != vk.DeviceCPU {
			names = append(names, strconv.Itoa(i))
		}
	}
	return names
}

// KindOf is the kind of a Transport of this package; TransportAuto for another one.
func KindOf(t parallel.Transport) Transport {
	switch t.(type) {
	case *overNCCL:
		return TransportNCCL
	case *overTCP:
		return TransportTCP
	}
	return TransportAuto
}
