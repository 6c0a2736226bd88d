package attention

import (
	"vkattn/internal/dispatch"
	"vkattn/internal/plan"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// A call that differs from the one before it in its buffers alone is the same dispatch with other addresses. The layers
// of a model make such calls, one after the other. An Op keeps the last dispatch and the form of its call. If the next
// call has that form, the Op checks the buffers and computes nothing again.

// repeatable is a dispatch of a form of calls, with the addresses of one of them.
type repeatable struct {
	form     tensors.Form
	pipeline *vk.Pipeline
	groups   [3]uint32
	params   generalParams
	push     int // bytes of params
}

// remember keeps the dispatch of a call that was recorded, if buffers change nothing but addresses in it. It does so
// the second time that a shape comes: the calls of a decode loop of one layer, each of another length, do not pay.
func (op *Op) remember(l *launch, a *Args, all []tensors.Layout) {
	if l.access != AccessAddresses || l.dispatches != 1 || l.n != len(all) || l.options.Split() || l.options.Combined ||
		op.cfg.Dropout != 0 || a.BlockMap != nil || tensors.HasOptions(a, &op.cfg) {
		return
	}
	if sizes := hashOf(&a.Shape); op.plans.sizes.Swap(sizes) != sizes {
		return
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.closed.Load() {
		return
	}
	r := &op.plans.repeat
	r.form.Set(a, all)
	r.pipeline, r.groups, r.params, r.push = l.sent, l.groups, l.params.generalParams, l.pushBytes
}

// hashOf is a hash of a shape.
func hashOf(s *Shape) uint64 {
	h := uint64(0)
	for _, n := range [...]int{s.B, s.Hq, s.Hkv, s.Sq, s.Sk} {
		h = (h ^ uint64(n)) * 0x9e3779b97f4a7c15
	}
	return h
}

// repeats sets r to the dispatch of a call that repeats the one before. It is false for other calls, and for those that
// are wrong.
func (op *Op) repeats(r *repeatable, s *vk.Stream, a *Args) bool {
	if s != nil && plan.MayCUDA(&op.cfg) { // it depends on the kind of memory
		return false
	}
	op.mu.RLock()
	defer op.mu.RUnlock()
	if !op.plans.repeat.form.Accepts(a, &op.cfg, op.dev) {
		return false
	}
	*r = op.plans.repeat
	return true
}

// record records the dispatch of a call that repeats it.
func (r *repeatable) record(c *vk.Commands, a *Args) error {
	if c.Ordered() {
		if err := r.form.Order(c, a); err != nil {
			return err
		}
	}
	var held [5]vk.Resource
	n := r.form.Bind(a, &r.params.addr, held[:])
	return c.Dispatch(r.pipeline, nil, dispatch.ParamBytes(&r.params, r.push), r.groups, held[:n]...)
}
