//go:build unix

package atomicfile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReplaceKeepsTheOwnerForRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	path := filepath.Join(t.TempDir(), "file")
	put(t, path, "old")
	require.NoError(t, os.Chown(path, 1234, 5678))
	require.NoError(t, Replace(begin(t, path, "new")))
	info, err := os.Stat(path)
	require.NoError(t, err)
	owner := info.Sys().(*syscall.Stat_t)
	require.Equal(t, []uint32{1234, 5678}, []uint32{owner.Uid, owner.Gid})
}
