//go:build unix

package cloexec

import "syscall"

// Take calls export, which makes a file descriptor, and marks it close-on-exec. No goroutine of this
// process starts a program in between.
func Take(export func() (fd int, err error)) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := export()
	if err != nil {
		return -1, err
	}
	syscall.CloseOnExec(fd)
	return fd, nil
}

// Close closes a file descriptor.
func Close(fd int) error { return syscall.Close(fd) }
