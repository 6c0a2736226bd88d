package bench

import (
	"fmt"

	"github.com/ebitengine/purego"

	"vkattn/vk"
)

// nvml is the part of the NVIDIA management library that is used. purego loads it at run
// time. go-nvml leaves its symbols unresolved at link time: with a linker that binds
// eagerly, as Ubuntu's, a program does not start without the library.
type nvml struct {
	init, shutdown func() int32
	byUUID         func(uuid string, device *uintptr) int32
	clock          func(device uintptr, kind uint32, mhz *uint32) int32
	power          func(device uintptr, milliwatts *uint32) int32
	temperature    func(device uintptr, sensor uint32, celsius *uint32) int32
}

// loadNVML returns nil if the machine does not have the library.
func loadNVML() *nvml {
	lib, err := purego.Dlopen("libnvidia-ml.so.1", purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil
	}
	var n nvml
	for name, f := range map[string]any{
		"nvmlInit_v2": &n.init, "nvmlShutdown": &n.shutdown, "nvmlDeviceGetHandleByUUID": &n.byUUID,
		"nvmlDeviceGetClockInfo": &n.clock, "nvmlDeviceGetPowerUsage": &n.power, "nvmlDeviceGetTemperature": &n.temperature,
	} {
		symbol, err := purego.Dlsym(lib, name)
		if err != nil {
			return nil
		}
		purego.RegisterFunc(f, symbol)
	}
	if n.init() != 0 {
		return nil
	}
	return &n
}

// OpenClock returns a function that reads the clocks of a device, found by its UUID, and
// one that ends the use of the library. read is nil if the library does not exist or does
// not have the device.
func OpenClock(dev *vk.Device) (read func() *Clock, stop func()) {
	stop = func() {}
	if dev == nil {
		return nil, stop
	}
	lib := loadNVML()
	if lib == nil {
		return nil, stop
	}
	stop = func() { lib.shutdown() }
	u := dev.Info().UUID
	var gpu uintptr
	if lib.byUUID(fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]), &gpu) != 0 {
		return nil, stop
	}
	return func() *Clock {
		const sm, memory, die = 1, 2, 0 // NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU
		var c Clock
		var milliwatts uint32
		lib.clock(gpu, sm, &c.SMMHz)
		lib.clock(gpu, memory, &c.MemoryMHz)
		lib.power(gpu, &milliwatts)
		lib.temperature(gpu, die, &c.Celsius)
		c.PowerWatts = float64(milliwatts) / 1000
		return &c
	}, stop
}
