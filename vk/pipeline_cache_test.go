package vk

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/testfifo"
)

// cached compiles a pipeline on a device that keeps its cache in dir, and closes it.
func cached(t *testing.T, dir string) (path string) {
	t.Helper()
	d := openTest(t, func(o *Options) { o.PipelineCache = dir })
	newPipeline(t, d, saxpy(t, 5))
	require.NoError(t, d.Close())
	return d.pipelines.cache.path
}

func TestPipelineCacheFile(t *testing.T) {
	needDriver(t)
	dir := filepath.Join(t.TempDir(), "a", "b")
	path := cached(t, dir)
	file := readFile(t, path)
	data, err := parseCache(file)
	require.NoError(t, err)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 1, "no temporary files")
	// Damage of any kind is ignored and repaired.
	for name, bad := range map[string][]byte{
		"empty": {}, "cut": file[:len(file)-1], "longer": append(bytes.Clone(file), 0), "flipped": flip(file, len(file)-1),
		"wrong sum": flip(file, len(cacheMagic)), "other magic": flip(file, 0), "too large": make([]byte, maxCacheBytes+1),
		"garbage that sums up": formatCache([]byte("garbage")), "another driver's": formatCache(flip(data, 9)),
	} {
		require.NoError(t, os.WriteFile(path, bad, 0o644))
		cached(t, dir)
		again := readFile(t, path)
		_, err = parseCache(again)
		assert.NoError(t, err, name)
	}
	// A folder that cannot be made is no reason to fail.
	blocked := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(blocked, nil, 0o644))
	cached(t, filepath.Join(blocked, "x"))
}

// A named pipe would block whoever opens it.
func TestPipelineCacheInThePlaceOfAPipeIsNotUsed(t *testing.T) {
	needDriver(t)
	dir := t.TempDir()
	path := cached(t, dir)
	require.NoError(t, os.Remove(path))
	testfifo.Make(t, path, 0o600)
	done := make(chan struct{})
	go func() {
		defer close(done)
		head, data, err := readCache(path)
		assert.Empty(t, head)
		assert.Nil(t, data)
		assert.EqualError(t, err, "is a pipe, not a regular file")
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Minute):
		t.Fatal("blocked")
	}
	d := openTest(t, func(o *Options) { o.PipelineCache = dir })
	require.Equal(t, "pipeline cache "+path+" ignored: is a pipe, not a regular file", d.PipelineCacheNote())
	newPipeline(t, d, saxpy(t, 5))
	require.NoError(t, d.Close())
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeNamedPipe, "the pipe was replaced")
}

func flip(b []byte, i int) []byte {
	b = bytes.Clone(b)
	b[i] ^= 0xff
	return b
}

func TestPipelineCacheThatIsTooLargeIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	for size, wanted := range map[int]bool{maxCacheBytes - cacheHead: true, maxCacheBytes - cacheHead + 1: false} {
		require.NoError(t, os.WriteFile(path, formatCache(make([]byte, size)), 0o644))
		head, data, err := readCache(path)
		assert.Equal(t, wanted, err == nil, "%d bytes", size)
		assert.Equal(t, wanted, data != nil, "%d bytes", size)
		assert.Equal(t, wanted, head != "", "%d bytes", size)
	}
}

// A process that ends badly has its pipelines for the next one all the same.
func TestPipelineCacheIsSavedWhileTheDeviceIsOpen(t *testing.T) {
	dir := t.TempDir()
	d := openTest(t, func(o *Options) { o.PipelineCache = dir })
	d.pipelines.cache.delay = time.Millisecond
	newPipeline(t, d, saxpy(t, 5))
	require.Eventually(t, func() bool {
		_, err := os.Stat(d.pipelines.cache.path)
		return err == nil
	}, 10*time.Minute, time.Millisecond)
}

func TestPipelineCacheThatHoldsEverythingIsNotWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	path := cached(t, dir)
	first := readFile(t, path)
	before, err := os.Stat(path)
	require.NoError(t, err)
	cached(t, dir)
	after, err := os.Stat(path)
	require.NoError(t, err)
	second := readFile(t, path)
	if !bytes.Equal(first, second) {
		t.Skip("the driver's data differ from run to run")
	}
	assert.True(t, os.SameFile(before, after), "the file was replaced by an equal one")
}
