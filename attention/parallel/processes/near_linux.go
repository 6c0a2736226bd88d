package processes

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// newShared makes the file of this rank. It has no name, so nothing of it is left when its processes have
// ended, however they end. Its memory is allocated at once: a page that could not be when it is first
// written would end the process by SIGBUS.
func newShared() (*os.File, error) {
	fd, err := unix.MemfdCreate("vkattn", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "memfd")
	if err := unix.Fallocate(fd, 0, 0, sharedBytes); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// mapShared maps the file of a rank.
func mapShared(f *os.File, writable bool) ([]byte, error) {
	access := unix.PROT_READ
	if writable {
		access |= unix.PROT_WRITE
	}
	return unix.Mmap(int(f.Fd()), 0, sharedBytes, access, unix.MAP_SHARED)
}

func unmapShared(b []byte) { _ = unix.Munmap(b) }
