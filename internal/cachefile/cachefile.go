// Package cachefile reads and writes cache files in vk.CacheDir. Any of them may be deleted:
// rebuilding it only takes time.
package cachefile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"vkattn/internal/atomicfile"
)

// ErrNotRegular is matched by the error for a pipe, device, socket or folder instead of a
// file. It is neither opened nor replaced.
var ErrNotRegular = atomicfile.ErrNotRegular

// Write replaces a file atomically: readers see the old or the new one. It creates the
// folder. A failure leaves no temporary file.
func Write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	target, err := atomicfile.Resolve(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	f, err := atomicfile.Create(target)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		f.Discard()
		return fmt.Errorf("%s: %w", path, err)
	}
	return atomicfile.Replace(f)
}

// sizeError is the error for a file that is longer than the limit of Read.
type sizeError struct{ size, most int64 }

func (e *sizeError) Error() string { return fmt.Sprintf("%d bytes, more than %d", e.size, e.most) }

// Read returns the content of a regular file of at most that many bytes.
func Read(path string, most int64) ([]byte, error) {
	f, err := atomicfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		size, _ := f.Seek(0, io.SeekEnd)
		err = &sizeError{size, most}
	}
	return data, err
}

// lockPatience bounds the wait for the updates of other processes. One takes milliseconds, on a
// loaded machine seconds. A lock that is never released must not block others for ever.
const lockPatience = time.Minute

// Update replaces a file by the result of change, while no other process updates it. old is
// nil if there is no file, and empty if the file is longer than most bytes. If change
// returns nil the file is removed. Update locks <path>.lock, which it does not remove.
func Update(path string, most int64, change func(old []byte) ([]byte, error)) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// Without O_NONBLOCK a named pipe in the place of the lock would block.
	lock := flock.New(path+".lock", flock.SetFlag(os.O_CREATE|os.O_RDONLY|syscall.O_NONBLOCK))
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	if ok, err := lock.TryLockContext(ctx, 5*time.Millisecond); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Path(), err)
	} else if !ok {
		return fmt.Errorf("lock %s: held by another process", lock.Path())
	}
	defer func() { _ = lock.Unlock() }()
	old, err := Read(path, most)
	var size *sizeError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		old = nil
	case errors.As(err, &size):
		old = []byte{}
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	}
	data, err := change(old)
	if err != nil {
		return err
	}
	if data == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return Write(path, data)
}
