package atomicfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
)

// Set is the output files of one run, all of which appear complete, or none does. Each is written under a hidden name
// in the folder of its target; pipes and devices are written in place. Commit renames all of them; Discard removes them. Another goroutine may
// call Discard at any time.
type Set struct {
	mu    sync.Mutex // not held while a pipe or a disk may block
	files []*File
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
	target, err := Resolve(path)
	if err != nil {
		return nil, err
	}
	if s.discarded() {
		return nil, errDiscarded // before a pipe is opened
	}
	create := Create
	if target.Special() {
		create = Target.OpenSpecial
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
	target, err := Resolve(path)
	if err != nil {
		return err
	}
	if target.Special() {
		return target.Writable()
	}
	f, err := Create(target)
	if err == nil {
		f.Discard()
	}
	return err
}

// Commit flushes every file to the disk and renames it, unless ctx is cancelled or the
// set is discarded before the first rename. If one of
// them cannot be replaced, none is.
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
	return Replace(files...)
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
