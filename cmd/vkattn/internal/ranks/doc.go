// Package ranks verifies and times attention over several processes for vkattn: the same sweep in
// each, one device for each, and rank 0 prints. Every function that takes a *Session is called by
// all ranks, with the same arguments.
package ranks
