package atomicfile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
)

// SizeError is the error for a file that is longer than the limit of Read.
type SizeError struct{ Size, Most int64 }

func (e *SizeError) Error() string { return fmt.Sprintf("%d bytes, more than %d", e.Size, e.Most) }

// Open opens a regular file for reading. For anything else the error matches ErrNotRegular
// and nothing is opened: a named pipe would block, and a device may have side effects.
func Open(path string) (*os.File, error) {
	if err := regular(os.Stat(path)); err != nil {
		return nil, err
	}
	f, err := openShared(path)
	if err != nil {
		return nil, plain(err)
	}
	if err := regular(f.Stat()); err != nil {
		_ = f.Close()
		return nil, err
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
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, plain(err)
	}
	if int64(len(data)) > most {
		size, _ := f.Seek(0, io.SeekEnd)
		return nil, &SizeError{size, most}
	}
	return data, nil
}

// regular returns an error unless a Stat succeeded and found a regular file.
func regular(info fs.FileInfo, err error) error {
	if err == nil && !info.Mode().IsRegular() {
		return notRegular(info.Mode())
	}
	return plain(err)
}
