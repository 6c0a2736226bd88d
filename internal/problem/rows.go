package problem

// Sequence is the range of rows and the range of keys of one sequence.
type Sequence struct {
	Row, Rows int // first row in Q and O (0 unless packed by Varlen.CuQ) and number of rows
	Key, Keys int // first row in K and V (0 unless packed by Varlen.CuK) and number of keys
}

// Rows is attention.Rows: the same type, which documents its fields.
type Rows = struct {
	B, H int
	Rows []int
}
