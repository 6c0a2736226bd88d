//go:build !cgo

package attention_test

import (
	"testing"

	"vkattn/vk"
)

// wrap is never called: no device opens in this build.
func (r *recording) wrap(testing.TB) (c *vk.Commands, again func()) { panic("no device") }
