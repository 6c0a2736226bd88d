// Package merge merges attention states: the O and LSE of the same query rows over disjoint
// sets of keys.
package merge
