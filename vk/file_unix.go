//go:build unix

package vk

import "golang.org/x/sys/unix"

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
