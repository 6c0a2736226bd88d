package par

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
