//go:build cgo && !windows

package monitor

import (
	"github.com/ebitengine/purego"

	"vkattn/internal/driverlib"
)

func openNVML() (uintptr, error) {
	return purego.Dlopen(driverlib.NVML, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func symbolOf(lib uintptr, name string) (uintptr, error) { return purego.Dlsym(lib, name) }
