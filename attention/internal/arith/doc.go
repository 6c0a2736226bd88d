// Package arith is integer arithmetic on sizes: products and sums that report overflow,
// rounding up, the greatest common divisor.
package arith
