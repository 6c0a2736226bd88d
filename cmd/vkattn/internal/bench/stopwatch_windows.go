package bench

import (
	"math/bits"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

var (
	kernel32    = windows.NewLazySystemDLL("kernel32.dll")
	performance = kernel32.NewProc("QueryPerformanceCounter")
	frequency   = kernel32.NewProc("QueryPerformanceFrequency")
)

// Stopwatch starts a clock that is fine enough for one run. The result returns the time since. On Windows
// time.Now advances in steps of up to 15.6 ms, in which a short run takes no time.
func Stopwatch() func() time.Duration {
	var hertz uint64
	frequency.Call(uintptr(unsafe.Pointer(&hertz))) // neither call fails since Windows XP
	start := counter()
	return func() time.Duration {
		hi, lo := bits.Mul64(counter()-start, uint64(time.Second))
		ns, _ := bits.Div64(hi, lo, hertz)
		return time.Duration(ns)
	}
}

func counter() (ticks uint64) {
	performance.Call(uintptr(unsafe.Pointer(&ticks)))
	return ticks
}
