//go:build !cgo

package tests

import (
	"testing"

	"vkattn/vk"
)

// callersCommands is never used: no device opens in this build.
type callersCommands struct{}

func newCallersCommands(*testing.T, *vk.Device) *callersCommands { panic("no device") }

func (*callersCommands) begin(*testing.T) *vk.Commands { panic("no device") }
func (*callersCommands) end(*testing.T)                {}
func (*callersCommands) submit(*testing.T)             {}
