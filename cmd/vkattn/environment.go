package main

import (
	"bufio"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vkattn/cmd/vkattn/internal/bench"
)

// environment describes the build of this program and the machine. What cannot be read is
// left empty.
func environment() bench.Environment {
	e := bench.Environment{Go: runtime.Version(), OS: operatingSystem(), CPUModel: fieldOf("/proc/cpuinfo", ":", "model name")}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				e.Commit = s.Value
			case "vcs.modified":
				e.Modified = s.Value == "true"
			}
		}
	}
	return e
}

// operatingSystem is the name of the distribution, the kernel and the architecture.
func operatingSystem() string {
	parts := []string{}
	name := fieldOf("/etc/os-release", "=", "PRETTY_NAME")
	if plain, err := strconv.Unquote(name); err == nil {
		name = plain
	}
	if name != "" {
		parts = append(parts, name)
	}
	kernel := runtime.GOOS
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	return strings.Join(append(parts, kernel, runtime.GOARCH), ", ")
}

// fieldOf returns the first value of a key in a file with one "key separator value" a line.
func fieldOf(path, separator, key string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, found := strings.Cut(lines.Text(), separator); found && strings.TrimSpace(name) == key {
			return strings.ToValidUTF8(strings.TrimSpace(value), "\uFFFD")
		}
	}
	return ""
}
