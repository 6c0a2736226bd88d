// Package dropout defines the dropout mask of attention: which slots (row, key) keep their
// weight. The mask is a function of position, seed and offset, so that forward and
// backward, every tier and every tile have the same one and none is stored.
package dropout

// Mask is the dropout mask of a call. The zero value keeps every slot.
//
// The slot of row i and key j, both counted from the start of their sequence, of query
// head h of sequence b takes word j%4 of Philox4x32-10 with the counter
// (j/4, i, b*Hq+h, Offset) and the key Seed, low word first. It keeps its weight if the word is at
// least Threshold.
type Mask struct {
	Seed      uint64
	Offset    uint32
	Threshold uint32 // probability times 2^32
}

// Of returns the mask of a probability, which is at least 0 and below 1.
func Of(probability float32, seed uint64, offset uint32) Mask {
	return Mask{Seed: seed, Offset: offset, Threshold: Threshold(probability)}
}

// Moved returns the mask of a call with a state in memory, which attention.Args.DropoutState documents.
func (m Mask) Moved(seed, offset uint64) Mask {
	offset += uint64(m.Offset)
	m.Seed, m.Offset = m.Seed+seed+offset>>32, uint32(offset)
	return m
}

// Threshold returns the smallest word that keeps a slot: the probability times 2^32, at
// least 1 for a probability above 0.
func Threshold(probability float32) uint32 {
	if !(probability > 0) {
		return 0
	}
	return max(uint32(min(float64(probability), 1-0x1p-32)*0x1p32), 1)
}

// Scale returns the factor of the weights that remain, 1 / (1 - probability).
func Scale(probability float32) float64 { return 1 / (1 - float64(probability)) }

// Keeps reports whether a slot keeps its weight. head is b*Hq+h.
func (m *Mask) Keeps(head, row, key uint32) bool {
	return m.Threshold == 0 || m.Words(head, row, key/4)[key%4] >= m.Threshold
}

// Words returns the words of keys 4*quad to 4*quad+3.
func (m *Mask) Words(head, row, quad uint32) [4]uint32 {
	return Philox([4]uint32{quad, row, head, m.Offset}, [2]uint32{uint32(m.Seed), uint32(m.Seed >> 32)})
}

// Philox is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As
// Easy as 1, 2, 3" (2011).
func Philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	for range 10 {
		a, b := uint64(0xd2511f53)*uint64(counter[0]), uint64(0xcd9e8d57)*uint64(counter[2])
		counter = [4]uint32{uint32(b>>32) ^ counter[1] ^ key[0], uint32(b), uint32(a>>32) ^ counter[3] ^ key[1], uint32(a)}
		key[0] += 0x9e3779b9
		key[1] += 0xbb67ae85
	}
	return counter
}
