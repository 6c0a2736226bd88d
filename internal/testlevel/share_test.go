package testlevel_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A package whose tests ask for a share of a table has a line in scripts/deep-tests.txt:
// without one make test-full would not run the other share. What needs a GPU runs at level all.
func TestSharesAreListed(t *testing.T) {
	const root = "../.."
	table, err := os.ReadFile(root + "/scripts/deep-tests.txt")
	require.NoError(t, err)
	listed := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == "shared" {
			listed[f[2]] = true
		}
	}
	asking := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		name := e.Name()
		switch {
		case err != nil:
			return err
		case e.IsDir() && (name == "build" || strings.HasPrefix(name, ".") && path != root):
			return filepath.SkipDir
		case !strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "gpu_"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(text), "testlevel.Share"+"(") {
			asking++
			folder, _ := filepath.Rel(root, filepath.Dir(path))
			require.True(t, listed["./"+filepath.ToSlash(folder)], "%s asks for a share, and no line of scripts/deep-tests.txt says shared ./%s", path, folder)
		}
		return err
	}))
	require.Greater(t, asking, 2)
}

// Tests that compute on a device are left to other drivers by two of the three that execute at
// most.
func TestSomeDriverRunsWhatOthersLeaveToIt(t *testing.T) {
	table, err := os.ReadFile("../../scripts/deep-tests.txt")
	require.NoError(t, err)
	leave := map[string][]string{} // package: the drivers that run none of its tests
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == "other" && f[3] == ".*" {
			leave[f[2]] = append(leave[f[2]], strings.Split(f[1], ",")...)
		}
	}
	require.NotEmpty(t, leave)
	for name, drivers := range leave {
		require.NotSubset(t, drivers, []string{"lavapipe", "lavapipe-old", "swiftshader"}, name)
		require.NotContains(t, drivers, "all", name)
		require.NotContains(t, drivers, "native", name)
	}
}
