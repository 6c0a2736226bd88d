// Package outfile writes several files so that either all of them appear,
// whole, or none does. Pipes and devices among them are written in place.
package outfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"vkattn/internal/atomicfile"
)

// Set is the output files of one run. Each is written next to its target under
// a hidden name; Commit moves them all there, Discard removes what is left. It is
// safe for a signal handler's goroutine to call Discard at any time.
type Set struct {
	mu      sync.Mutex // not held while a pipe or a disk may block
	files   []*atomicfile.File
	streams []io.Closer // special files, open
	done    bool
}

var errDiscarded = errors.New("output was discarded")

// Add makes the hidden file of path at once, so that a folder which takes no files
// is known before any work is done. Symbolic links are followed: what they lead to
// is replaced or made. What is special is opened instead, and a pipe waits for a
// reader; bytes written to it cannot be taken back by Discard.
func (s *Set) Add(path string) (io.Writer, error) {
	target, err := atomicfile.Resolve(path)
	if err != nil {
		return nil, err
	}
	if s.discarded() {
		return nil, errDiscarded // and opens no pipe
	}
	if target.Special() {
		w, err := target.OpenSpecial()
		if err != nil {
			return nil, err
		}
		if !s.keep(func() { s.streams = append(s.streams, w) }) {
			_ = w.Close()
			return nil, errDiscarded
		}
		return w, nil
	}
	f, err := atomicfile.Create(target)
	if err != nil {
		return nil, err
	}
	if !s.keep(func() { s.files = append(s.files, f) }) {
		f.Discard()
		return nil, errDiscarded
	}
	return f, nil
}

func (s *Set) discarded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// keep adds to the set unless it was discarded meanwhile.
func (s *Set) keep(add func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.done {
		add()
	}
	return !s.done
}

// Check reports whether Add can be expected to take path. It opens no pipe or
// device and leaves nothing.
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

// Commit flushes every file to the disk and moves them into place, unless ctx is
// cancelled or the set discarded before the first is moved. On an error no file of
// the set is left, and a file that was there before is there again.
func (s *Set) Commit(ctx context.Context) error {
	defer s.Discard()
	s.mu.Lock()
	files, streams := s.files, s.streams // Add is over
	s.mu.Unlock()
	var err error
	for _, w := range streams {
		err = errors.Join(err, w.Close())
	}
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

// Discard removes every hidden file. After Commit it does nothing; while Commit moves
// files it waits.
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
	for _, w := range s.streams {
		_ = w.Close()
	}
}
