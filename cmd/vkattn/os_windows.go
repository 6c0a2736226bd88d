package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/windows"
)

// kernel is the name and the release of the operating system's kernel.
func kernel() string {
	v := windows.RtlGetVersion()
	return fmt.Sprintf("Windows %d.%d.%d", v.MajorVersion, v.MinorVersion, v.BuildNumber)
}

// terminate ends a process: Windows has no signal that asks it to end.
func terminate(p *os.Process) error { return p.Kill() }
