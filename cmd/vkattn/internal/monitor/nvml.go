package monitor

import (
	"fmt"

	"github.com/ebitengine/purego"

	"vkattn/internal/ccall"
	"vkattn/internal/driverlib"
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
	// Drivers may lack the rest, which is then nil.
	maxClock func(device uintptr, kind uint32, mhz *uint32) int32
	limit    func(device uintptr, milliwatts *uint32) int32
	throttle func(device uintptr, reasons *uint64) int32
}

// loadNVML returns nil if the machine does not have the library.
func loadNVML() *nvml {
	lib, err := ccall.Open(driverlib.NVML)
	if err != nil {
		return nil
	}
	var n nvml
	for _, f := range []struct {
		name     string
		to       any
		optional bool
	}{
		{"nvmlInit_v2", &n.init, false},
		{"nvmlShutdown", &n.shutdown, false},
		{"nvmlDeviceGetHandleByUUID", &n.byUUID, false},
		{"nvmlDeviceGetClockInfo", &n.clock, false},
		{"nvmlDeviceGetPowerUsage", &n.power, false},
		{"nvmlDeviceGetTemperature", &n.temperature, false},
		{"nvmlDeviceGetMaxClockInfo", &n.maxClock, true},
		{"nvmlDeviceGetEnforcedPowerLimit", &n.limit, true},
		{"nvmlDeviceGetCurrentClocksThrottleReasons", &n.throttle, true},
	} {
		symbol, err := lib.Symbol(f.name)
		switch {
		case err == nil:
			purego.RegisterFunc(f.to, symbol)
		case !f.optional:
			return nil
		}
	}
	if n.init() != 0 {
		return nil
	}
	return &n
}

// Open finds the GPU of a device by its UUID. It returns nil if the machine does not have
// the library, or the library does not have the device.
func Open(u [16]byte) GPU {
	lib := loadNVML()
	if lib == nil {
		return nil
	}
	g := &nvmlGPU{lib: lib}
	if lib.byUUID(fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]), &g.device) != 0 {
		g.Close()
		return nil
	}
	return g
}

type nvmlGPU struct {
	lib    *nvml
	device uintptr
}

// Read returns what the driver tells. A number that it does not tell is 0.
func (g *nvmlGPU) Read() Reading {
	const sm, memory, die = 1, 2, 0 // NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU
	var r Reading
	var milliwatts, limit uint32
	g.lib.clock(g.device, sm, &r.SMMHz)
	g.lib.clock(g.device, memory, &r.MemoryMHz)
	g.lib.power(g.device, &milliwatts)
	g.lib.temperature(g.device, die, &r.Celsius)
	if g.lib.maxClock != nil {
		g.lib.maxClock(g.device, sm, &r.MaxSMMHz)
	}
	if g.lib.limit != nil {
		g.lib.limit(g.device, &limit)
	}
	if g.lib.throttle != nil {
		g.lib.throttle(g.device, (*uint64)(&r.Throttle))
	}
	r.PowerWatts, r.LimitWatts = float64(milliwatts)/1000, float64(limit)/1000
	return r
}

func (g *nvmlGPU) Close() { g.lib.shutdown() }
