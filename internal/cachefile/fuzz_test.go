package cachefile

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A file holds what was written last, whole, and an update sees it.
func FuzzUpdate(f *testing.F) {
	f.Add([]byte("old"), []byte("new"))
	f.Add([]byte{}, []byte{0})
	f.Add([]byte("longer than the next"), []byte("x"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		path := filepath.Join(t.TempDir(), "file")
		require.NoError(t, Write(path, first))
		require.NoError(t, Update(path, 1<<20, func(old []byte) ([]byte, error) {
			require.True(t, bytes.Equal(first, old))
			return append([]byte{}, second...), nil
		}))
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(second, got))
	})
}
