package ccall

import (
	"testing"

	"golang.org/x/sys/windows"
)

// libraryFunction is a function of C that takes no argument and does next to nothing.
func libraryFunction(testing.TB) uintptr {
	return windows.NewLazySystemDLL("kernel32.dll").NewProc("GetCurrentThreadId").Addr()
}
