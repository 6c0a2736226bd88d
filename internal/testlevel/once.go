package testlevel

import (
	"os"
	"testing"
)

// HostOnly skips a test that uses no device, except in the run without a driver: its result
// is the same on every driver.
func HostOnly(t testing.TB) {
	t.Helper()
	if name := os.Getenv("VKATTN_DRIVER"); name != "" && name != "none" {
		t.Skip("the same without a Vulkan driver")
	}
}

// OnceOnly is HostOnly for a test that takes long.
func OnceOnly(t testing.TB) {
	t.Helper()
	HostOnly(t)
	Long(t)
}
