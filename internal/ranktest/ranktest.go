// Package ranktest has what tests of several ranks in one process share.
package ranktest

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention/parallel"
)

// NoLeak fails if goroutines are left at the end of a test.
func NoLeak(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for end := time.Now().Add(2 * time.Minute); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
			require.True(t, time.Now().Before(end), "%d goroutines, before the test %d", runtime.NumGoroutine(), before)
		}
	})
}

// OnAll runs work for n ranks at once and returns their errors.
func OnAll(n int, work func(r int) error) []error {
	list := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { list[r] = work(r) })
	}
	wg.Wait()
	return list
}

// Named checks that an error names a rank, matches a reason and is one line.
func Named(t *testing.T, err error, rank int, want error) {
	t.Helper()
	var e *parallel.RankError
	require.ErrorAs(t, err, &e)
	require.Equal(t, rank, e.Rank, "%v", err)
	require.ErrorIs(t, err, want)
	require.NotContains(t, err.Error(), "\n")
}
