package atomicfile

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

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

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
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

func fifo(t *testing.T, path string) {
	t.Helper()
	testfifo.Make(t, path, 0o600)
}

func link(t *testing.T, text, path string) {
	t.Helper()
	require.NoError(t, os.Symlink(text, path))
}

func TestAPathResolvesToItsTarget(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.MkdirAll(at("deep/er"), 0o755))
	put(t, at("file"), "x")
	fifo(t, at("pipe"))
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
	link(t, "circle", at("circle"))
	link(t, "file", at("link"))
	link(t, at("link"), at("chain"))
	link(t, "absent", at("dangling"))
	link(t, "deep/er", at("folder"))
	link(t, "../below", at("deep/er/up"))
	link(t, "folder/up", at("through")) // deep/below, and not below
	link(t, "no/folder/absent", at("nowhere"))
	link(t, "self", at("self"))
	link(t, "b", at("a"))
	link(t, "a", at("b"))
	link(t, "pipe", at("topipe"))
	link(t, "/dev/null", at("null"))
	const maxLinks = 40 // of Linux
	for i := range maxLinks + 1 {
		link(t, fmt.Sprint("long", i+1), at(fmt.Sprint("long", i)))
	}
	for _, c := range []struct {
		path, want string // want is the path, or part of the error
		special    bool
		fails      bool
	}{
		{path: at("file"), want: at("file")},
		{path: at("new"), want: at("new")},
		{path: at("link"), want: at("file")},
		{path: at("chain"), want: at("file")},
		{path: at("dangling"), want: at("absent")},
		{path: at("through"), want: at("deep/below")},
		{path: dir + "/folder/../below", want: at("deep/below")},
		{path: at("folder/new"), want: at("deep/er/new")},
		{path: at("pipe"), want: at("pipe"), special: true},
		{path: at("topipe"), want: at("pipe"), special: true},
		{path: at("null"), want: "/dev/null", special: true},
		{path: "/dev/null", want: "/dev/null", special: true},
		{path: "/dev/stdout", want: "/dev/stdout", special: true},
		{path: "/dev/fd/2", want: "/dev/fd/2", special: true},
		{path: "/proc/thread-self/fd/1", want: "/proc/thread-self/fd/1", special: true},
		{path: at("long20"), want: at(fmt.Sprint("long", maxLinks+1))},
		{path: at("long0"), want: "too many levels of symbolic links", fails: true},
		{path: at("self"), want: "too many levels of symbolic links", fails: true},
		{path: at("a"), want: "too many levels of symbolic links", fails: true},
		{path: at("nowhere"), want: "no such file or directory", fails: true},
		{path: at("no/folder/new"), want: "no such file or directory", fails: true},
		{path: at("file/new"), want: "not a directory", fails: true},
		{path: at("circle/new"), want: "too many levels of symbolic links", fails: true},
		{path: fmt.Sprint("/proc/self/fd/", open.Fd()), want: at("file")},
		{path: fmt.Sprint("/dev/fd/", pipe.Fd()), want: fmt.Sprint("/dev/fd/", pipe.Fd()), special: true},
		{path: dir, want: "names a folder", fails: true},
		{path: at("folder"), want: "names a folder", fails: true},
		{path: at("new") + "/", want: "no such file or directory", fails: true},
		{path: dir + "/..", want: "names a folder", fails: true},
		{path: "", want: "names a folder", fails: true},
		{path: at("socket"), want: "is a socket, not a regular file", fails: true},
		{path: fmt.Sprint("/proc/self/fd/", deleted.Fd()), want: "without a name", fails: true},
	} {
		target, err := Resolve(c.path)
		if c.fails {
			assert.ErrorContains(t, err, c.want, c.path)
			continue
		}
		if assert.NoError(t, err, c.path) {
			assert.Equal(t, c.want, target.Path, c.path)
			assert.Equal(t, c.special, target.Special(), c.path)
		}
	}
}

func TestSpecialTargetsAreNotReplaced(t *testing.T) {
	dir := t.TempDir()
	fifo(t, filepath.Join(dir, "pipe"))
	for _, path := range []string{filepath.Join(dir, "pipe"), "/dev/null", "/dev/stdout"} {
		target, err := Resolve(path)
		require.NoError(t, err)
		_, err = Create(target)
		require.ErrorIs(t, err, ErrNotRegular, path)
	}
	// A path that became a special file after the start stays as well.
	late := filepath.Join(dir, "late")
	f := begin(t, late, "new")
	fifo(t, late)
	require.ErrorIs(t, Replace(f), ErrNotRegular)
	require.Equal(t, []string{"late", "pipe"}, names(t, dir))
}

func TestReplaceKeepsThePermissions(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, mode := range []fs.FileMode{0o600, 0o640, 0o644, 0o444, 0o666, 0o751} {
		put(t, path, "old")
		require.NoError(t, os.Chmod(path, mode))
		f := begin(t, path, "new")
		hidden, err := os.Stat(f.temp)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), hidden.Mode().Perm(), "nobody else reads it before")
		require.NoError(t, Replace(f))
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm())
		require.Equal(t, "new", content(t, path))
		require.NoError(t, os.Remove(path))
	}
	// The permissions at the end count, and those at the beginning where the file is gone.
	put(t, path, "old")
	f := begin(t, path, "new")
	require.NoError(t, os.Chmod(path, 0o640))
	require.NoError(t, Replace(f))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o640), info.Mode().Perm())
	f = begin(t, path, "new")
	require.NoError(t, os.Remove(path))
	require.NoError(t, Replace(f))
	info, err = os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o640), info.Mode().Perm())
}

func TestANewFileHasThePermissionsOfTheUmask(t *testing.T) {
	dir := t.TempDir()
	plain, err := os.OpenFile(filepath.Join(dir, "plain"), os.O_CREATE|os.O_WRONLY, 0o666)
	require.NoError(t, err)
	want, err := plain.Stat()
	require.NoError(t, err)
	require.NoError(t, plain.Close())
	require.NoError(t, Replace(begin(t, filepath.Join(dir, "new"), "x")))
	got, err := os.Stat(filepath.Join(dir, "new"))
	require.NoError(t, err)
	require.Equal(t, want.Mode(), got.Mode())
}

func TestLeftoversOfKilledWritersGo(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	random := strings.Repeat("A2", 13)
	live := begin(t, at("o.npy"), "live")
	defer live.Discard()
	stay := []string{
		"." + random + ".tmp", ".o.npy.tmp", ".o.npy." + random, ".o.npy." + random + ".tmp.new", ".o.npy.lower" + random[5:] + ".tmp",
		".o.npy2." + random + ".tmp", "o.npy." + random + ".tmp", ".x.o.npy." + random + ".tmp",
	}
	for _, name := range append([]string{".o.npy." + random + ".tmp", ".o.npy." + random + ".tmp.old"}, stay...) {
		put(t, at(name), "left")
	}
	fifo(t, at(".o.npy."+strings.Repeat("B", 26)+".tmp"))
	link(t, at(".o.npy.tmp"), at(".o.npy."+strings.Repeat("C", 26)+".tmp"))
	require.NoError(t, os.Mkdir(at(".o.npy."+strings.Repeat("D", 26)+".tmp"), 0o755))
	stay = append(stay, ".o.npy."+strings.Repeat("B", 26)+".tmp", ".o.npy."+strings.Repeat("C", 26)+".tmp",
		".o.npy."+strings.Repeat("D", 26)+".tmp", filepath.Base(live.temp))

	f := begin(t, at("o.npy"), "new")
	require.NoError(t, Replace(f))
	require.ElementsMatch(t, append(stay, "o.npy"), names(t, dir))
	require.NoError(t, Replace(live))
	require.Equal(t, "live", content(t, at("o.npy")))
}

func TestWritersOfOneTargetDoNotRemoveEachOthersFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				target, err := Resolve(path)
				if !assert.NoError(t, err) {
					return
				}
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
	require.Len(t, content(t, path), 1)
}

func TestAFailedReplaceBringsTheOldFilesBack(t *testing.T) {
	dir := t.TempDir()
	a, b, c := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "c")
	put(t, a, "old a")
	files := []*File{begin(t, a, "new a"), begin(t, b, "new b"), begin(t, c, "new c")}
	require.NoError(t, os.Mkdir(c, 0o755)) // a folder came to lie in the last place
	require.ErrorContains(t, Replace(files...), c)
	require.Equal(t, []string{"a", "c"}, names(t, dir))
	require.Equal(t, "old a", content(t, a))
	// The hidden file of the first is gone: its rename fails, and the old one stays.
	files = []*File{begin(t, a, "new a"), begin(t, b, "new b")}
	require.NoError(t, os.Remove(files[0].temp))
	require.ErrorIs(t, Replace(files...), fs.ErrNotExist)
	require.Equal(t, []string{"a", "c"}, names(t, dir))
	require.Equal(t, "old a", content(t, a))
}

// If a file cannot have two names, the old file is moved out of the way.
func TestOldFilesComeBackWithoutHardLinks(t *testing.T) {
	hardLink = func(string, string) error { return syscall.EPERM }
	defer func() { hardLink = os.Link }()
	dir := t.TempDir()
	a, b, c := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "c")
	for lost := range 3 {
		put(t, a, "old a")
		put(t, b, "old b")
		files := []*File{begin(t, a, "new a"), begin(t, b, "new b"), begin(t, c, "new c")}
		require.NoError(t, os.Remove(files[lost].temp))
		require.ErrorIs(t, Replace(files...), fs.ErrNotExist)
		require.Equal(t, []string{"a", "b"}, names(t, dir))
		require.Equal(t, "old a", content(t, a))
		require.Equal(t, "old b", content(t, b))
	}
	require.NoError(t, Replace(begin(t, a, "new a"), begin(t, b, "new b")))
	require.Equal(t, []string{"a", "b"}, names(t, dir))
	require.Equal(t, "new a", content(t, a))
}

// While several files are replaced, the second name of an old file is no leftover to others.
func TestOldFilesInUseAreNoLeftovers(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	put(t, a, "old a")
	files := []*File{begin(t, a, "new a"), begin(t, b, "new b")}
	hardLink = func(name, second string) error {
		err := os.Link(name, second)
		RemoveLeftovers(Target{Path: a})
		return err
	}
	defer func() { hardLink = os.Link }()
	require.NoError(t, os.Mkdir(b, 0o755))
	require.ErrorIs(t, Replace(files...), ErrNotRegular)
	require.Equal(t, []string{"a", "b"}, names(t, dir))
	require.Equal(t, "old a", content(t, a))
}

func TestAnOldFileThatIsRemovedMeanwhileIsNoError(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	put(t, a, "old a")
	hardLink = func(name, second string) error {
		require.NoError(t, os.Remove(name))
		return os.Link(name, second)
	}
	defer func() { hardLink = os.Link }()
	require.NoError(t, Replace(begin(t, a, "new a"), begin(t, b, "new b")))
	require.Equal(t, []string{"a", "b"}, names(t, dir))
	require.Equal(t, "new a", content(t, a))
}

func TestANameOfAnyLengthIsReplaced(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []int{1, 200, 201, 255} {
		path := filepath.Join(dir, strings.Repeat("n", n))
		require.NoError(t, Replace(begin(t, path, "x")), "%d bytes", n)
		require.Equal(t, "x", content(t, path))
	}
	require.Len(t, names(t, dir), 4)
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

// promptly fails the test where f would wait for another process.
func promptly(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Minute):
		t.Fatal("blocked")
	}
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	put(t, at("file"), "12345")
	fifo(t, at("pipe"))
	link(t, "file", at("link"))
	link(t, "pipe", at("topipe"))
	promptly(t, func() {
		for _, path := range []string{at("file"), at("link")} {
			data, err := Read(path, 5)
			assert.NoError(t, err)
			assert.Equal(t, "12345", string(data))
		}
		for path, kind := range map[string]string{at("pipe"): "pipe", at("topipe"): "pipe", dir: "folder", "/dev/zero": "device"} {
			_, err := Read(path, 5)
			assert.ErrorIs(t, err, ErrNotRegular)
			assert.EqualError(t, err, "is a "+kind+", not a regular file")
		}
		_, err := Read(at("file"), 4)
		assert.EqualError(t, err, "5 bytes, more than 4")
		_, err = Read(at("absent"), 4)
		assert.ErrorIs(t, err, fs.ErrNotExist)
	})
}
