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
	"time"

	"github.com/gofrs/flock"
)

// Write replaces a file whole, by renaming: readers see the old or the new one.
// It makes the folder. A failure leaves nothing behind.
func Write(path string, data []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".tmp-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}

// lockPatience bounds the wait for another process's update, which takes
// milliseconds; a lock file nobody gives back must not stop anyone for long.
const lockPatience = 5 * time.Second

// Update replaces a file by what change makes of it, no two processes at once.
// old is nil where there is no file; nil from change removes it. Locking is by
// <path>.lock, which stays.
func Update(path string, change func(old []byte) ([]byte, error)) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	lock := flock.New(path + ".lock")
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	if ok, err := lock.TryLockContext(ctx, 5*time.Millisecond); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Path(), err)
	} else if !ok {
		return fmt.Errorf("lock %s: held by another process", lock.Path())
	}
	defer func() { _ = lock.Unlock() }()
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
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
