//go:build !unix

package cloexec

import "errors"

// Take returns an error: memory is shared by file descriptors, which Windows does not have.
func Take(func() (fd int, err error)) (int, error) { return -1, errors.ErrUnsupported }

// Close returns an error: there is no descriptor to close.
func Close(int) error { return errors.ErrUnsupported }
