//go:build !cgo || !windows

package vk

import "time"

// epoch is when the times of hostNow begin.
var epoch = time.Now()

// hostNow is a time of the host.
func hostNow() time.Duration { return time.Since(epoch) }
