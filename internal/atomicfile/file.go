package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gofrs/flock"
)

// File is the new content of a target, under a hidden name in the target's folder. Every
// File must be replaced or discarded. Another goroutine may call Discard at any time;
// methods that run then fail.
type File struct {
	target string
	temp   string
	file   *os.File
	lock   *flock.Flock // nil if the file system has no locks
	old    fs.FileInfo  // the target when the file was created, nil if it did not exist
	backup *backup
}

// maxAttempts bounds the names that Create tries. A name is lost if another process takes
// the new file for a leftover before it is locked.
const maxAttempts = 100

var errNoTemporary = errors.New("no temporary file could be made")

// Create creates the hidden file of a target. It removes the hidden files that killed
// writers of the same target left.
func Create(t Target) (*File, error) {
	if t.Special() {
		return nil, notRegular(t.Info.Mode())
	}
	RemoveLeftovers(t)
	for range maxAttempts {
		f, err := create(t)
		if f != nil || err != nil {
			return f, err
		}
	}
	return nil, errNoTemporary
}

// create returns neither a file nor an error if the name was lost.
func create(t Target) (*File, error) {
	perm := fs.FileMode(0o666)
	if t.Info != nil {
		perm = 0o600 // until the file has the permissions of the old one
	}
	temp := tempName(t.Path)
	file, err := os.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if errors.Is(err, fs.ErrExist) {
		return nil, nil
	} else if err != nil {
		return nil, plain(err)
	}
	f := &File{target: t.Path, temp: temp, file: file, old: t.Info}
	lock, held := tryLock(temp)
	if lock == nil && held {
		// Another process has the lock or has removed the file.
		_ = file.Close()
		_ = os.Remove(temp)
		return nil, nil
	}
	f.lock = lock
	if lock != nil && !f.inPlace() {
		f.Discard()
		return nil, nil
	}
	return f, nil
}

// inPlace reports whether the hidden name still refers to the file that is written and
// locked.
func (f *File) inPlace() bool {
	made, err := f.file.Stat()
	if err != nil {
		return false
	}
	locked, err := f.lock.Stat()
	if err != nil || !os.SameFile(made, locked) {
		return false
	}
	named, err := os.Lstat(f.temp)
	return err == nil && os.SameFile(made, named)
}

func (f *File) Write(b []byte) (int, error) {
	n, err := f.file.Write(b)
	return n, plain(err)
}

// Sync flushes the content to the disk.
func (f *File) Sync() error { return plain(f.file.Sync()) }

// Target is the path that Replace renames the file to.
func (f *File) Target() string { return f.target }

// Discard removes the hidden file. After Replace it does nothing.
func (f *File) Discard() {
	_ = f.file.Close()
	_ = os.Remove(f.temp)
	f.unlock()
}

func (f *File) unlock() {
	if f.lock != nil {
		_ = f.lock.Unlock()
	}
}

// Replace gives all targets their new content, or none: after an error the old files are
// restored. It discards all Files in either case.
func Replace(files ...*File) error {
	err := replaceAll(files)
	for _, f := range files {
		f.backup.drop()
		f.Discard()
	}
	if err == nil {
		syncFolders(files)
	}
	return err
}

func replaceAll(files []*File) error {
	for i, f := range files {
		err := f.replace(i < len(files)-1)
		if err != nil {
			if f.backup.exists() {
				f.backup.restore()
			}
			for j := i - 1; j >= 0; j-- {
				files[j].backup.restore()
			}
			return fmt.Errorf("%s: %w", f.target, plain(err))
		}
	}
	return nil
}

// replace renames. With undo the old file keeps a second name.
func (f *File) replace(undo bool) error {
	there, err := os.Lstat(f.target)
	switch {
	case err == nil && !there.Mode().IsRegular():
		return notRegular(there.Mode())
	case err == nil:
		f.old = there
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if f.old != nil {
		f.takeAfter(f.old)
	}
	if err := f.file.Close(); err != nil {
		return err
	}
	if undo {
		if f.backup, err = backUp(f.target, f.temp); err != nil {
			return err
		}
	}
	return os.Rename(f.temp, f.target)
}

// takeAfter gives the hidden file the owner and the permissions of the old file, as far as
// the system allows. After a failure fewer users can access the file, not more.
func (f *File) takeAfter(old fs.FileInfo) {
	mode := old.Mode().Perm()
	was, known := old.Sys().(*syscall.Stat_t)
	if made, err := f.file.Stat(); known && err == nil {
		if is, ok := made.Sys().(*syscall.Stat_t); ok && (is.Uid != was.Uid || is.Gid != was.Gid) {
			if f.file.Chown(int(was.Uid), int(was.Gid)) != nil && f.file.Chown(-1, int(was.Gid)) != nil {
				// The permissions were for another group: this one gets no more than everybody.
				mode = mode&^0o070 | mode&0o007<<3&mode
			}
		}
	}
	_ = f.file.Chmod(mode)
}

// backup is the second name of a file that was replaced.
type backup struct {
	target, name string // name is "" if there was no file
	lock         *flock.Flock
}

var hardLink = os.Link // for tests

// backUp gives the target a second name, for restore or drop.
func backUp(target, temp string) (*backup, error) {
	b := &backup{target: target, name: temp + oldSuffix}
	// As with hidden files, the lock shows that the name is in use.
	b.lock, _ = tryLock(target)
	err := hardLink(target, b.name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		// A file system without hard links.
		err = os.Rename(target, b.name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		b.name, err = "", nil
	}
	return b, err
}

func (b *backup) exists() bool { return b != nil && b.name != "" }

// restore undoes a rename.
func (b *backup) restore() {
	if b.exists() {
		_ = os.Rename(b.name, b.target)
	} else {
		_ = os.Remove(b.target)
	}
}

func (b *backup) drop() {
	if b == nil {
		return
	}
	if b.exists() {
		_ = os.Remove(b.name)
	}
	if b.lock != nil {
		_ = b.lock.Unlock()
	}
}

// syncFolders flushes the folders, to make the renames durable. It ignores errors, as some
// file systems cannot sync a folder.
func syncFolders(files []*File) {
	seen := map[string]bool{}
	for _, f := range files {
		dir := filepath.Dir(f.target)
		if seen[dir] {
			continue
		}
		seen[dir] = true
		if d, err := os.Open(dir); err == nil {
			_ = d.Sync()
			_ = d.Close()
		}
	}
}
