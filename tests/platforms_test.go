package tests

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/testlevel"
)

// With cgo, windows/amd64 has a file of every package that another imports.
func TestWindowsWithCgo(t *testing.T) {
	require.Contains(t, packagesOf(t, "windows/amd64", "1"), "vkattn/cmd/vkattn")
}

// Without cgo, each target has a file of every package that another imports, and nothing of cgo. That all of it compiles is
// for make test-full, as it takes minutes.
func TestTargetsWithoutCgo(t *testing.T) {
	for _, target := range []string{"linux/amd64", "linux/arm64", "windows/amd64", "windows/arm64", "darwin/amd64", "darwin/arm64"} {
		packages := packagesOf(t, target, "0")
		require.Contains(t, packages, "vkattn/cmd/vkattn", target)
		for _, linked := range []string{"github.com/goki/vulkan", "runtime/cgo"} {
			require.False(t, slices.Contains(packages, linked), "%s imports %s", target, linked)
		}
	}
}

// packagesOf lists packages of a target and what they import.
func packagesOf(t *testing.T, target, cgo string) []string {
	testlevel.OnceOnly(t)
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	system, arch, _ := strings.Cut(target, "/")
	cmd := exec.Command("go", "list", "-deps", "./...")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED="+cgo)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, "%s: %s", target, errs.String())
	return strings.Fields(string(out))
}
