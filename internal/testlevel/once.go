package testlevel

import (
	"os"
	"testing"
)

// OnceOnly skips a slow test that uses no device, except in the run without a driver: its
// result is the same on every driver.
func OnceOnly(t *testing.T) {
	if name := os.Getenv("VKATTN_DRIVER"); name != "" && name != "none" {
		t.Skip("the same without a Vulkan driver")
	}
	Long(t)
}
