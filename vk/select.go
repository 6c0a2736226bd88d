package vk

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// typeRank orders device types for automatic choice, best first.
var typeRank = map[DeviceType]int{DeviceDiscrete: 0, DeviceIntegrated: 1, DeviceVirtual: 2, DeviceCPU: 3, DeviceOther: 4}

// choose finds the device of a spec: "" or "auto", an index, a UUID, or part of a name.
func choose(list []DeviceInfo, spec string) (int, error) {
	if spec == "" || spec == "auto" {
		return chooseBest(list)
	}
	if b, err := hex.DecodeString(strings.ReplaceAll(spec, "-", "")); err == nil && len(b) == 16 {
		for i := range list {
			if list[i].UUID == [16]byte(b) {
				return usable(list, i)
			}
		}
	}
	if i, err := strconv.Atoi(spec); err == nil && i >= 0 && i < len(list) {
		return usable(list, i)
	}
	var found []int
	for i := range list {
		if strings.Contains(strings.ToLower(list[i].Name), strings.ToLower(spec)) {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 0:
		return 0, refuse("Open", ErrNoDevice, "no device is meant by %q; there are%s", spec, listing(list, nil))
	case 1:
		return usable(list, found[0])
	}
	return 0, invalid("Open", "%q means more than one device:%s", spec, listing(list, found))
}

// chooseBest picks the device of the best type, the first listed of several.
func chooseBest(list []DeviceInfo) (int, error) {
	best := -1
	for i := range list {
		if list[i].Unusable == "" && (best < 0 || typeRank[list[i].Type] < typeRank[list[best].Type]) {
			best = i
		}
	}
	if best < 0 {
		return 0, refuse("Open", errors.Join(ErrNoDevice, ErrUnsupported), "no device can be used:%s", listing(list, nil))
	}
	return best, nil
}

func usable(list []DeviceInfo, i int) (int, error) {
	if why := list[i].Unusable; why != "" {
		return 0, unsupported("Open", "device %d (%s): %s", i, list[i].Name, why)
	}
	return i, nil
}

// listing names devices, all of them or those in only.
func listing(list []DeviceInfo, only []int) string {
	if only == nil {
		for i := range list {
			only = append(only, i)
		}
	}
	var s strings.Builder
	for _, i := range only {
		fmt.Fprintf(&s, " [%d] %s %x", i, list[i].Name, list[i].UUID)
		if list[i].Unusable != "" {
			fmt.Fprintf(&s, " (%s)", list[i].Unusable)
		}
		s.WriteByte(';')
	}
	return strings.TrimSuffix(s.String(), ";")
}
