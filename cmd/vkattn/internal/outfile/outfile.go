// Package outfile writes several files so that either all of them appear,
// whole, or none does.
package outfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// Set is the output files of one run. Each is written beside its place under
// a hidden name; Commit moves them all there, Discard removes what is left. It is
// safe for a signal handler's goroutine to call Discard at any time.
type Set struct {
	mu    sync.Mutex
	files []*entry
	done  bool
}

type entry struct {
	target, temp string
	file         *os.File
}

var errDiscarded = errors.New("output was discarded")

// Add makes the temporary file of path at once, so that a folder which takes
// no files is known before any work is done. A link is followed: what it
// points to is replaced.
func (s *Set) Add(path string) (io.Writer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return nil, errDiscarded
	}
	target, err := Resolve(path)
	if err != nil {
		return nil, err
	}
	temp := filepath.Join(filepath.Dir(target), "."+filepath.Base(target)+"."+rand.Text()+".tmp")
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, plain(err)
	}
	s.files = append(s.files, &entry{target: target, temp: temp, file: f})
	return writer{f}, nil
}

// writer keeps the temporary name out of errors.
type writer struct{ f *os.File }

func (w writer) Write(b []byte) (int, error) {
	n, err := w.f.Write(b)
	return n, plain(err)
}

// Resolve is the place that writing to path means, links followed. It refuses
// a place that holds something other than a regular file: replacing a device
// or a folder is never meant.
func Resolve(path string) (string, error) {
	target := path
	if real, err := filepath.EvalSymlinks(path); err == nil {
		target = real
		info, err := os.Stat(real)
		if err != nil {
			return "", plain(err)
		}
		if !info.Mode().IsRegular() {
			return "", errors.New("exists and is not a regular file")
		}
	} else if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		target = filepath.Join(dir, filepath.Base(path))
	} else {
		return "", plain(err)
	}
	return filepath.Abs(target)
}

// Commit flushes every file to the disk and moves them into place. On an error
// no file of the set is left, and a file that was there before is there again.
func (s *Set) Commit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return errDiscarded
	}
	err := s.commit()
	s.discard()
	return err
}

func (s *Set) commit() error {
	for _, e := range s.files {
		if err := errors.Join(e.file.Sync(), e.file.Close()); err != nil {
			return fmt.Errorf("%s: %w", e.target, plain(err))
		}
	}
	var undo []func()
	for _, e := range s.files {
		// The old file keeps a second name until all the new ones are in place.
		old := e.temp + ".old"
		kept := os.Link(e.target, old) == nil
		if kept {
			defer func() { _ = os.Remove(old) }()
		}
		if err := os.Rename(e.temp, e.target); err != nil {
			for _, f := range undo {
				f()
			}
			return fmt.Errorf("%s: %w", e.target, plain(err))
		}
		undo = append(undo, func() {
			if kept {
				_ = os.Rename(old, e.target)
			} else {
				_ = os.Remove(e.target)
			}
		})
	}
	// The names are as durable as the folder; a file system that cannot sync
	// a folder has nothing better to offer.
	for _, e := range s.files {
		if d, err := os.Open(filepath.Dir(e.target)); err == nil {
			_ = d.Sync()
			_ = d.Close()
		}
	}
	return nil
}

// Discard removes every temporary file. After Commit it does nothing.
func (s *Set) Discard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discard()
}

func (s *Set) discard() {
	if s.done {
		return
	}
	s.done = true
	for _, e := range s.files {
		_ = e.file.Close()
		_ = os.Remove(e.temp)
	}
}

// plain drops the temporary name that package os puts before its message.
func plain(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	var le *os.LinkError
	if errors.As(err, &le) {
		return le.Err
	}
	return err
}
