// Package pause waits in loops that poll a device or a library.
package pause

import (
	"runtime"
	"syscall"
	"time"
)

// Loop is the state of a loop that polls. The zero value is ready.
//
// The loop yields without sleeping for its first 200 us, since most events come within that time.
// Then it sleeps, longer and longer up to 100 us. The sleep is one of the kernel's: [time.Sleep]
// takes a millisecond at least while no other goroutine runs.
type Loop struct{ begin time.Time }

const (
	spin    = 200 * time.Microsecond
	longest = 100 * time.Microsecond
)

// Wait returns when the loop should poll again.
func (l *Loop) Wait() {
	now := time.Now()
	if l.begin.IsZero() {
		l.begin = now
	}
	waited := now.Sub(l.begin)
	if waited < spin {
		runtime.Gosched()
		return
	}
	t := syscall.NsecToTimespec(int64(min(waited/16, longest)))
	_ = syscall.Nanosleep(&t, nil) // a signal ends it early
}
