package peer

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommandsWithoutFolders(t *testing.T) {
	for _, x := range []struct{ text, want string }{
		{"python3 scripts/peer_torch.py flash", "python3 scripts/peer_torch.py flash"},
		{"/opt/venv/bin/python3 /home/me/src/scripts/peer_torch.py flash", "python3 scripts/peer_torch.py flash"},
		{"/opt/venv/bin/python3 /home/me/other/peer_torch.py flash", "python3 peer_torch.py flash"},
		{"'/home/me/my scripts/x' 1", "'my scripts/x' 1"}, // of a path with a space, the folder goes
		{"A=/data/lib /home/me/src/x.sh --file=/home/me/src/../y", "A=lib x.sh --file=y"},
		{"cd /home/me/src && ./peer", "cd src && ./peer"},
		{"python3: can't open file '/home/me/p.py': [Errno 2]", "python3: can't open file 'p.py': [Errno 2]"},
		{"12 TFLOP/s, a/b, 1 / 2", "12 TFLOP/s, a/b, 1 / 2"},
		{"", ""},
	} {
		require.Equal(t, x.want, withoutFolders(x.text, "/home/me/src"), x.text)
	}
}

// Rows have a peer's command as Info says it.
func TestInfoHasNoFolderOfThisMachine(t *testing.T) {
	script := filepath.Join(t.TempDir(), "nothing.sh")
	require.NoError(t, os.WriteFile(script, []byte("exit 1\n"), 0o644))
	p, err := Open(context.Background(), "/bin/sh "+script, Options{})
	require.Error(t, err)
	require.Equal(t, "sh nothing.sh", p.Info().Command)
	require.Equal(t, "sh nothing.sh", p.Info().Name)
	require.NoError(t, p.Close())
}
