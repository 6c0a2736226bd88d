// Package testdevices opens the devices that tests compute on, and makes operations for them.
package testdevices

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// All returns the CPU, and the Vulkan device under test if there is one that computes.
func All(t testing.TB) []*attention.Device {
	t.Helper()
	options := []attention.Options{{CPU: true}}
	if driver := os.Getenv("VKATTN_DRIVER"); driver != "" && driver != "none" && !testdevice.Null() {
		options = append(options, attention.Options{Vulkan: vk.Options{Device: "0"}}) // Open leaves drivers of the CPU out
	}
	var list []*attention.Device
	for _, o := range options {
		dev, err := attention.Open(o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, dev.Close()) })
		list = append(list, dev)
	}
	return list
}

// Op makes an operation, and closes it after the test.
func Op(t testing.TB, d *attention.Device, cfg attention.Config) *attention.Op {
	t.Helper()
	op, err := attention.New(d, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, op.Close()) })
	return op
}
