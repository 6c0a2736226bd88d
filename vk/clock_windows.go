package vk

import (
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"vkattn/internal/ccall"
)

// hostTimeDomain is the clock of the host that devices are calibrated against.
const hostTimeDomain = vkTimeDomainQueryPerformanceCounterKHR

var (
	kernel32  = windows.NewLazySystemDLL("kernel32.dll")
	counter   = kernel32.NewProc("QueryPerformanceCounter")
	frequency = sync.OnceValue(func() (f uint64) {
		call(kernel32.NewProc("QueryPerformanceFrequency").Addr(), uintptr(unsafe.Pointer(&f)))
		return f
	})
)

// counterCall is a call of QueryPerformanceCounter.
type counterCall struct {
	ccall.Frame
	to    *uint64
	ticks uint64
}

var counterCalls = sync.Pool{New: func() any {
	c := new(counterCall)
	c.Fn, c.Args, c.to = counter.Addr(), 1, &c.ticks
	return c
}}

func hostTicks() uint64 {
	c := counterCalls.Get().(*counterCall)
	defer counterCalls.Put(c)
	ccall.Run(&c.Frame)
	return c.ticks
}

func nanoseconds(ticks uint64) uint64 {
	f := frequency()
	return ticks/f*1e9 + ticks%f*1e9/f
}

// hostNow is a time of the host. time.Now of Windows advances in steps of up to 15.6 ms, longer than most work.
func hostNow() time.Duration { return time.Duration(nanoseconds(hostTicks())) }
