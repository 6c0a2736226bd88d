//go:build unix

// Package testfifo makes named pipes for tests.
package testfifo

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Make makes a named pipe, or skips the test where there are none.
func Make(t testing.TB, path string, mode uint32) {
	t.Helper()
	require.NoError(t, syscall.Mkfifo(path, mode))
}
