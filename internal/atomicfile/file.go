// Package atomicfile replaces files atomically: a reader finds the old content or the new
// content, however the writer ends. docs/design.md says how.
package atomicfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

// File is the new content of a target, under a hidden name in the target's folder, or a
// target that is written in place. Every File must be replaced or discarded. Another
// goroutine may call Discard at any time; methods that run then fail.
type File struct {
	target string
	temp   string // "" if the target is written in place
	file   *os.File
	old    fs.FileInfo // nil if the target did not exist
}

// Create creates the hidden file of a target and locks it. A killed writer leaves such a
// file without a lock; Create removes those of its target.
func Create(t Target) (*File, error) {
	if t.Special() {
		return nil, notRegular(t.Info.Mode())
	}
	t.removeLeftovers()
	perm := fs.FileMode(0o666)
	if t.Info != nil {
		perm = 0o600 // until the file has the permissions of the old one
	}
	for {
		f := &File{target: t.Path, temp: hiddenPrefix(t.Path) + rand.Text() + ".tmp", old: t.Info}
		var err error
		if f.file, err = open(f.temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm); err != nil {
			return nil, plain(err)
		}
		if lock(f.file) != errHeld && isAt(f.temp, f.file) {
			return f, nil
		}
		f.Discard() // another process took it for a leftover before it was locked
	}
}

// hiddenPrefix begins the hidden paths of a target. Names have at most 255 bytes.
func hiddenPrefix(target string) string {
	dir, base := filepath.Split(target)
	return dir + "." + base[:min(len(base), 200)] + "."
}

// RemoveLeftovers removes the hidden files of a path that killed processes left: those that are not locked. It ignores
// errors: a leftover only costs space.
func RemoveLeftovers(path string) {
	if t, err := Resolve(path); err == nil && !t.Special() {
		t.removeLeftovers()
	}
}

func (t Target) removeLeftovers() {
	hidden := regexp.MustCompile("^" + regexp.QuoteMeta(hiddenPrefix(t.Path)) + `[A-Z2-7]{26}\.tmp$`)
	entries, _ := os.ReadDir(filepath.Dir(t.Path))
	for _, e := range entries {
		path := filepath.Join(filepath.Dir(t.Path), e.Name())
		if !hidden.MatchString(path) {
			continue
		}
		if f, err := Open(path); err == nil {
			if lock(f) == nil && isAt(path, f) {
				_ = os.Remove(path)
			}
			_ = f.Close()
		}
	}
}

// isAt reports whether a name, and not a link of that name, refers to an open file.
func isAt(path string, f *os.File) bool {
	named, err := os.Lstat(path)
	opened, e := f.Stat()
	return err == nil && e == nil && os.SameFile(named, opened)
}

func (f *File) Write(b []byte) (int, error) {
	n, err := f.file.Write(b)
	return n, plain(err)
}

// Sync flushes the content to the disk. It ends a file that is written in place.
func (f *File) Sync() error {
	if f.temp == "" {
		return plain(f.file.Close())
	}
	return plain(f.file.Sync())
}

// Target is the path that Replace renames the file to.
func (f *File) Target() string { return f.target }

// Discard removes the hidden file. After Replace it does nothing.
func (f *File) Discard() {
	_ = f.file.Close()
	if f.temp != "" {
		_ = os.Remove(f.temp)
	}
}

// Replace gives all targets their new content. If one of them cannot take it, none is changed. It discards all
// Files in either case. Files that are written in place are left out.
func Replace(files ...*File) (err error) {
	files = slices.DeleteFunc(slices.Clone(files), func(f *File) bool { return f.temp == "" })
	for _, step := range []func(*File) error{(*File).prepare, (*File).rename} {
		for _, f := range files {
			if err == nil {
				if err = step(f); err != nil {
					err = fmt.Errorf("%s: %w", f.target, plain(err))
				}
			}
		}
	}
	for _, f := range files {
		f.Discard()
		// For the rename to last. Some file systems cannot sync a folder.
		if folder, e := os.Open(filepath.Dir(f.target)); e == nil {
			_ = folder.Sync()
			_ = folder.Close()
		}
	}
	return err
}

// prepare finds out whether the file can be renamed, and gives it the permissions of the old one.
func (f *File) prepare() error {
	there, err := os.Lstat(f.target)
	if err == nil {
		f.old = there
	}
	if err := regular(there, err); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !isAt(f.temp, f.file) {
		return fs.ErrNotExist
	}
	if f.old != nil {
		takeAfter(f.file, f.old)
	}
	return nil
}

func (f *File) rename() error { return os.Rename(f.temp, f.target) }
