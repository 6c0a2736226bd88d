//go:build !cgo || windows

package monitor

// Open returns nil: a build without cgo, or for Windows, opens no device.
func Open([16]byte) GPU { return nil }
