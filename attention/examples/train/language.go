package main

import "math/rand/v2"

// The alphabet: letters, and what separates halves and lines.
const (
	letters  = 8
	equals   = letters
	newline  = letters + 1
	alphabet = letters + 2
)

const (
	half   = 7          // letters of a half
	line   = 2*half + 2 // characters of a line
	window = 4 * line   // characters of a sequence
)

// language makes text of lines whose second half mirrors the first.
type language struct{ rng *rand.Rand }

func newLanguage(seed uint64) *language { return &language{rand.New(rand.NewPCG(seed, 2))} }

// batch returns n sequences of characters, and the character that follows each of them.
func (l *language) batch(n int) (input, target []int) {
	text := make([]int, window+1)
	for range n {
		for i := range text {
			switch at := i % line; {
			case at < half:
				text[i] = l.rng.IntN(letters)
			case at == half:
				text[i] = equals
			case at < line-1:
				text[i] = text[i-2*(at-half)]
			default:
				text[i] = newline
			}
		}
		input, target = append(input, text[:window]...), append(target, text[1:]...)
	}
	return input, target
}

// mirrors reports whether the character after position i is in a second half.
func mirrors(i int) bool {
	at := (i + 1) % line
	return at > half && at < line-1
}
