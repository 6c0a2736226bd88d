package vk

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCacheDirFollowsTheEnvironment(t *testing.T) {
	home := t.TempDir()
	cacheEnv, homeEnv := "XDG_CACHE_HOME", "HOME"
	if runtime.GOOS == "windows" {
		cacheEnv, homeEnv = "LocalAppData", "LocalAppData"
	}
	t.Setenv(cacheEnv, home)
	t.Setenv(CacheDirEnv, "/elsewhere")
	assert.Equal(t, "/elsewhere", CacheDir())
	for _, off := range []string{"", "off"} {
		t.Setenv(CacheDirEnv, off)
		assert.Empty(t, CacheDir(), "%q", off)
		assert.Empty(t, pipelineCacheDir(""), "%q", off)
		assert.Equal(t, "mine", pipelineCacheDir("mine"), "an option says more than the environment")
	}
	t.Setenv(CacheDirEnv, "x") // restores what was there before; now without
	require.NoError(t, os.Unsetenv(CacheDirEnv))
	assert.Equal(t, filepath.Join(home, "vkattn"), CacheDir())
	assert.Equal(t, filepath.Join(home, "vkattn", "pipelines"), pipelineCacheDir(""))
	assert.Empty(t, pipelineCacheDir("off"))
	t.Setenv(cacheEnv, "")
	t.Setenv(homeEnv, "")
	assert.Empty(t, CacheDir(), "no user, no cache")
	t.Setenv(homeEnv, "relative")
	assert.Empty(t, CacheDir(), "a relative folder is not the user's")
}
