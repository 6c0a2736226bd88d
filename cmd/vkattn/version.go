package main

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"vkattn/cmd/vkattn/internal/bench"
)

// version is the version of the program: that of the newest section of CHANGELOG.md.
const version = "v0.1.0"

// build describes the version, and the commit if the Go tool recorded it.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitzero"` // the source was not as committed
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

func thisBuild() build {
	b := build{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	return b
}

// buildVersion is the version with the commit, such as v0.1.0+0123456789ab.dirty.
func buildVersion() string {
	b := thisBuild()
	if len(b.Commit) < 12 {
		return version
	}
	if b.Modified {
		return version + "+" + b.Commit[:12] + ".dirty"
	}
	return version + "+" + b.Commit[:12]
}

func versionLine() string {
	return fmt.Sprintf("vkattn %s %s %s/%s", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func (a *app) versionCommand() *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use:     "version",
		Short:   "print the version of the command, of Go and the platform",
		Example: `  vkattn version --json`,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return bench.WriteJSON(a.stdout, thisBuild())
			}
			_, err := fmt.Fprintln(a.stdout, versionLine())
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print version, commit, Go and platform as JSON")
	return c
}

// environment describes the build of this program and the machine. What cannot be read is
// left empty.
func environment() bench.Environment {
	b := thisBuild()
	return bench.Environment{Go: b.Go, OS: operatingSystem(), CPUModel: fieldOf("/proc/cpuinfo", ":", "model name"),
		Commit: b.Commit, Modified: b.Modified}
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
	return strings.Join(append(parts, cmp.Or(kernel(), runtime.GOOS), runtime.GOARCH), ", ")
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
