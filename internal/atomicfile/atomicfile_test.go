package atomicfile

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/testfifo"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func put(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func holds(t *testing.T, path, want string) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(b))
}

func hasMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, want, info.Mode().Perm())
}

// begin makes the hidden file of a path.
func begin(t *testing.T, path, text string) *File {
	t.Helper()
	target, err := Resolve(path)
	require.NoError(t, err)
	f, err := Create(target)
	require.NoError(t, err)
	_, err = f.Write([]byte(text))
	require.NoError(t, err)
	return f
}

func TestAPathResolvesToItsTarget(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.MkdirAll(at("deep/er"), 0o755))
	put(t, at("file"), "x")
	testfifo.Make(t, at("pipe"), 0o600)
	socket, err := net.Listen("unix", at("socket"))
	require.NoError(t, err)
	defer func() { _ = socket.Close() }()
	deleted, err := os.Create(at("deleted"))
	require.NoError(t, err)
	defer func() { _ = deleted.Close() }()
	require.NoError(t, os.Remove(at("deleted")))
	put(t, at("deleted (deleted)"), "not the one that is open")
	open, err := os.Open(at("file"))
	require.NoError(t, err)
	defer func() { _ = open.Close() }()
	pipe, write, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _, _ = pipe.Close(), write.Close() }()
	links := map[string]string{"circle": "circle", "link": "file", "chain": at("link"), "dangling": "absent", "folder": "deep/er",
		"deep/er/up": "../below", "through": "folder/up" /* deep/below, and not below */, "nowhere": "no/folder/absent",
		"a": "b", "b": "a", "topipe": "pipe", "null": "/dev/null"}
	const maxLinks = 40 // of Linux
	for i := range maxLinks + 1 {
		links[fmt.Sprint("long", i)] = fmt.Sprint("long", i+1)
	}
	for name, text := range links {
		require.NoError(t, os.Symlink(text, at(name)))
	}
	own, gone := fmt.Sprint("/dev/fd/", pipe.Fd()), fmt.Sprint("/proc/self/fd/", deleted.Fd())
	for path, want := range map[string]string{
		at("file"): at("file"), at("new"): at("new"), at("link"): at("file"), at("chain"): at("file"),
		at("dangling"): at("absent"), at("through"): at("deep/below"), dir + "/folder/../below": at("deep/below"),
		at("folder/new"): at("deep/er/new"), at("long20"): at(fmt.Sprint("long", maxLinks+1)),
		fmt.Sprint("/proc/self/fd/", open.Fd()): at("file"),
	} {
		target, err := Resolve(path)
		assert.NoError(t, err, path)
		assert.Equal(t, want, target.Path, path)
		assert.False(t, target.Special(), path)
	}
	// Create refuses those that are written in place.
	for path, want := range map[string]string{
		at("pipe"): at("pipe"), at("topipe"): at("pipe"), at("null"): "/dev/null", "/dev/null": "/dev/null",
		"/dev/stdout": "/dev/stdout", "/dev/fd/2": "/dev/fd/2", "/proc/thread-self/fd/1": "/proc/thread-self/fd/1", own: own,
	} {
		target, err := Resolve(path)
		assert.NoError(t, err, path)
		assert.Equal(t, want, target.Path, path)
		assert.True(t, target.Special(), path)
		_, err = Create(target)
		assert.ErrorIs(t, err, ErrNotRegular, path)
	}
	const loop, absent, folder = "too many levels of symbolic links", "no such file or directory", "names a folder"
	for path, want := range map[string]string{
		at("long0"): loop, at("a"): loop, at("circle"): loop, at("circle/new"): loop, at("nowhere"): absent,
		at("no/folder/new"): absent, at("new") + "/": absent, at("file/new"): "not a directory", dir: folder,
		at("folder"): folder, dir + "/..": folder, "": folder, at("socket"): "is a socket, not a regular file", gone: "without a name",
	} {
		_, err := Resolve(path)
		assert.ErrorContains(t, err, want, path)
	}
}

func TestAPathThatBecameSpecialStays(t *testing.T) {
	dir := t.TempDir()
	f := begin(t, filepath.Join(dir, "late"), "new")
	testfifo.Make(t, filepath.Join(dir, "late"), 0o600)
	require.ErrorIs(t, Replace(f), ErrNotRegular)
	require.Equal(t, []string{"late"}, names(t, dir))
}

// Names have at most 255 bytes.
func TestReplaceKeepsNameAndPermissions(t *testing.T) {
	dir := t.TempDir()
	for i, mode := range []fs.FileMode{0o600, 0o640, 0o644, 0o444, 0o666, 0o751} {
		path := filepath.Join(dir, strings.Repeat("n", []int{1, 2, 200, 201, 254, 255}[i]))
		put(t, path, "old")
		require.NoError(t, os.Chmod(path, mode))
		f := begin(t, path, "new")
		hasMode(t, f.temp, 0o600) // nobody else reads it before
		require.NoError(t, Replace(f))
		hasMode(t, path, mode)
		holds(t, path, "new")
	}
	require.Len(t, names(t, dir), 6)
	// The permissions at the end count, and those at the beginning where the file is gone.
	path := filepath.Join(dir, "file")
	put(t, path, "old")
	f := begin(t, path, "new")
	require.NoError(t, os.Chmod(path, 0o640))
	require.NoError(t, Replace(f))
	hasMode(t, path, 0o640)
	f = begin(t, path, "new")
	require.NoError(t, os.Remove(path))
	require.NoError(t, Replace(f))
	hasMode(t, path, 0o640)
	// A new file has those of the umask.
	plain, err := os.OpenFile(filepath.Join(dir, "plain"), os.O_CREATE|os.O_WRONLY, 0o666)
	require.NoError(t, err)
	want, err := plain.Stat()
	require.NoError(t, err)
	require.NoError(t, plain.Close())
	require.NoError(t, Replace(begin(t, filepath.Join(dir, "new"), "x")))
	hasMode(t, filepath.Join(dir, "new"), want.Mode().Perm())
}

func TestLeftoversOfKilledWritersGo(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	random := strings.Repeat("A2", 13)
	pipe, link, folder := ".o.npy.B"+random[1:]+".tmp", ".o.npy.C"+random[1:]+".tmp", ".o.npy.D"+random[1:]+".tmp"
	live := begin(t, at("o.npy"), "live")
	defer live.Discard()
	stay := []string{
		".o.npy." + random + ".tmp.old",
		"." + random + ".tmp", ".o.npy.tmp", ".o.npy." + random, ".o.npy." + random + ".tmp.new", ".o.npy.lower" + random[5:] + ".tmp",
		".o.npy2." + random + ".tmp", "o.npy." + random + ".tmp", ".x.o.npy." + random + ".tmp",
	}
	for _, name := range append([]string{".o.npy." + random + ".tmp"}, stay...) {
		put(t, at(name), "left")
	}
	testfifo.Make(t, at(pipe), 0o600)
	require.NoError(t, os.Symlink(at(".o.npy.tmp"), at(link)))
	require.NoError(t, os.Mkdir(at(folder), 0o755))
	require.NoError(t, Replace(begin(t, at("o.npy"), "new")))
	require.ElementsMatch(t, append(stay, pipe, link, folder, filepath.Base(live.temp), "o.npy"), names(t, dir))
	require.NoError(t, Replace(live))
	holds(t, at("o.npy"), "live")
}

func TestWritersOfOneTargetDoNotRemoveEachOthersFiles(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				target, err := Resolve(filepath.Join(dir, "file"))
				assert.NoError(t, err)
				f, err := Create(target)
				if !assert.NoError(t, err) {
					return
				}
				_, err = fmt.Fprint(f, i)
				assert.NoError(t, err)
				assert.NoError(t, Replace(f))
			}
		})
	}
	wg.Wait()
	require.Equal(t, []string{"file"}, names(t, dir))
}

// If one target cannot be replaced, no other is.
func TestAFailedReplaceChangesNoFile(t *testing.T) {
	dir := t.TempDir()
	a, b, c := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "c")
	put(t, a, "old a")
	put(t, b, "old b")
	for lost := range 3 {
		files := []*File{begin(t, a, "new a"), begin(t, b, "new b"), begin(t, c, "new c")}
		require.NoError(t, os.Remove(files[lost].temp))
		require.ErrorIs(t, Replace(files...), fs.ErrNotExist)
		require.Equal(t, []string{"a", "b"}, names(t, dir))
		holds(t, a, "old a")
		holds(t, b, "old b")
	}
	files := []*File{begin(t, a, "new a"), begin(t, filepath.Join(dir, "d"), "new d"), begin(t, c, "new c")}
	require.NoError(t, os.Mkdir(c, 0o755)) // a folder came to lie in the last place
	require.ErrorContains(t, Replace(files...), c)
	require.Equal(t, []string{"a", "b", "c"}, names(t, dir))
	holds(t, a, "old a")
	require.NoError(t, Replace(begin(t, a, "new a"), begin(t, b, "new b")))
	require.Equal(t, []string{"a", "b", "c"}, names(t, dir))
	holds(t, a, "new a")
}

func TestDiscardLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	f := begin(t, filepath.Join(dir, "file"), "half")
	f.Discard()
	f.Discard()
	require.Empty(t, names(t, dir))
	_, err := f.Write([]byte("x"))
	require.Error(t, err)
	require.Error(t, Replace(f))
	require.Empty(t, names(t, dir))
}
