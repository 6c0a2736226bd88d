package tensors

import (
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Uses is the memory that a call reads and writes, for vk.Commands.Order. It holds what the largest call has, so that a
// call keeps it on its stack.
type Uses struct {
	reads  [BackwardCount + int(OptionTensors)]vk.BufferRange
	writes [BackwardCount]vk.BufferRange
	nr, nw int
}

// Read adds a tensor that the call reads.
func (u *Uses) Read(t *Layout) { u.nr += t.use(&u.reads[u.nr]) }

// Write adds a tensor that the call writes.
func (u *Uses) Write(t *Layout) { u.nw += t.use(&u.writes[u.nw]) }

// Options adds the memory of the options of a call, which has been checked.
func (u *Uses) Options(cfg *problem.Config, a *problem.Args) {
	if !HasOptions(a, cfg) {
		return
	}
	var t Layout
	_ = EachOption(cfg, a, &t, func(which OptionTensor) error {
		if which == MaxLogits {
			u.Write(&t)
		} else {
			u.Read(&t)
		}
		return nil
	})
}

// Order orders the commands recorded next by what was added.
func (u *Uses) Order(c *vk.Commands) error { return c.Order(u.reads[:u.nr], u.writes[:u.nw]) }

// use sets r to the memory of the tensor and returns 1, or 0 if it has none.
func (l *Layout) use(r *vk.BufferRange) int {
	size := l.SpanBytes()
	if size == 0 || l.Tensor.Buffer == nil {
		return 0
	}
	*r = vk.BufferRange{Buffer: l.Tensor.Buffer, Offset: uint64(l.Tensor.Offset * l.Size), Size: size}
	return 1
}
