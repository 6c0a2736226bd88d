package npy

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/hostmem"
)

// sparse is a file of as much data as its header says, without a block on the disk.
func sparse(t *testing.T, dict string, data int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sparse.npy")
	head := file(1, dict, nil)
	require.NoError(t, os.WriteFile(path, head, 0o644))
	require.NoError(t, os.Truncate(path, int64(len(head))+data))
	return path
}

func TestAFileLargerThanMemoryIsNotRead(t *testing.T) {
	for name, c := range map[string]struct {
		dict   string
		data   int64
		needed string
	}{
		"C order":       {"{'descr': '<f2', 'fortran_order': False, 'shape': (1024, 1048576), }", 2 << 30, "needs 2.0 GiB"},
		"Fortran order": {"{'descr': '<f2', 'fortran_order': True, 'shape': (1024, 1048576), }", 2 << 30, "needs 4.0 GiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(hostmem.Variable, "1GiB")
			f, err := Open(sparse(t, c.dict, c.data))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, f.Close()) })
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err = f.Load()
			runtime.ReadMemStats(&after)
			require.ErrorIs(t, err, hostmem.ErrOutOfMemory)
			require.ErrorContains(t, err, c.needed+" of host memory, 1.0 GiB are available")
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
		})
	}
}
