package cachefile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/testfifo"
)

func TestWritersDoNotLoseEachOthersUpdates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "file")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			assert.NoError(t, Update(path, 1<<20, func(old []byte) ([]byte, error) {
				return append(old, fmt.Sprintf("%d\n", i)...), nil
			}))
		})
	}
	wg.Wait()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Len(t, strings.Fields(string(data)), 20)
	require.NoError(t, Update(path, 1<<20, func([]byte) ([]byte, error) { return nil, nil }))
	require.NoFileExists(t, path)
}

func TestAFailedWriteLeavesWhatWasThere(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.NoError(t, Write(path, []byte("old")))
	require.Error(t, Update(path, 1<<20, func([]byte) ([]byte, error) { return nil, fmt.Errorf("no") }))
	require.Error(t, Write(filepath.Join(path, "below"), nil), "a file is no folder")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(data))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "the file and its lock")
}

// A named pipe blocks whoever opens it without care.
func TestPipesInThePlaceOfFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	pipe, link, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "link"), filepath.Join(dir, "file")
	testfifo.Make(t, pipe, 0o600)
	require.NoError(t, os.Symlink(pipe, link))
	testfifo.Make(t, file+".lock", 0o600)
	done := make(chan struct{})
	go func() {
		defer close(done)
		unused := func([]byte) ([]byte, error) { return nil, fmt.Errorf("asked for the new content") }
		for _, path := range []string{pipe, link, "/dev/zero"} {
			_, err := Read(path, 10)
			assert.ErrorIs(t, err, ErrNotRegular, path)
			assert.ErrorIs(t, Write(path, nil), ErrNotRegular, path)
			if path != "/dev/zero" { // no lock files next to devices
				assert.ErrorIs(t, Update(path, 10, unused), ErrNotRegular, path)
			}
		}
		// A pipe in the place of the lock is locked all the same.
		assert.NoError(t, Update(file, 10, func([]byte) ([]byte, error) { return []byte("new"), nil }))
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Minute):
		t.Fatal("blocked")
	}
	info, err := os.Lstat(pipe)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeNamedPipe, "the pipe was replaced")
	require.FileExists(t, file)
}

func TestAFileOverTheLimitIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte("12345"), 0o600))
	_, err := Read(path, 4)
	require.EqualError(t, err, "5 bytes, more than 4")
	require.NoError(t, Update(path, 4, func(old []byte) ([]byte, error) {
		require.NotNil(t, old, "there is a file")
		require.Empty(t, old)
		return []byte("new"), nil
	}))
	data, err := Read(path, 4)
	require.NoError(t, err)
	require.Equal(t, "new", string(data))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}
