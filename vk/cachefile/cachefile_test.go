package cachefile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWritersDoNotLoseEachOthersUpdates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "file")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			assert.NoError(t, Update(path, func(old []byte) ([]byte, error) {
				return append(old, fmt.Sprintf("%d\n", i)...), nil
			}))
		})
	}
	wg.Wait()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Len(t, strings.Fields(string(data)), 20)
	require.NoError(t, Update(path, func([]byte) ([]byte, error) { return nil, nil }))
	require.NoFileExists(t, path)
}

func TestAFailedWriteLeavesWhatWasThere(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.NoError(t, Write(path, []byte("old")))
	require.Error(t, Update(path, func([]byte) ([]byte, error) { return nil, fmt.Errorf("no") }))
	require.Error(t, Write(filepath.Join(path, "below"), nil), "a file is no folder")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(data))
	left, err := filepath.Glob(filepath.Join(dir, ".tmp-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}
