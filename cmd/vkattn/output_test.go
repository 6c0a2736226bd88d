//go:build unix

package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/testfifo"
)

// outputShape is the shape of O for goodFiles.
var outputShape = []int{2, 4, 5, 3}

// requireOutput requires that data is a file of O for goodFiles.
func requireOutput(t *testing.T, data []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "o.npy")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	readFloats(t, path, outputShape)
}

func TestTheOutputGoesToAPipe(t *testing.T) {
	_, args := goodFiles(t)
	args = without(args, "--lse")
	for _, name := range []string{"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"} {
		p := start(t, nil, with(args, "--o", name)...)
		require.Equal(t, exitOK, p.end(t), p.stderr.String())
		requireOutput(t, p.stdout.Bytes())
		require.Contains(t, p.stderr.String(), "plan: ", "standard output holds the tensor alone")
		info, err := os.Lstat("/dev/stdout")
		require.NoError(t, err)
		require.NotZero(t, info.Mode()&os.ModeSymlink, "the link was replaced")
	}
}

// An open descriptor that is a file goes on where it is: the shell may append to it.
func TestTheOutputGoesToAnOpenDescriptor(t *testing.T) {
	for name, redirect := range map[string]func(*exec.Cmd, *os.File){
		"/dev/stdout": func(c *exec.Cmd, f *os.File) { c.Stdout = f },
		"/dev/fd/3":   func(c *exec.Cmd, f *os.File) { c.ExtraFiles = []*os.File{f} },
	} {
		dir, args := goodFiles(t)
		file, err := os.Create(filepath.Join(dir, "all"))
		require.NoError(t, err)
		_, err = file.WriteString("before")
		require.NoError(t, err)
		p := start(t, func(c *exec.Cmd) { redirect(c, file) }, with(without(args, "--lse"), "--o", name)...)
		require.Equal(t, exitOK, p.end(t), p.stderr.String())
		_, err = file.WriteString("after")
		require.NoError(t, err)
		require.NoError(t, file.Close())
		data := readFile(t, filepath.Join(dir, "all"))
		require.True(t, bytes.HasPrefix(data, []byte("before\x93NUMPY")), name)
		data, found := bytes.CutSuffix(data[len("before"):], []byte("after"))
		require.True(t, found, name)
		requireOutput(t, data)
	}
}

func TestADescriptorThatIsNotOpenForWritingIsBadInput(t *testing.T) {
	_, args := goodFiles(t)
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	p := start(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{file} }, with(args, "--o", "/dev/fd/3")...)
	require.Equal(t, exitInput, p.end(t))
	require.Equal(t, "vkattn: --o /dev/fd/3: is not open for writing\n", p.stderr.String())
}

func TestASocketTakesTheOutput(t *testing.T) {
	for _, path := range []string{"/dev/stdout", "-"} {
		t.Run(path, func(t *testing.T) { socketTakesTheOutput(t, path) })
	}
}

func socketTakesTheOutput(t *testing.T, path string) {
	t.Helper()
	_, args := goodFiles(t)
	syscall.ForkLock.RLock()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(pair[0])
		syscall.CloseOnExec(pair[1])
	}
	syscall.ForkLock.RUnlock()
	require.NoError(t, err)
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer func() { _ = ours.Close() }()
	p := start(t, func(c *exec.Cmd) { c.Stdout = theirs }, with(without(args, "--lse"), "--o", path)...)
	require.NoError(t, theirs.Close())
	data, err := io.ReadAll(ours)
	require.NoError(t, err)
	require.Equal(t, exitOK, p.end(t), p.stderr.String())
	requireOutput(t, data)
}

func TestTheOutputFollowsLinks(t *testing.T) {
	dir, args := goodFiles(t)
	o, place := filepath.Join(dir, "o.npy"), filepath.Join(t.TempDir(), "place.npy")
	require.NoError(t, os.Symlink(place, o))
	for _, what := range []string{"a new file", "the old file"} {
		succeeds(t, args...)
		text, err := os.Readlink(o)
		require.NoError(t, err, what)
		require.Equal(t, place, text)
		readFloats(t, place, outputShape)
	}
	require.Empty(t, hidden(t, filepath.Dir(place)))
	require.NoError(t, os.Remove(o))
	require.NoError(t, os.Symlink("o.npy", o))
	refused(t, exitInput, "too many levels of symbolic links", args...)
	require.NoError(t, os.Remove(o))
	require.NoError(t, os.Symlink(filepath.Join(dir, "no", "folder"), o))
	refused(t, exitInput, "no such file or directory", args...)
}

func TestTheOutputGoesThroughALinkToAPipe(t *testing.T) {
	dir, args := goodFiles(t)
	pipe, o := filepath.Join(dir, "pipe"), filepath.Join(dir, "o.npy")
	testfifo.Make(t, pipe, 0o600)
	require.NoError(t, os.Symlink("pipe", o))
	got := make(chan []byte, 1)
	go func() {
		data, _ := os.ReadFile(pipe)
		got <- data
	}()
	stdout, _ := succeeds(t, args...)
	require.Contains(t, stdout, "plan: ")
	data := <-got
	requireOutput(t, data)
	info, err := os.Lstat(pipe)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeNamedPipe)
	require.FileExists(t, filepath.Join(dir, "lse.npy"))
	refused(t, exitInput, "the same file as --o", with(args, "--lse", pipe)...)
}

// cobra ignores errors of writing a help text.
func TestAHelpTextThatIsNotWrittenIsAFailure(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"help", "bench"}, {"bench", "--help"}, {"completion"}, {"version"}} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		require.NoError(t, err)
		defer full.Close()
		var stderr bytes.Buffer
		require.Equal(t, exitFailure, runMain(args, full, &stderr), "%v", args)
		require.Equal(t, "vkattn: write /dev/full: no space left on device\n", stderr.String(), "%v", args)
	}
}

func TestDevicesTakeTheOutput(t *testing.T) {
	dir, args := goodFiles(t)
	succeeds(t, with(with(args, "--o", "/dev/null"), "--lse", "/dev/null")...)
	info, err := os.Lstat("/dev/null")
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeCharDevice)
	refused(t, exitFailure, "--lse /dev/full: no space left on device", with(args, "--lse", "/dev/full")...)
	nothingWritten(t, dir)
}

func TestAReplacedOutputKeepsItsPermissions(t *testing.T) {
	dir, args := goodFiles(t)
	o, rows := filepath.Join(dir, "o.npy"), filepath.Join(dir, "rows.csv")
	for _, path := range []string{o, rows} {
		require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	}
	succeeds(t, args...)
	succeeds(t, tiny("--device", "cpu", "--save", rows)...)
	for _, path := range []string{o, rows} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), path)
		require.Greater(t, info.Size(), int64(3))
	}
}

func TestInputsThatAreNoFilesAreRefusedAtOnce(t *testing.T) {
	dir, args := goodFiles(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	testfifo.Make(t, pipe, 0o600)
	for path, kind := range map[string]string{pipe: "pipe", "/dev/zero": "device", dir: "folder"} {
		for _, flag := range []string{"--q", "--v", "--mask"} {
			p := start(t, nil, with(args, flag, path)...)
			require.Equal(t, exitInput, p.end(t))
			require.Equal(t, "vkattn: "+flag+" "+path+": is a "+kind+", not a regular file\n", p.stderr.String())
		}
	}
	nothingWritten(t, dir)
	// A pipe on standard input too: its length is not known before its end.
	p := start(t, func(c *exec.Cmd) { c.Stdin = bytes.NewReader(zeros(2, 4, 5, 8)) }, with(args, "--q", "/dev/stdin")...)
	require.Equal(t, exitInput, p.end(t))
	require.Contains(t, p.stderr.String(), "is a pipe, not a regular file")
	// A file on standard input is a file.
	file, err := os.Open(filepath.Join(dir, "q.npy"))
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	p = start(t, func(c *exec.Cmd) { c.Stdin = file }, with(args, "--q", "/dev/stdin")...)
	require.Equal(t, exitOK, p.end(t), p.stderr.String())
}
