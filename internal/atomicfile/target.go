package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNotRegular is matched by the error for something other than a regular file where a
// regular file is needed.
var ErrNotRegular = errors.New("not a regular file")

var (
	errTooManyLinks = errors.New("too many levels of symbolic links")
	errFolder       = fmt.Errorf("names a folder, %w", ErrNotRegular)
	errReadOnly     = errors.New("is not open for writing")
	errNoName       = errors.New("is an open file without a name of its own")
)

// maxLinks bounds a chain of symbolic links, as Linux does.
const maxLinks = 40

// Target is the file that a path refers to, with symbolic links followed.
type Target struct {
	// Path is absolute and without links. If the path refers to an open file without a
	// name, it is the path as given.
	Path string
	// Info describes the file, nil if it does not exist.
	Info fs.FileInfo

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
	end, err := follow(path)
	switch {
	case end.inherited:
		return resolveInherited(path, end.fd)
	case end.descriptor:
		return resolveDescriptor(path, end)
	case err != nil:
		return Target{}, err
	}
	info, err := os.Lstat(end.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Target{Path: end.path}, nil
	case err != nil:
		return Target{}, plain(err)
	}
	return target(end.path, info)
}

func resolveInherited(path string, fd int) (Target, error) {
	f, err := duplicate(fd)
	if err != nil {
		return Target{}, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return Target{}, plain(err)
	}
	if info.IsDir() {
		return Target{}, errFolder
	}
	return Target{Path: path, Info: info, inherited: true, fd: fd}, nil
}

// resolveDescriptor resolves a path whose last link the kernel follows to an open file. The
// text of the link is the name of the file, if it has one.
func resolveDescriptor(path string, end linkEnd) (Target, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Target{}, plain(err)
	}
	if !info.Mode().IsRegular() {
		return target(path, info)
	}
	there, err := os.Lstat(end.path)
	if err != nil || !os.SameFile(info, there) {
		return Target{}, errNoName
	}
	return target(end.path, info)
}

// target returns an error for files that cannot be outputs.
func target(path string, info fs.FileInfo) (Target, error) {
	switch mode := info.Mode(); {
	case mode.IsDir():
		return Target{}, errFolder
	case mode.IsRegular(), mode&fs.ModeNamedPipe != 0, mode&fs.ModeCharDevice != 0:
		return Target{Path: path, Info: info}, nil
	default:
		return Target{}, notRegular(mode)
	}
}

// linkEnd is the end of a chain of links.
type linkEnd struct {
	path       string
	descriptor bool // a link of the chain refers to an open file: see /proc/self/fd
	inherited  bool // the path names fd, with which the process was started
	fd         int
}

// follow reads links until a name is not a link. The name need not exist, but its folder
// must.
func follow(path string) (end linkEnd, err error) {
	for range maxLinks {
		// Not filepath.Dir and Join: they shorten "link/.." without following it.
		dir, base := filepath.Split(path)
		if dir == "" {
			dir = "."
		}
		folder, err := folderOf(dir)
		if err != nil {
			return end, err
		}
		if base == "" || base == "." || base == ".." {
			return end, errFolder
		}
		if end.fd, end.inherited = inheritedFD(folder, base); end.inherited {
			return end, nil
		}
		path = filepath.Join(folder, base)
		text, err := os.Readlink(path)
		switch {
		case errors.Is(err, syscall.EINVAL), errors.Is(err, fs.ErrNotExist):
			end.path = path
			return end, nil
		case err != nil:
			return end, plain(err)
		}
		end.descriptor = end.descriptor || strings.HasPrefix(folder, "/proc/")
		if !filepath.IsAbs(text) {
			text = folder + string(filepath.Separator) + text
		}
		path = text
	}
	return end, errTooManyLinks
}

// folderOf is a folder's absolute path without links.
func folderOf(dir string) (string, error) {
	path, err := filepath.EvalSymlinks(dir)
	if err != nil {
		if _, e := os.Stat(dir); e != nil {
			err = e // without the path
		}
		return "", plain(err)
	}
	path, err = filepath.Abs(path)
	return path, plain(err)
}

// inheritedFD is the descriptor of a name in /proc/self/fd, if the process was started with
// it. Opening the name again would lose the offset of a file, and fails for a socket.
func inheritedFD(folder, base string) (fd int, ok bool) {
	rest, ok := strings.CutPrefix(folder, "/proc/"+strconv.Itoa(os.Getpid())+"/")
	if !ok {
		return 0, false
	}
	if parts := strings.Split(rest, "/"); rest != "fd" && (len(parts) != 3 || parts[0] != "task" || parts[2] != "fd") {
		return 0, false
	}
	fd, err := strconv.Atoi(base)
	if err != nil {
		return 0, false
	}
	// Go opens files with close-on-exec; inherited descriptors do not have that flag.
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return fd, err == nil && flags&unix.FD_CLOEXEC == 0
}

// duplicate returns a new descriptor of the same open file.
func duplicate(fd int) (*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), "descriptor "+strconv.Itoa(fd)), nil
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

// Writable returns an error if the caller may not write to a special target. It does not
// open the target: closing it again would end the input of a pipe's reader.
func (t Target) Writable() error {
	if !t.inherited {
		return unix.Access(t.Path, unix.W_OK)
	}
	flags, err := unix.FcntlInt(uintptr(t.fd), unix.F_GETFL, 0)
	if err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY {
		err = errReadOnly
	}
	return err
}

// OpenSpecial opens a special target for writing in place. For a named pipe it waits for a
// reader. Closing it leaves an inherited descriptor open.
func (t Target) OpenSpecial() (io.WriteCloser, error) {
	if t.inherited {
		f, err := duplicate(t.fd)
		return special{f}, err
	}
	f, err := os.OpenFile(t.Path, os.O_WRONLY|syscall.O_NOCTTY, 0)
	return special{f}, plain(err)
}

// special drops the name from errors; the caller adds the path.
type special struct{ file *os.File }

func (s special) Write(b []byte) (int, error) {
	n, err := s.file.Write(b)
	return n, plain(err)
}

func (s special) Close() error { return plain(s.file.Close()) }

// notRegular describes a file that is not regular.
func notRegular(mode fs.FileMode) error {
	kind := "special file"
	switch {
	case mode.IsDir():
		kind = "folder"
	case mode&fs.ModeNamedPipe != 0:
		kind = "pipe"
	case mode&fs.ModeSocket != 0:
		kind = "socket"
	case mode&fs.ModeDevice != 0:
		kind = "device"
	}
	return fmt.Errorf("is a %s, %w", kind, ErrNotRegular)
}

// plain drops the path from an error of package os. It may be the hidden name; the caller
// adds the path of the target.
func plain(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	var le *os.LinkError
	if errors.As(err, &le) {
		return le.Err
	}
	return err
}
