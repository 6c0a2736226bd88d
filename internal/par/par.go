// Package par spreads independent pieces of work over the CPUs.
package par

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Each calls work(i) once for every i in [0, n), on up to GOMAXPROCS
// goroutines, and returns when all calls have. newWorker is called once per
// goroutine and returns its work function, which may own scratch memory. Which
// goroutine gets which i is not determined.
func Each(n int64, newWorker func() (work func(i int64))) {
	workers := min(int64(runtime.GOMAXPROCS(0)), n)
	if workers <= 1 {
		if n > 0 {
			work := newWorker()
			for i := range n {
				work(i)
			}
		}
		return
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			work := newWorker()
			for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
				work(i)
			}
		})
	}
	wg.Wait()
}

// Piece is a part of one of several lists.
type Piece struct {
	List   int // index of the list
	Lo, Hi int // elements [Lo, Hi) of it
	At     int // index of element Lo in the concatenation of all lists
}

// Pieces cuts lists of the given lengths into pieces of at most size elements.
func Pieces(lengths []int, size int) (pieces []Piece) {
	at := 0
	for i, n := range lengths {
		for lo := 0; lo < n; lo += size {
			pieces = append(pieces, Piece{i, lo, min(lo+size, n), at + lo})
		}
		at += n
	}
	return pieces
}
