// Package cases has the problems that every implementation must compute correctly: the
// tables of shapes, masks, layouts, data and options for all tiers and storage types, the
// memory of each problem, and the judgement of its result.
//
// A [Case] says what is computed. A [Problem] is a case in memory that is otherwise full
// of NaN. A [Truth] judges what a call left there by the rules of package accuracy; a
// [Formula] judges extreme numbers. The tests and "vkattn verify" use the same tables.
package cases
