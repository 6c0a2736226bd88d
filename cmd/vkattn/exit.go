package main

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/internal/atomicfile"
	"vkattn/vk"
)

// Exit codes. A signal's is exitSignal plus its number, as in a shell: 129 for
// SIGHUP, 130 for SIGINT, 143 for SIGTERM.
const (
	exitOK          = 0
	exitFailure     = 1
	exitInput       = 2
	exitUnsupported = 3 // no tier supports the request, or it does not fit the memory
	exitDevice      = 4
	exitSignal      = 128
	exitPipe        = exitSignal + int(syscall.SIGPIPE) // nobody reads the output
)

// signalHelp ends the list of exit codes in the help of a command that takes long.
const signalHelp = `.
129, 130 or 143 after SIGHUP, SIGINT or SIGTERM, 141 if the output is a closed pipe.`

// coded is an error with its exit code.
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
	case errors.Is(err, syscall.EPIPE):
		return exitPipe
	case errors.Is(err, vk.ErrOutOfMemory): // before coded errors, which may wrap it
		return exitUnsupported
	case errors.As(err, &known):
		return known.code
	case errors.Is(err, vk.ErrUnsupported), errors.Is(err, vk.ErrNoDevice):
		return exitUnsupported
	case errors.As(err, &shape):
		return exitInput
	case errors.As(err, &device), errors.Is(err, vk.ErrDeviceLost), errors.Is(err, vk.ErrClosed), errors.Is(err, vk.ErrTimeout):
		return exitDevice
	}
	return exitFailure
}

// errorPrefix begins the line that reports an error.
const errorPrefix = "vkattn: "

// interruptedText is the line of a command that a signal ended.
const interruptedText = errorPrefix + "interrupted"

// errSaid is an error that a process of this command has reported.
var errSaid = errors.New("reported")

// exit reports err in one line and returns the exit code. It is silent if standard output was
// closed: the reader, such as head, has what it wanted.
func (a *app) exit(err error) int {
	code := exitCode(err)
	if err != nil && !errors.Is(err, errSaid) && !errors.Is(err, atomicfile.ErrNobodyReads) {
		fmt.Fprintln(a.stderr, errorPrefix+flagtext.OneLine(err.Error()))
	}
	return code
}

// cleanup is a list of functions to call after a signal.
type cleanup struct {
	mu    sync.Mutex
	funcs []func()
	ran   bool
}

// add registers f for run. If run was called before, add calls f at once.
func (c *cleanup) add(f func()) {
	c.mu.Lock()
	ran := c.ran
	if !ran {
		c.funcs = append(c.funcs, f)
	}
	c.mu.Unlock()
	if ran {
		f()
	}
}

// run calls the registered functions once each, the last first.
func (c *cleanup) run() {
	c.mu.Lock()
	funcs := c.funcs
	c.funcs, c.ran = nil, true
	c.mu.Unlock()
	for i := len(funcs) - 1; i >= 0; i-- {
		funcs[i]()
	}
}
