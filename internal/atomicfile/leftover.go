package atomicfile

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"

	"github.com/gofrs/flock"
)

// The hidden name of a target "o.npy" is ".o.npy.RANDOM.tmp". The old file is called
// ".o.npy.RANDOM.tmp.old" while several files are replaced together.
const (
	tempSuffix = ".tmp"
	oldSuffix  = ".old"
)

// maxBase bounds the part of the target's name in the hidden name: names have at most 255
// bytes.
const maxBase = 200

var tempTail = regexp.MustCompile(`^[A-Z2-7]{26}\.tmp(\.old)?$`)

func tempPrefix(target string) string {
	base := filepath.Base(target)
	return "." + base[:min(len(base), maxBase)] + "."
}

func tempName(target string) string {
	return filepath.Join(filepath.Dir(target), tempPrefix(target)+rand.Text()+tempSuffix)
}

// RemoveLeftovers removes the hidden files of a target that killed writers left: those that
// are not locked. It ignores errors: a leftover only costs space.
func RemoveLeftovers(t Target) {
	dir, prefix := filepath.Dir(t.Path), tempPrefix(t.Path)
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	defer func() { _ = d.Close() }()
	for {
		names, err := d.Readdirnames(1024)
		for _, name := range names {
			if len(name) > len(prefix) && name[:len(prefix)] == prefix && tempTail.MatchString(name[len(prefix):]) {
				removeLeftover(filepath.Join(dir, name))
			}
		}
		if err != nil {
			return
		}
	}
}

func removeLeftover(path string) {
	before, err := os.Lstat(path)
	if err != nil || !before.Mode().IsRegular() {
		return
	}
	lock, _ := tryLock(path)
	if lock == nil {
		return
	}
	defer func() { _ = lock.Unlock() }()
	// The lock counts only if the name still refers to the locked file.
	locked, err := lock.Stat()
	if err != nil {
		return
	}
	if now, err := os.Lstat(path); err == nil && os.SameFile(now, locked) {
		_ = os.Remove(path)
	}
}

// tryLock locks an existing file. If it returns no lock, held reports that another process
// has the lock or that the file does not exist; otherwise the file system has no locks.
func tryLock(path string) (lock *flock.Flock, held bool) {
	// Without O_NONBLOCK a named pipe of that name would block.
	l := flock.New(path, flock.SetFlag(os.O_RDONLY|syscall.O_NONBLOCK))
	ok, err := l.TryLock()
	switch {
	case ok:
		return l, true
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return nil, true
	}
	return nil, false
}
