package problem

// The tensors of a backward call, and the results of its float64 reference.

// BackwardArgs is attention.BackwardArgs: the same type, which documents its fields.
type BackwardArgs = struct {
	Args
	DO, DLSE, DQ, DK, DV, DBias Tensor
	DSinks                      Vector
	DTables                     []Table
	Accumulate, PartialKeys     bool
}

// Gradients is attention.Gradients: the same type, which documents its fields.
type Gradients = struct {
	DQ, DK, DV, DBias, DSinks []float64
	DTables                   [][]float64
}
