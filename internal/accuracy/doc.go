// Package accuracy judges computed attention against the float64 reference.
//
// How large an error is acceptable depends on the storage type, the sizes and
// the data, so a result is not held to a fixed tolerance but to the error of
// [oracle.Low]: plain attention computed in the storage type, the way a program
// without a fused kernel would. This is the rule of the FlashAttention-2 test
// suite (|x - ref| at most twice |low - ref|), with two more against errors
// that a maximum hides. With x the result under test, all three must hold:
//
//  1. max |x - ref| <= 2 max |low - ref| + 1e-5
//  2. mean |x - ref| <= 1.5 mean |low - ref| + 1e-6
//  3. NMSE(x) <= 1e-5 for f16, 1e-4 for bf16, 1e-10 for f32, or 4 NMSE(low)
//     where that is larger; NMSE is sum (x - ref)² / sum ref²
//
// for the whole tensor and again for every block of rows, where a wrong tile
// cannot hide in an average. Gradients get 3 and 1e-4 in rule 1.
//
// NaN and Inf must stand exactly where the reference has them, with the same
// sign of Inf; such elements do not enter the sums. An element where low alone
// is not finite does not enter low's.
//
// Four allowances keep the rules fair to a correct kernel when low is lucky. In
// rule 1 low's error counts as at least half a unit in the last place of the
// stored reference, which no stored result can promise to beat. And below 1024
// elements the factors grow, smoothly, to about 9 for a single element, since
// so few errors of low say little about the error to expect. For f32, low's
// error counts as at least what the rounding of large scores makes likely
// ([oracle.Noise]): 0 but for scores in the thousands. In the 16-bit types it counts
// as at least what the roundings of P, of the result and, for gradients, of dS and O make likely
// ([oracle.RowError]): in rules 2 and 3 in the whole block, in rule 1 as the largest error, √3 standard
// deviations, of an element of one of its rows. In rule 1 it also counts as at least what the rounding of O makes
// likely in an element of a gradient ([oracle.Gradient]).
//
// [Verify] does it all for a call in host memory, on every row or on a sample.
package accuracy
