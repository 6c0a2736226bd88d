// Package problem has the types of an attention call: what is computed ([Config], [Shape]),
// the tensors and options of a call ([Args], [BackwardArgs]), the answers about it ([Plan],
// [TierStatus]) and the errors that it may give.
//
// Programs import vkattn/attention, which has every name of this package as an alias. The
// package exists so that the parts of vkattn/attention share these types.
package problem
