package tests

import (
	"runtime"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
)

// TestStressForwardUnderGC computes the same problems repeatedly in several streams while
// the garbage collector runs all the time, and requires the same bits every time. It finds
// memory that is freed while Vulkan still reads it.
func TestStressForwardUnderGC(t *testing.T) {
	s := openDevice(t)
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	stop := make(chan struct{})
	var collector sync.WaitGroup
	collector.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	defer collector.Wait()
	defer close(stop)

	const workers, rounds = 3, 50
	for _, tt := range s.available() {
		if tt.Tier == attention.TierCPU || tt.DType != attention.F16 {
			continue // the CPU tier uses only Go's memory, and types differ only in the kernel
		}
		t.Run(tt.String(), func(t *testing.T) {
			e := s.newEngine(tt)
			errs := make([]error, workers)
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() {
					c := small
					c.D, c.Dv, c.Layout = 64, 64, cases.Tight
					c.Seed, c.Access = uint64(w+1), cases.Accesses[w%len(cases.Accesses)]
					c.Shape.Sq = 40 + w
					p, err := cases.NewProblem(c, tt.DType)
					var first *job
					for range rounds {
						if err != nil {
							break
						}
						j := &job{Problem: p, cfg: attention.Config(p.Config(tt)), before: p.Image}
						if err = e.run([]*job{j}); err == nil && first != nil {
							err = p.SameRows(first.after, j.after, p.Shape.Sk)
						}
						if first == nil && err == nil {
							first = j
							var x cases.Truth
							err = x.Judge(p, j.after)
						}
					}
					errs[w] = err
				})
			}
			wg.Wait()
			for w, err := range errs {
				require.NoError(t, err, "worker %d", w)
			}
			require.NoError(t, e.close())
		})
	}
}
