// Package inputs fills tensors with random numbers for tests and benchmarks.
//
// The bytes depend only on the seed, the distribution, the storage type and the position,
// not on the number of CPUs.
package inputs

import (
	"fmt"
	"math/rand/v2"

	"vkattn/internal/par"
	"vkattn/internal/problem"
)

// Distribution is a distribution of random numbers.
type Distribution uint8

// Distributions. Normal gives realistic softmax rows, in which a few keys matter.
const (
	Normal  Distribution = iota // mean 0, variance 1
	Uniform                     // [-1, 1)
)

// chunk is the number of elements that one generator makes. It is fixed, so that the
// numbers do not depend on how many CPUs share the chunks.
const chunk = 1 << 14

// Fill writes len(dst)/dtype.Size() random elements, rounded to dtype. It panics if dst is
// not a whole number of elements or dtype is not a named type.
func Fill(dst []byte, dtype problem.DType, d Distribution, seed uint64) {
	size := dtype.Size()
	if size == 0 || len(dst)%size != 0 {
		panic(fmt.Sprintf("inputs: %d bytes are not whole elements of %v", len(dst), dtype))
	}
	n := len(dst) / size
	chunks := (n + chunk - 1) / chunk
	par.Each(int64(chunks), func() func(int64) {
		buf := make([]float32, chunk)
		return func(i int64) {
			lo := int(i) * chunk
			hi := min(lo+chunk, n)
			v := buf[:hi-lo]
			generate(v, d, rand.NewPCG(seed, uint64(i)))
			dtype.Encode(dst[lo*size:hi*size], v)
		}
	})
}

// New is Fill of a new slice of n elements. It panics if n is negative or dtype is not a
// named type.
func New(n int64, dtype problem.DType, d Distribution, seed uint64) []byte {
	dst := make([]byte, n*int64(dtype.Size()))
	Fill(dst, dtype, d, seed)
	return dst
}

func generate(v []float32, d Distribution, pcg *rand.PCG) {
	if d == Uniform {
		for i := range v {
			// The top 24 bits, each value a float32 exactly.
			v[i] = float32(int32(pcg.Uint64()>>40)-1<<23) * 0x1p-23
		}
		return
	}
	r := rand.New(pcg)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
}
