package dispatch

// Step is the distance in bytes from the first element of a tensor of one batch, query head
// or KV head to that of the next.
type Step struct{ Batch, Head, KVHead uint64 }

// To returns the distance to a batch and query head. group is the number of query heads of a
// KV head.
func (s Step) To(batch, head, group int) uint64 {
	return s.Batch*uint64(batch) + s.Head*uint64(head) + s.KVHead*uint64(head/group)
}
