package main

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"vkattn/attention"
	"vkattn/vk"
)

// Exit codes, see the package comment.
const (
	exitOK          = 0
	exitFailure     = 1
	exitInput       = 2
	exitUnsupported = 3
	exitDevice      = 4
)

// coded is an error whose exit code is known where it is made.
type coded struct {
	code int
	err  error
}

func (e *coded) Error() string { return e.err.Error() }
func (e *coded) Unwrap() error { return e.err }

func badInput(err error) error { return &coded{exitInput, err} }

func badInputf(format string, args ...any) error { return badInput(fmt.Errorf(format, args...)) }

func unsupportedf(format string, args ...any) error {
	return &coded{exitUnsupported, fmt.Errorf(format, args...)}
}

// exitCode maps an error to the command's exit code.
func exitCode(err error) int {
	var known *coded
	var shape *attention.ShapeError
	var device *vk.Error
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &known):
		return known.code
	case errors.Is(err, vk.ErrUnsupported), errors.Is(err, vk.ErrNoDevice):
		return exitUnsupported
	case errors.As(err, &shape):
		return exitInput
	case errors.As(err, &device), errors.Is(err, vk.ErrDeviceLost), errors.Is(err, vk.ErrOutOfMemory), errors.Is(err, vk.ErrClosed):
		return exitDevice
	case strings.HasPrefix(err.Error(), "unknown command"): // cobra has no type for it
		return exitInput
	}
	return exitFailure
}

// exit reports err in one line and returns the exit code.
func (a *app) exit(err error) int {
	code := exitCode(err)
	if err != nil {
		fmt.Fprintln(a.stderr, "vkattn:", oneLine(err.Error()))
	}
	return code
}

// oneLine joins lines, and drops the package names that errors of the
// project's own packages begin with.
func oneLine(text string) string {
	var parts []string
	for _, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	text = strings.Join(parts, "; ")
	for _, prefix := range []string{"attention: ", "vk: ", "cudapath: "} {
		text = strings.ReplaceAll(text, ": "+prefix, ": ")
		text = strings.TrimPrefix(text, prefix)
	}
	return text
}

// cleanup is what must still happen when the command is cut short.
type cleanup struct {
	mu    sync.Mutex
	funcs []func()
}

func (c *cleanup) add(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.funcs = append(c.funcs, f)
}

// run calls what was added, last first, each once.
func (c *cleanup) run() {
	c.mu.Lock()
	funcs := c.funcs
	c.funcs = nil
	c.mu.Unlock()
	for i := len(funcs) - 1; i >= 0; i-- {
		funcs[i]()
	}
}
