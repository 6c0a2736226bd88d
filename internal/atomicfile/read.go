package atomicfile

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// SizeError is the error for a file that is longer than the limit of Read.
type SizeError struct{ Size, Most int64 }

func (e *SizeError) Error() string { return fmt.Sprintf("%d bytes, more than %d", e.Size, e.Most) }

// Open opens a regular file for reading. For anything else the error matches ErrNotRegular
// and nothing is opened: a named pipe would block, and a device may have side effects.
func Open(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, plain(err)
	}
	if !info.Mode().IsRegular() {
		return nil, notRegular(info.Mode())
	}
	// The name may refer to a pipe by now, which would block without O_NONBLOCK.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, plain(err)
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = notRegular(info.Mode())
	}
	if err != nil {
		_ = f.Close()
		return nil, plain(err)
	}
	return f, nil
}

// Read returns the content of a regular file, or a *SizeError if it is longer than most
// bytes.
func Read(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, plain(err)
	}
	if info.Size() > most {
		return nil, &SizeError{info.Size(), most}
	}
	// A file that grows meanwhile must not take more memory than the limit.
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, plain(err)
	}
	if int64(len(data)) > most {
		return nil, &SizeError{int64(len(data)), most}
	}
	return data, nil
}
