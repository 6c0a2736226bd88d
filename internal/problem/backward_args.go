package problem

// The tensors of a backward call, and the results of its float64 reference.

// BackwardArgs is attention.BackwardArgs: the same type, which documents its fields.
type BackwardArgs = struct {
	Args
	DO          Tensor
	DLSE        Tensor
	DQ, DK, DV  Tensor
	DBias       Tensor
	DSinks      Vector
	Accumulate  bool
	PartialKeys bool
}

// Gradients is attention.Gradients: the same type, which documents its fields.
type Gradients = struct {
	DQ     []float64
	DK     []float64
	DV     []float64
	DBias  []float64
	DSinks []float64
}
