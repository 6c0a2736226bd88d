// Package parallel computes exact attention over several ranks: devices or processes that
// hold parts of one sequence. Results are those of one device within the rules of package
// accuracy, and the same bits for the same ranks, mode and order, whatever arrives first.
//
// A [Transport] moves memory between ranks. [InProcess] makes one for ranks of one process.
// Each rank computes attention and its gradients on a device of its own or on the CPU tier.
// A [Group] is a rank's membership; an [Op] computes attention for one Config, every rank
// calling the same methods in the same order with its own part of the tensors:
//
//	ring       K and V travel around the ranks, or are gathered for some heads at a time
//	ulysses    all-to-all between heads and sequence; each rank computes some heads whole
//	allgather  every rank receives all of K and V
//	2d         ulysses among the ranks of a host, ring across hosts
//
// docs/several-gpus.md says which mode suits when, docs/parallel.md what each one sends and
// how long that takes.
//
// # Order of the sequence
//
// A [Split] says which rows and keys each rank holds: [Contiguous] chunks, [Zigzag] pairs
// of an early and a late chunk, which gives every rank the same work under a causal mask, or
// [Striped] tokens in turn. Config.Order chooses one, the Plan tells it; Problem may give another one. A mode that would need more than 1024 calls of attention
// for it, over the keys of a step or of a gather, refuses it with a [*ModeError] that matches [attention.ErrUnsupported].
//
// # Decoding
//
// A KV cache that one rank cannot hold is sharded by tokens ([Shard]). [Op.Append] writes new
// tokens into the caches of their owners, [Op.Decode] attends to the tokens of all ranks.
//
// ExampleOp_Forward, in attention/parallel/example_test.go, computes over two ranks of a process.
//
// # Failures
//
// Ranks first compare what they were asked for. If one disagrees, every rank returns an
// error that names it and matches [ErrMismatch], and the group stays usable. If a rank
// fails, leaves or does not respond within the timeout, the call ends on all ranks with a
// [*RankError] that names it. The group is then closed to further calls. Tensors stay the
// caller's; outputs of a failed call hold anything.
package parallel
