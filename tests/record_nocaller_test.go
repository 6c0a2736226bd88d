//go:build !cgo

package tests

import (
	"testing"

	"vkattn/vk"
)

// callersCommands skips: goki/vulkan, which makes the caller's command buffers, needs cgo.
type callersCommands struct{}

func newCallersCommands(t *testing.T, _ *vk.Device) *callersCommands {
	t.Skip("goki/vulkan needs cgo")
	return nil
}

func (*callersCommands) begin(*testing.T) *vk.Commands { return nil }
func (*callersCommands) end(*testing.T)                {}
func (*callersCommands) submit(*testing.T)             {}
