package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testfifo"
	"vkattn/vk"
)

// A named pipe in the place of a cache file blocks whoever opens it without care.
func TestCachesThatArePipesAreIgnoredWithANote(t *testing.T) {
	quickDriver(t)
	dir := t.TempDir()
	t.Setenv(vk.CacheDirEnv, dir)
	// The command in this process, for a driver may need a loader of its own.
	promptly := func(args ...string) (code int, stdout, stderr string) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			code, stdout, stderr = call(args...)
		}()
		select {
		case <-done:
		case <-time.After(5 * time.Minute):
			t.Fatal("blocked: ", args)
		}
		return code, stdout, stderr
	}
	list := func() (c attention.TuningCache, stderr string) {
		code, stdout, stderr := promptly("tune", "--list", "--device", "0", "-o", "json")
		require.Equal(t, exitOK, code, stderr)
		list := decoded[[]attention.TuningCache](t, stdout)
		require.Len(t, list, 1)
		return list[0], stderr
	}
	code, _, stderr := promptly(tiny("--tier", "scalar")...)
	require.Equal(t, exitOK, code, stderr)
	pipelines, err := filepath.Glob(filepath.Join(dir, "pipelines", "*.bin"))
	require.NoError(t, err)
	require.Len(t, pipelines, 1)
	tuning, _ := list()
	require.NoError(t, os.Remove(pipelines[0]))
	require.NoError(t, os.MkdirAll(filepath.Dir(tuning.Path), 0o755))
	for _, path := range []string{pipelines[0], tuning.Path} {
		testfifo.Make(t, path, 0o600)
	}
	code, _, stderr = promptly(tiny("--tier", "scalar")...)
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stderr, "vkattn: pipeline cache "+pipelines[0]+" ignored: is a pipe, not a regular file\n")
	tuning, _ = list()
	require.Contains(t, tuning.Note, "is a pipe, not a regular file")
	code, _, stderr = promptly("tune", "--clear")
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "is a pipe, not a regular file")
}
