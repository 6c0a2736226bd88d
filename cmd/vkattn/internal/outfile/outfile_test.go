package outfile

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func names(t *testing.T, dir string) []string {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func add(t *testing.T, s *Set, path, text string) {
	w, err := s.Add(path)
	require.NoError(t, err)
	_, err = io.WriteString(w, text)
	require.NoError(t, err)
}

func content(t *testing.T, path string) string {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}

func TestCommitPutsAllFilesInPlace(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	require.NoError(t, os.WriteFile(a, []byte("old"), 0o644))
	var s Set
	add(t, &s, a, "new a")
	add(t, &s, b, "new b")
	require.Equal(t, "old", content(t, a), "nothing may show before Commit")
	require.NoError(t, s.Commit())
	require.Equal(t, []string{"a", "b"}, names(t, dir))
	require.Equal(t, "new a", content(t, a))
	require.Equal(t, "new b", content(t, b))
	s.Discard()
	require.Equal(t, []string{"a", "b"}, names(t, dir))
}

func TestDiscardLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	var s Set
	add(t, &s, filepath.Join(dir, "a"), "half")
	s.Discard()
	require.Empty(t, names(t, dir))
	require.Error(t, s.Commit())
	_, err := s.Add(filepath.Join(dir, "b"))
	require.Error(t, err)
	require.Empty(t, names(t, dir))
}

func TestAFailedCommitBringsTheOldFilesBack(t *testing.T) {
	dir := t.TempDir()
	a, b, c := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "c")
	require.NoError(t, os.WriteFile(a, []byte("old a"), 0o644))
	var s Set
	add(t, &s, a, "new a")
	add(t, &s, b, "new b")
	add(t, &s, c, "new c")
	require.NoError(t, os.Mkdir(c, 0o755)) // a folder came to lie in the last place
	require.Error(t, s.Commit())
	require.Equal(t, []string{"a", "c"}, names(t, dir))
	require.Equal(t, "old a", content(t, a))
}

func TestALinkIsFollowed(t *testing.T) {
	dir := t.TempDir()
	place, link := filepath.Join(dir, "place"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(place, []byte("old"), 0o644))
	require.NoError(t, os.Symlink(place, link))
	var s Set
	add(t, &s, link, "new")
	require.NoError(t, s.Commit())
	require.Equal(t, "new", content(t, place))
	info, err := os.Lstat(link)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeSymlink)
}

func TestPlacesThatTakeNoFileAreRefused(t *testing.T) {
	dir := t.TempDir()
	var s Set
	defer s.Discard()
	for _, path := range []string{dir, "/dev/null", filepath.Join(dir, "absent", "o.npy"), ""} {
		_, err := s.Add(path)
		require.Error(t, err, path)
	}
	require.Empty(t, names(t, dir))
}
