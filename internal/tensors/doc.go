// Package tensors knows where the tensors of a call lie: their extents and layouts in
// memory, whether they are in bounds and disjoint, the sequences of a batch, and the rows of
// quantized K and V. Functions without an error take arguments that CheckArgs, or the check
// of the operation, has accepted.
package tensors
