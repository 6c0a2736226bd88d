//go:build !windows

package vk

import (
	"time"

	"golang.org/x/sys/unix"
)

// hostTimeDomain is the clock of the host that devices are calibrated against.
const hostTimeDomain = vkTimeDomainClockMonotonicKHR

func hostTicks() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return uint64(t.Nano())
}

func nanoseconds(ticks uint64) uint64 { return ticks }

// epoch is when the times of hostNow begin.
var epoch = time.Now()

// hostNow is a time of the host.
func hostNow() time.Duration { return time.Since(epoch) }
