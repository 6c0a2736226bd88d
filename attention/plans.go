package attention

import (
	"slices"
	"sync/atomic"

	"vkattn/internal/plan"
)

// maxPlans bounds the cached plans of an Op.
const maxPlans = 1024

// planCache has the plans of an Op by request. A step of decoding, with its new Sk, finds its plan as a repeated call
// does: requests that differ in Sk alone are one entry, which knows where Sk changes the plan.
type planCache struct {
	byRequest map[plan.Request]*requestPlans // Sk is 0 in the key
	last      atomic.Pointer[requestPlans]   // of the call before: to compare a request takes a third of the time of its hash
	size      int                            // plans of all entries, at most maxPlans
	sizes     atomic.Uint64                  // of the call before, see Op.remember
	repeat    repeatable                     // of the last call that others may repeat
}

// requestPlans are the plans of requests that differ in Sk alone.
type requestPlans struct {
	request plan.Request // Sk is 0
	ranges  []rangePlans
}

// rangePlans are the plans of a range of Sk.
type rangePlans struct {
	plan.KeyRange
	splitting plan.Splitting
	plans     []*prepared // by the workgroups that split the keys of a row, from 1 on; nil: not yet made
}

// of finds a plan, nil if there is none.
func (c *planCache) of(r plan.Request) *prepared {
	sk := r.Shape.Sk
	r.Shape.Sk = 0
	entry := c.last.Load()
	if entry == nil || entry.request != r {
		if entry = c.byRequest[r]; entry == nil {
			return nil
		}
		c.last.Store(entry)
	}
	r.Shape.Sk = sk
	for i := range entry.ranges {
		if x := &entry.ranges[i]; x.Holds(sk) {
			if n := x.splitting.Of(&r); n <= len(x.plans) && x.plans[n-1] != nil {
				return x.plans[n-1]
			}
		}
	}
	return nil
}

// add keeps a plan. The plans of some other entry make room for it.
func (c *planCache) add(r plan.Request, keys plan.KeyRange, s plan.Splitting, p *prepared) {
	n := s.Of(&r)
	r.Shape.Sk = 0
	if c.size >= maxPlans {
		c.evict()
	}
	if c.byRequest == nil {
		c.byRequest = map[plan.Request]*requestPlans{}
	}
	entry := c.byRequest[r]
	if entry == nil {
		entry = &requestPlans{request: r}
		c.byRequest[r] = entry
	}
	i := slices.IndexFunc(entry.ranges, func(x rangePlans) bool { return x.KeyRange == keys })
	if i < 0 {
		i = len(entry.ranges)
		entry.ranges = append(entry.ranges, rangePlans{KeyRange: keys, splitting: s})
	}
	x := &entry.ranges[i]
	for len(x.plans) < n {
		x.plans = append(x.plans, nil)
	}
	if x.plans[n-1] == nil {
		c.size++
	}
	x.plans[n-1] = p
}

// evict drops an entry, whichever the map gives first.
func (c *planCache) evict() {
	for r, entry := range c.byRequest {
		for i := range entry.ranges {
			for _, p := range entry.ranges[i].plans {
				if p != nil {
					c.size--
				}
			}
		}
		delete(c.byRequest, r)
		c.last.Store(nil)
		return
	}
}

// clear drops all plans.
func (c *planCache) clear() {
	c.byRequest, c.size = nil, 0
	c.repeat = repeatable{}
	c.last.Store(nil)
}
