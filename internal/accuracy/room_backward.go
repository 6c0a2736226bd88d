package accuracy

import (
	"runtime"

	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
)

// Host memory of VerifyBackward, and how much of a large problem it samples.

// gradientSampleBytes is the host memory that a sample of rows of a large problem takes.
func gradientSampleBytes(cfg problem.Config, s problem.Shape, rows int) uint64 {
	both := cfg.HeadDim + cfg.ValueDim()
	long := max(s.Sq, s.Sk)
	return hostmem.Sum(
		hostmem.Product(rows+2*keysPerHead*keyHeads, both, 8+4+4+8, 2), // results
		hostmem.Product(long, both, 4),                                 // Q and dO, or K and V
		hostmem.Product(s.Group(), s.Sq, cfg.ValueDim()*4+4+80),        // O and the statistics of a KV head's rows
		hostmem.Product(s.Sk, 8*(8+4), 64),                             // scores and their gradients of the rows under way
	)
}

// sampledRows is the number of rows that are sampled of a large problem unless the caller
// says how many.
func sampledRows(cfg problem.Config, s problem.Shape) int {
	return int(min(max(wholeProducts/(float64(s.Sk)*float64(3*cfg.HeadDim+2*cfg.ValueDim())), 32), 1<<12))
}

// VerifyBackwardBytes is about the host memory that VerifyBackward takes for a problem
// without bias, in addition to its tensors.
func VerifyBackwardBytes(cfg problem.Config, s problem.Shape) uint64 {
	if gradientProducts(cfg, s) > wholeProducts {
		return gradientSampleBytes(cfg, s, sampledRows(cfg, s))
	}
	const element = 8 + 4 + 8 + 2*(4+8+4+8) // reference, low and noise, and those to compare in slices that grow
	const row = 24 + 3*24                   // its draws, and what they make likely
	keys := hostmem.Product(s.B, s.KVHeads(), s.Sk)
	return hostmem.Sum(
		hostmem.Product(s.B, s.Hq, s.Sq, cfg.HeadDim*element+row),
		hostmem.Product(keys, uint64((cfg.HeadDim+cfg.ValueDim())*element+2*row)),
		hostmem.Product(min(uint64(runtime.GOMAXPROCS(0)), hostmem.Product(s.B, s.KVHeads())), 64, uint64(s.Sk), 2*(8+8+8+8)))
}
