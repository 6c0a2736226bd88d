//go:build !cgo || windows

package monitor

import "vkattn/vk"

// Open returns nil: a build without cgo, or for Windows, opens no device.
func Open(*vk.Device) GPU { return nil }
