package atomicfile

import (
	"bufio"
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/testfifo"
)

func add(t *testing.T, s *Set, path, text string) {
	w, err := s.Add(path)
	require.NoError(t, err)
	_, err = io.WriteString(w, text)
	require.NoError(t, err)
}

func TestCommitPutsAllFilesInPlace(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	require.NoError(t, os.WriteFile(a, []byte("old"), 0o644))
	var s Set
	add(t, &s, a, "new a")
	add(t, &s, b, "new b")
	holds(t, a, "old")
	require.NoError(t, s.Commit(context.Background()))
	require.Equal(t, []string{"a", "b"}, names(t, dir))
	holds(t, a, "new a")
	holds(t, b, "new b")
	s.Discard()
	require.Equal(t, []string{"a", "b"}, names(t, dir))
}

func TestADiscardedSetLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	var s Set
	add(t, &s, filepath.Join(dir, "a"), "half")
	s.Discard()
	require.Empty(t, names(t, dir))
	require.Error(t, s.Commit(context.Background()))
	_, err := s.Add(filepath.Join(dir, "b"))
	require.Error(t, err)
	require.Empty(t, names(t, dir))
}

func TestPlacesThatTakeNoFileAreRefused(t *testing.T) {
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop")
	require.NoError(t, os.Symlink(loop, loop))
	var s Set
	defer s.Discard()
	for _, path := range []string{dir, loop, filepath.Join(dir, "absent", "o.npy"), ""} {
		_, err := s.Add(path)
		require.Error(t, err, path)
		require.Error(t, Check(path), path)
	}
	require.Equal(t, []string{"loop"}, names(t, dir))
}

func TestPipesAndDevicesAreWrittenInPlace(t *testing.T) {
	dir := t.TempDir()
	pipe, link, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "link"), filepath.Join(dir, "file")
	testfifo.Make(t, pipe, 0o600)
	require.NoError(t, os.Symlink("pipe", link))
	require.NoError(t, Check(link), "and does not wait for a reader")
	got := make(chan string, 1)
	go func() {
		b, _ := os.ReadFile(pipe)
		got <- string(b)
	}()
	var s Set
	add(t, &s, file, "file")
	add(t, &s, "/dev/null", "nothing")
	add(t, &s, link, "through the pipe")
	require.NoError(t, s.Commit(context.Background()))
	require.Equal(t, "through the pipe", <-got)
	require.Equal(t, []string{"file", "link", "pipe"}, names(t, dir))
	info, err := os.Lstat("/dev/null")
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeCharDevice, "the device was replaced")
}

// A pipe without a reader blocks Add. Discard must not wait for it.
func TestDiscardDoesNotWaitForAPipe(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	testfifo.Make(t, pipe, 0o600)
	var s Set
	add(t, &s, filepath.Join(dir, "file"), "half")
	added := make(chan error, 1)
	go func() {
		_, err := s.Add(pipe)
		added <- err
	}()
	for range 1000 { // Add comes first, likely
		runtime.Gosched()
	}
	s.Discard()
	require.Equal(t, []string{"pipe"}, names(t, dir))
	// O_NONBLOCK, for Add may not have come as far as opening the pipe.
	r, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer func() { _ = r.Close() }()
	require.ErrorIs(t, <-added, errDiscarded)
	_, err = bufio.NewReader(r).ReadByte()
	require.ErrorIs(t, err, io.EOF, "nothing was written")
}

func TestNothingIsReplacedAfterCancel(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o644))
	ctx, cancel := context.WithCancel(context.Background())
	var s Set
	add(t, &s, path, "new")
	cancel()
	require.ErrorIs(t, s.Commit(ctx), context.Canceled)
	require.Equal(t, []string{"file"}, names(t, dir))
	holds(t, path, "old")
}
