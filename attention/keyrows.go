package attention

import "unsafe"

// keyRows hands out rows of K or V as a worker computes with them. Rows of queries
// mostly attend to the same keys, so it keeps what it has read of a sequence and key
// head, as long as that takes little memory; each worker has its own.
type keyRows[T float32 | float64] struct {
	read    func(dst []T, b, head, key int)
	dim     int
	rows    []T      // of all keys, or of keysAtOnce where that is too much
	have    []uint32 // by key: the round it was read in; nil where nothing is kept
	round   uint32
	b, head int
}

const (
	keysAtOnce    = 64       // most rows that a call of run gives
	heldRowsBytes = 16 << 20 // most memory for the rows of a sequence
)

// newKeyRows is for sequences of up to so many keys; reuse says whether any will be
// asked for twice.
func newKeyRows[T float32 | float64](keys, dim int, reuse bool, read func(dst []T, b, head, key int)) *keyRows[T] {
	k := &keyRows[T]{read: read, dim: dim, round: 1}
	var element T
	if size, ok := product(keys, dim, int(unsafe.Sizeof(element))); reuse && ok && size <= heldRowsBytes {
		k.have = make([]uint32, keys)
	} else {
		keys = min(keys, keysAtOnce)
	}
	k.rows = make([]T, keys*dim)
	return k
}

// run is the rows of n keys from one on, at most keysAtOnce, good until the next call.
func (k *keyRows[T]) run(b, head, key, n int) []T {
	if k.have == nil {
		for i := range n {
			k.read(k.rows[i*k.dim:][:k.dim], b, head, key+i)
		}
		return k.rows[:n*k.dim]
	}
	if b != k.b || head != k.head {
		k.b, k.head = b, head
		k.round++
	}
	for i := key; i < key+n; i++ {
		if k.have[i] != k.round {
			k.read(k.rows[i*k.dim:][:k.dim], b, head, i)
			k.have[i] = k.round
		}
	}
	return k.rows[key*k.dim:][:n*k.dim]
}

// runOf is how many keys of a list, from the first on, follow each other, at most
// keysAtOnce.
func runOf(keys []int) (n int) {
	for n = 1; n < min(len(keys), keysAtOnce) && keys[n] == keys[0]+n; n++ {
	}
	return n
}
