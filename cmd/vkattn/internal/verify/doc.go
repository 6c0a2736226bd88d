// Package verify has every implementation on a machine compute the same problem
// and compares the results, whole, with a reference and with one another.
//
// The reference is the CUDA validation kernel where there is one: a plain kernel
// with float32 arithmetic, given Q, K and V widened to float32, whose O is not
// rounded to the storage type. Elsewhere it is the float64 reference of the CPU,
// of as many rows as it can do in a second or two; what lies beyond them is held
// to the agreement of the implementations.
//
// # What is right
//
//   - On the rows that the CPU computes, all of a small problem, every
//     implementation obeys the three rules of package accuracy: its error against
//     float64 is measured by that of low, plain attention in the storage type. The
//     reference does too, by the rules of float32.
//   - Against a reference of the GPU every element of O and LSE is compared. What is
//     allowed is the same rules once more: low is known on the sampled rows and
//     extended to the others by [accuracy.Estimate], for each block of 64 rows and
//     for the tensor; and what the reference was off by on the sampled rows is added.
//     Blocks are judged where the inputs are random and rows were sampled; where low
//     is known of every row the rules have been applied to every block already.
//   - Two implementations may differ by twice what one may be off by.
//   - NaN and Inf stand where the reference has them and nowhere else, and rows with
//     nothing to attend to are exactly 0, with an LSE of -Inf.
//   - Every further run gives the same bits.
//   - For the conformance table besides: nothing but O and LSE is written, and
//     keys that a row does not attend to change no bit of it, whatever they hold.
package verify
