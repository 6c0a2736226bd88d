// Package cachefile writes files that are kept between runs, in vk.CacheDir: things
// that cost time to make again and nothing else, so that any of them may be deleted.
package cachefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"vkattn/internal/atomicfile"
)

// ErrNotRegular is matched by the error of a pipe, device, socket or folder in the
// place of a file. None of them is opened or replaced.
var ErrNotRegular = atomicfile.ErrNotRegular

// Write replaces a file whole: readers see the old or the new one. It makes the
// folder. A failure leaves nothing behind.
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
	if _, err := f.Write(data); err != nil {
		f.Discard()
		return fmt.Errorf("%s: %w", path, err)
	}
	return atomicfile.Replace(f)
}

// Read returns the content of a file of at most that many bytes.
func Read(path string, most int64) ([]byte, error) { return atomicfile.Read(path, most) }

// lockPatience bounds the wait for another process's update, which takes
// milliseconds; a lock file nobody gives back must not stop anyone for long.
const lockPatience = 5 * time.Second

// Update replaces a file by what change makes of it, no two processes at once.
// old is nil where there is no file, and empty where the file is longer than most
// bytes; nil from change removes the file. Locking is by <path>.lock, which stays.
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
	var size *atomicfile.SizeError
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
