//go:build !windows

package bench

import "time"

// Stopwatch starts a clock that is fine enough for one run. The result returns the time since.
func Stopwatch() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
