// Package merge merges attention states: the O and LSE of the same query rows over disjoint
// sets of keys. Programs import vkattn/attention, which has the names of this package as
// aliases.
package merge
