package atomicfile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// ErrNotRegular is matched by the error for something other than a regular file where a
// regular file is needed.
var ErrNotRegular = errors.New("not a regular file")

var (
	errFolder = fmt.Errorf("names a folder, %w", ErrNotRegular)
	errNoName = errors.New("is an open file without a name of its own")
)

// Target is the file that a path refers to, with symbolic links followed.
type Target struct {
	Path string      // without links if the target can be replaced
	Info fs.FileInfo // nil if the file does not exist

	open      bool // the path led through a link of /proc to an open file, whose text need not be its name
	inherited bool // the path names the descriptor fd that this process was started with
	fd        int
}

// Resolve follows a path to its target. It refuses folders, sockets, block devices and
// links that form a loop.
//
// A link whose end does not exist refers to a new file at that end. A path that names a
// descriptor that the process was started with, such as /dev/stdout, refers to the open
// file at its current offset.
func Resolve(path string) (Target, error) {
	at, err := os.Stat(cmp.Or(path, "."))
	if err == nil && at.IsDir() {
		return Target{}, errFolder
	}
	var t Target
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		t, err = follow(path)
	}
	if err != nil {
		return Target{}, plain(err)
	}
	info, err := os.Lstat(t.Path)
	switch {
	case t.inherited || t.open && at != nil && !at.Mode().IsRegular():
		t.Path, info, err = path, at, nil
	case t.open && (err != nil || !os.SameFile(at, info)):
		return Target{}, errNoName
	}
	if err == nil && !t.inherited && !info.Mode().IsRegular() && info.Mode()&(fs.ModeNamedPipe|fs.ModeCharDevice) == 0 {
		return Target{}, notRegular(info.Mode())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Target{}, plain(err)
	}
	t.Info = info
	return t, nil
}

// fdFolder matches the folders of this process's descriptors.
var fdFolder = regexp.MustCompile(fmt.Sprintf(`^(/dev|/proc/%d(/task/\d+)?)/fd$`, os.Getpid()))

// follow reads links until a name is not a link. The name need not exist, but its folder
// must.
func follow(path string) (t Target, err error) {
	for range 40 { // as many as Linux follows
		dir, base := filepath.Split(path) // not Dir and Join, which shorten "link/.."
		folder, err := filepath.EvalSymlinks(cmp.Or(dir, "."))
		if err == nil {
			folder, err = filepath.Abs(folder)
		}
		if err != nil {
			return Target{}, err
		}
		at := filepath.Join(folder, base)
		if fd, err := strconv.Atoi(base); err == nil && fdFolder.MatchString(folder) && inherited(fd) {
			return Target{inherited: true, fd: fd}, nil
		}
		if path, err = os.Readlink(at); err != nil {
			return Target{Path: at, open: t.open}, nil
		}
		t.open = t.open || strings.HasPrefix(folder, "/proc/")
		if !filepath.IsAbs(path) {
			path = folder + string(filepath.Separator) + path
		}
	}
	return Target{}, syscall.ELOOP
}

// Special reports whether the target is written in place: a pipe, a character
// device or an open descriptor. Create refuses it.
func (t Target) Special() bool {
	return t.inherited || t.Info != nil && !t.Info.Mode().IsRegular()
}

// Device reports whether the target is a character device.
func (t Target) Device() bool { return t.Info != nil && t.Info.Mode()&fs.ModeCharDevice != 0 }

// Stdout reports whether the target is standard output.
func (t Target) Stdout() bool { return t.inherited && t.fd == 1 }

// Same reports whether two targets are the same file.
func (t Target) Same(u Target) bool {
	if t.Info != nil && u.Info != nil {
		return os.SameFile(t.Info, u.Info)
	}
	return t.Info == nil && u.Info == nil && t.Path == u.Path
}

var kinds = map[fs.FileMode]string{fs.ModeDir: "folder", fs.ModeNamedPipe: "pipe", fs.ModeSocket: "socket",
	fs.ModeDevice: "device", fs.ModeDevice | fs.ModeCharDevice: "device"}

// Open opens a regular file for reading. For anything else the error matches ErrNotRegular
// and nothing is opened: a named pipe would block, and a device may have side effects.
func Open(path string) (*os.File, error) {
	if err := regular(os.Stat(path)); err != nil {
		return nil, err
	}
	f, err := open(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, plain(err)
	}
	if err := regular(f.Stat()); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// regular returns an error unless a Stat succeeded and found a regular file.
func regular(info fs.FileInfo, err error) error {
	if err == nil && !info.Mode().IsRegular() {
		return notRegular(info.Mode())
	}
	return plain(err)
}

// notRegular describes a file that is not regular.
func notRegular(mode fs.FileMode) error {
	return fmt.Errorf("is a %s, %w", cmp.Or(kinds[mode.Type()], "special file"), ErrNotRegular)
}

// plain drops the path from an error of package os. It may be the hidden name; the caller
// adds the path of the target.
func plain(err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number
	}
	return err
}
