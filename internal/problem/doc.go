// Package problem has the types of an attention call: what is computed ([Config], [Shape]),
// the tensors and options of a call ([Args], [BackwardArgs]), the answers about it ([Plan],
// [TierStatus]) and the errors that it may give.
//
// Programs import vkattn/attention, which documents these types. [Config] and the plans are types of their own
// there, with the same fields, and convert. Structs without methods are unnamed here and there, so the two names are of
// one type. Types with methods or hidden fields are aliases there. The parts of the library below share this package.
package problem
