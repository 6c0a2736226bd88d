// Package cases has the problems that every implementation has to get right: one
// table of shapes, masks, layouts and data for all tiers and storage types, how
// each lies in memory, and what is right about its result.
//
// A [Case] says what is computed, a [Problem] has it in memory that is otherwise
// full of NaN, and a [Truth] judges what a call left there by the rules of
// package accuracy. The tests and "vkattn verify" run the same table.
package cases
