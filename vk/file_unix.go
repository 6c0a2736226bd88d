//go:build unix

package vk

import (
	"golang.org/x/sys/unix"
)

// fileCopy is a copy of a file descriptor.
type fileCopy struct {
	fd   int
	stat unix.Stat_t
}

func copyFile(fd int) (f fileCopy, ok bool) {
	if unix.Fstat(fd, &f.stat) != nil {
		return f, false
	}
	var err error
	f.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return f, err == nil
}

// closeSame closes the copy if it is still the file that it was.
func (f *fileCopy) closeSame() {
	var now unix.Stat_t
	if unix.Fstat(f.fd, &now) == nil && now.Dev == f.stat.Dev && now.Ino == f.stat.Ino {
		_ = unix.Close(f.fd)
	}
}

// notMemory says what a descriptor is, if it is surely no memory of a driver; "" otherwise.
func notMemory(fd int) string {
	var of unix.Stat_t
	if err := unix.Fstat(fd, &of); err != nil {
		return err.Error()
	}
	switch of.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFIFO:
		return "a pipe"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFBLK:
		return "a block device"
	case unix.S_IFCHR:
		switch unix.Major(uint64(of.Rdev)) {
		case 1: // /dev/null, /dev/zero
			return "a device of the kernel"
		case 4, 5, 136:
			return "a terminal"
		}
	}
	return ""
}
