package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"vkattn/cmd/vkattn/internal/bench"
)

// version is set by -ldflags "-X main.version=v1.2.3".
var version = ""

// buildVersion is the version set at link time, or else the one the Go tool recorded.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "devel"
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if r := settings["vcs.revision"]; v == "devel" && len(r) >= 12 {
		v += "-" + r[:12]
		if settings["vcs.modified"] == "true" {
			v += "-dirty"
		}
	}
	return v
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "print the version of the command, of Go and the platform",
		Example: `  vkattn version`,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(a.stdout, "vkattn %s %s %s/%s\n", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

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
