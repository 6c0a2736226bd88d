// Package verify runs every implementation on a machine on the same problem and compares
// whole results with a reference and with one another.
//
// The reference is the CUDA validation kernel if the device has CUDA: a plain kernel with
// float32 arithmetic. It gets Q, K and V widened to float32, and its O is not rounded to
// the storage type. Without CUDA the reference is float64 attention on the CPU, of as many
// rows as take a second or two. On the other rows the implementations must agree with one
// another.
//
// # Rules
//
//   - The rows that the CPU computes in float64, all rows of a small problem, obey the
//     three rules of package accuracy: their error is at most a multiple of the error of
//     low, plain attention in the storage type. The CUDA validation kernel obeys the rules
//     of float32.
//   - Every element of O and LSE is compared with the CUDA validation kernel by the same
//     rules. The error of low is known on the sampled rows; [accuracy.Estimate] extends it
//     to the others, for each block of 64 rows and for the tensor. The error of the
//     validation kernel on the sampled rows is added. Blocks are judged only if rows were
//     sampled: otherwise the first rule has judged every block.
//   - Two implementations may differ by twice the limit of one.
//   - NaN and Inf are where the reference has them and nowhere else. Rows with nothing to
//     attend to are exactly 0 and have LSE = -Inf.
//   - All runs of an implementation give the same bits.
//   - In the conformance table kernels write only O and LSE, and keys that a row does not
//     attend to change no bit of it, whatever their values.
package verify
