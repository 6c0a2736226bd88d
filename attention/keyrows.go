package attention

import "unsafe"

// keyRows converts rows of K or V to a worker's arithmetic type. Query rows mostly
// attend to the same keys, so keyRows caches the rows of the current sequence and key
// head if they fit heldRowsBytes. Each worker has its own.
type keyRows[T float32 | float64] struct {
	read    func(dst []T, b, head, key int)
	dim     int
	rows    []T      // of all keys; of keysAtOnce keys if nothing is cached
	have    []uint32 // by key: the round in which it was read; nil if nothing is cached
	round   uint32
	b, head int
}

const (
	keysAtOnce    = 64       // most rows that one call of run returns
	heldRowsBytes = 16 << 20 // most memory for cached rows
)

// newKeyRows makes keyRows for sequences of up to the given number of keys. reuse
// reports whether any key will be read more than once.
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

// run returns the rows of n consecutive keys, n at most keysAtOnce, valid until the next call.
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

// runOf counts the consecutive keys at the start of a list, at most keysAtOnce.
func runOf(keys []int) (n int) {
	for n = 1; n < min(len(keys), keysAtOnce) && keys[n] == keys[0]+n; n++ {
	}
	return n
}
