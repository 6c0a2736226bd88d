// Package pause waits in loops that poll a device or a library.
package pause

import (
	"runtime"
	"time"
)

// Spin is the state of a loop that polls for what comes within microseconds. The zero value is ready.
//
// Other goroutines run once in 50 us. runtime.Gosched in every turn wakes other threads of the operating
// system, which take the goroutine: on two shared cores it then moved 300 to 2600 times a second, in place of
// 130 to 620, and a turn took 0.2 us in place of 0.1.
type Spin struct{ last time.Time }

const yield = 50 * time.Microsecond

// Wait returns when the loop should poll again.
func (s *Spin) Wait() { s.at(time.Now()) }

func (s *Spin) at(now time.Time) {
	switch {
	case s.last.IsZero():
		s.last = now
	case now.Sub(s.last) >= yield:
		runtime.Gosched()
		s.last = time.Now()
	}
}

// Loop is the state of a loop that polls. The zero value is ready.
//
// The loop is a Spin for its first 200 us, since most events come within that time.
// Then it sleeps, longer and longer up to 100 us. On Linux the sleep is one of the kernel's: [time.Sleep]
// takes a millisecond at least there while no other goroutine runs.
type Loop struct {
	begin time.Time
	spin  Spin
}

const (
	spin    = 200 * time.Microsecond
	longest = 100 * time.Microsecond
)

// Wait returns when the loop should poll again.
func (l *Loop) Wait() {
	now := time.Now()
	d := l.sleep(now)
	if d == 0 {
		l.spin.at(now)
		return
	}
	sleep(d)
}

// sleep is how long a Wait at some time sleeps; 0: it spins.
func (l *Loop) sleep(now time.Time) time.Duration {
	if l.begin.IsZero() {
		l.begin = now
	}
	waited := now.Sub(l.begin)
	if waited < spin {
		return 0
	}
	return min(waited/16, longest)
}
