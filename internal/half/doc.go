// Package half converts between float32 and the two 16-bit floating-point
// types: IEEE 754 binary16 (f16) and bfloat16 (bf16).
//
// Narrowing rounds to nearest, ties to even, gives subnormals and overflows to
// Inf. Widening is exact. A NaN stays a NaN of the same sign, made quiet, with
// as much of its payload as fits. Bytes are little-endian.
package half
