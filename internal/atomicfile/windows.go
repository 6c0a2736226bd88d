//go:build windows

package atomicfile

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// Files are opened so that they may be renamed and removed while they are open.
const shareAll = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE

func open(path string, access, create uint32) (*os.File, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, err
	}
	h, err := windows.CreateFile(name, access, shareAll, nil, create, windows.FILE_ATTRIBUTE_NORMAL, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(h), path), nil
}

// createNew creates a file for writing that did not exist.
func createNew(path string, _ fs.FileMode) (*os.File, error) {
	return open(path, windows.GENERIC_READ|windows.GENERIC_WRITE, windows.CREATE_NEW)
}

// openShared opens a file for reading.
func openShared(path string) (*os.File, error) {
	return open(path, windows.GENERIC_READ, windows.OPEN_EXISTING)
}

// lock locks an open file until it is closed. The error matches errHeld if it is open with a lock elsewhere;
// any other means that the file system has no locks. A locked range cannot be read by others, so it lies
// past the end of any file.
func lock(f *os.File) error {
	past := windows.Overlapped{OffsetHigh: 1 << 30}
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &past)
}

const errHeld = windows.ERROR_LOCK_VIOLATION

// hardLink makes replace rename the old file instead. Windows refuses a rename onto a file that is open under any of
// its names, and the old file is, for its lock.
var hardLink = func(_, _ string) error { return errors.ErrUnsupported }

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
