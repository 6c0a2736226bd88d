// Package control connects the processes of a group of ranks over TCP, and finds the rank that
// fails. It moves no tensors: that is the work of a transport.
//
// [FromEnvironment] reads the rank and the number of ranks as torchrun, srun and mpirun set
// them. [Join] brings the ranks together: rank 0 listens, the others connect to it. The [Channel]
// that it returns gathers small messages of all ranks, and carries heartbeats. A rank that dies,
// that stops responding, or that others wait for in vain ends the world: every rank then has the
// same error, a [parallel.RankError] that names it.
//
// Rank 0 relays all messages. It sends and expects a heartbeat four times within
// Options.Timeout on every connection. A rank whose process lives but does not call is found
// when another rank's wait ends: that rank reports it, rank 0 asks every rank what it waits
// for, and follows the answers to a rank that waits for nobody.
package control
