package problem

// Sequence is the range of rows and the range of keys of one sequence.
type Sequence struct {
	Row, Rows int // first row in Q and O (0 unless packed by Varlen.CuQ) and number of rows
	Key, Keys int // first row in K and V (0 unless packed by Varlen.CuK) and number of keys
}

// Rows names some query rows of one (batch, query head), in any order.
type Rows struct {
	B, H int
	Rows []int
}
