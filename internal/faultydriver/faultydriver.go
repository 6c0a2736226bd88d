// Package faultydriver puts a Vulkan loader with faults in front of the driver under test, for tests of
// other processes.
package faultydriver

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/vk"
)

const (
	loaderEnv  = "VKATTN_LIBVULKAN"
	libraryEnv = "VKATTN_FAULTY_LIBRARY"
)

// Install is for TestMain: in a process with the variables of Env it changes the loader, before Vulkan is used.
func Install() error {
	library := os.Getenv(libraryEnv)
	if library == "" {
		return nil
	}
	if err := os.Setenv("VKATTN_FAULTY_LOADER", cmp.Or(os.Getenv(loaderEnv), vk.DefaultLibrary)); err != nil {
		return err
	}
	return os.Setenv(loaderEnv, library)
}

// Env returns the environment variables of a process whose driver has the faults that faulty.c lists. It
// skips the test without a C compiler, and without the sources.
func Env(t testing.TB, faults string) []string {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	_, here, _, _ := runtime.Caller(0)
	source := filepath.Join(filepath.Dir(here), "testdata", "faulty.c")
	if _, err := os.Stat(source); err != nil {
		t.Skip(err)
	}
	library := filepath.Join(t.TempDir(), "faulty.so")
	text, err := exec.Command(compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", library, source, "-ldl").CombinedOutput()
	require.NoError(t, err, "%s", text)
	return []string{libraryEnv + "=" + library, "VKATTN_FAULTS=" + faults}
}
