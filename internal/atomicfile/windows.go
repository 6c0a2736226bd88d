//go:build windows

package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

// open opens a file by its folder: os.Root lets others rename and remove a file while it is open, os.OpenFile does not.
func open(path string, flag int, perm fs.FileMode) (*os.File, error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	return dir.OpenFile(filepath.Base(path), flag, perm)
}

// lock locks an open file until it is closed. The error matches errHeld if it is open with a lock elsewhere;
// any other means that the file system has no locks. A locked range cannot be read by others, so it lies
// past the end of any file.
func lock(f *os.File) error {
	past := windows.Overlapped{OffsetHigh: 1 << 30}
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &past)
}

const errHeld = windows.ERROR_LOCK_VIOLATION

// takeAfter does nothing: a new file has the permissions of its folder.
func takeAfter(*os.File, fs.FileInfo) {}

// inherited reports that the process was started with no descriptor: no path names one here.
func inherited(int) bool { return false }

// Writable returns an error if the caller may not write to a special target.
func (t Target) Writable() error { return nil }

// OpenSpecial opens a special target for writing in place.
func (t Target) OpenSpecial() (f *File, err error) {
	f = &File{target: t.Path}
	f.file, err = os.OpenFile(t.Path, os.O_WRONLY, 0)
	return f, plain(err)
}
