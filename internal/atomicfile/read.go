package atomicfile

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// SizeError is the error of a file that is longer than its reader takes.
type SizeError struct{ Size, Most int64 }

func (e *SizeError) Error() string { return fmt.Sprintf("%d bytes, more than %d", e.Size, e.Most) }

// Open opens a regular file for reading. Anything else matches ErrNotRegular and is
// not opened: a named pipe would block and a device may act on it.
func Open(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, plain(err)
	}
	if !info.Mode().IsRegular() {
		return nil, notRegular(info.Mode())
	}
	// The name may stand for a pipe by now: without O_NONBLOCK it would still block.
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

// Read returns the content of a regular file, or a *SizeError where that is longer
// than most bytes.
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
	// A file that grows meanwhile must not take more memory than that.
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, plain(err)
	}
	if int64(len(data)) > most {
		return nil, &SizeError{int64(len(data)), most}
	}
	return data, nil
}
