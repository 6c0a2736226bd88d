//go:build !windows

package ccall

import (
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
)

// libraryFunction is a function of C that takes no argument and does next to nothing.
func libraryFunction(t testing.TB) uintptr {
	fn, err := purego.Dlsym(purego.RTLD_DEFAULT, "getpagesize")
	require.NoError(t, err)
	return fn
}
