//go:build cgo

package vk

// #include "host.h"
// #cgo nocallback vka_now
import "C"

import "time"

// hostNow is a time of the host. time.Now of Windows advances in steps of up to 15.6 ms, longer than most work.
func hostNow() time.Duration { return time.Duration(C.vka_now()) }
