//go:build unix

package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// lock locks an open file until it is closed. The error matches errHeld if it is open with
// a lock elsewhere; any other means that the file system has no locks.
func lock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

const errHeld = unix.EWOULDBLOCK

// open opens a file, and does not wait for the writer of a named pipe.
func open(path string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(path, flag|syscall.O_NONBLOCK, perm)
}

// takeAfter gives a file the owner and the permissions of an old one, as far as the system
// allows. After a failure fewer users can access the file, not more.
func takeAfter(f *os.File, old fs.FileInfo) {
	mode := old.Mode().Perm()
	is, ok := old.Sys().(*syscall.Stat_t)
	if ok && f.Chown(int(is.Uid), int(is.Gid)) != nil && f.Chown(-1, int(is.Gid)) != nil {
		// The permissions were for another group: this one gets no more than everybody.
		mode = mode&^0o070 | mode&0o007<<3&mode
	}
	_ = f.Chmod(mode)
}

// inherited reports whether the process was started with a descriptor: Go opens its own
// with close-on-exec.
func inherited(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0
}

var errReadOnly = errors.New("is not open for writing")

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
// reader. The end of the File leaves an inherited descriptor open.
func (t Target) OpenSpecial() (f *File, err error) {
	f = &File{target: t.Path}
	if t.inherited {
		var n int
		n, err = unix.FcntlInt(uintptr(t.fd), unix.F_DUPFD_CLOEXEC, 0) // the same open file, with the same offset
		f.file = os.NewFile(uintptr(n), "")
	} else {
		f.file, err = os.OpenFile(t.Path, os.O_WRONLY|syscall.O_NOCTTY, 0)
	}
	return f, plain(err)
}
