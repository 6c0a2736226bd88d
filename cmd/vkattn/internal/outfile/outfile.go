// Package outfile writes several files so that all of them appear complete, or none does.
// Pipes and devices are written in place.
package outfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"vkattn/internal/atomicfile"
)

// Set is the output files of one run. Each is written under a hidden name in the folder
// of its target. Commit renames all of them; Discard removes them. Another goroutine may
// call Discard at any time.
type Set struct {
	mu    sync.Mutex // not held while a pipe or a disk may block
	files []*atomicfile.File
	done  bool
}

var errDiscarded = errors.New("output was discarded")

// ErrNobodyReads is the error of a write to standard output that is a pipe without a reader.
var ErrNobodyReads = fmt.Errorf("standard output: %w", syscall.EPIPE)

// Add creates the hidden file of path, so that a folder that cannot be written to is an
// error before any work is done. It follows symbolic links. A pipe or device is opened
// instead, which for a pipe waits for a reader; Discard cannot take back what is written
// to it.
func (s *Set) Add(path string) (io.Writer, error) {
	target, err := atomicfile.Resolve(path)
	if err != nil {
		return nil, err
	}
	if s.discarded() {
		return nil, errDiscarded // before a pipe is opened
	}
	create := atomicfile.Create
	if target.Special() {
		create = atomicfile.Target.OpenSpecial
	}
	f, err := create(target)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		f.Discard()
		return nil, errDiscarded
	}
	s.files = append(s.files, f)
	if target.Stdout() {
		return stdout{f}, nil
	}
	return f, nil
}

// stdout is standard output, named by a path.
type stdout struct{ w io.Writer }

func (s stdout) Write(b []byte) (int, error) {
	n, err := s.w.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		err = ErrNobodyReads
	}
	return n, err
}

func (s *Set) discarded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// Check returns an error if Add would fail. It opens no pipe or device and leaves no
// file.
func Check(path string) error {
	target, err := atomicfile.Resolve(path)
	if err != nil {
		return err
	}
	if target.Special() {
		return target.Writable()
	}
	f, err := atomicfile.Create(target)
	if err == nil {
		f.Discard()
	}
	return err
}

// RemoveLeftovers removes the hidden files of path that killed processes left.
func RemoveLeftovers(path string) {
	if target, err := atomicfile.Resolve(path); err == nil && !target.Special() {
		atomicfile.RemoveLeftovers(target)
	}
}

// Commit flushes every file to the disk and renames it, unless ctx is cancelled or the
// set is discarded before the first rename. After an error no file of the set exists and
// the old files are restored.
func (s *Set) Commit(ctx context.Context) error {
	defer s.Discard()
	s.mu.Lock()
	files := s.files // no Add follows
	s.mu.Unlock()
	var err error
	for _, f := range files {
		if e := f.Sync(); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", f.Target(), e))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.done:
		return errDiscarded
	case err != nil:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	s.done = true
	return atomicfile.Replace(files...)
}

// Discard removes every hidden file. It waits for renames of Commit and does nothing
// after them.
func (s *Set) Discard() {
	s.mu.Lock()
	done := s.done
	s.done = true
	s.mu.Unlock()
	if done {
		return
	}
	for _, f := range s.files {
		f.Discard()
	}
}
