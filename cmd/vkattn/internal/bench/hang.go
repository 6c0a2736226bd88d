package bench

import (
	"context"
	"fmt"
	"time"

	"vkattn/vk"
)

// hangTime is how much longer than a row's Timeout one wait for the device may take. A device that takes longer
// is taken to hang.
const hangTime = 3 * time.Second

// Limit bounds one wait for the device; 0: no bound, as without Timeout.
func (t *Timing) Limit() time.Duration {
	if t.Timeout == 0 {
		return 0
	}
	return t.Timeout + hangTime
}

// within calls f, which waits for the device, with the Limit. The error of a device that hangs matches
// vk.ErrTimeout.
func (g *group) within(ctx context.Context, f func(context.Context) error) error {
	limit := g.Limit()
	if limit == 0 {
		return f(ctx)
	}
	inner, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := f(inner)
	if err != nil && ctx.Err() == nil && inner.Err() != nil {
		return &vk.Error{Op: "wait", Detail: fmt.Sprintf("the device hangs: it has finished no run for %v, the timeout of a row and %v", limit, hangTime), Err: vk.ErrTimeout}
	}
	return err
}

// runs times n runs of a candidate, within the limit if a device has them.
func (g *group) runs(ctx context.Context, c *candidate, n int) (times []time.Duration, err error) {
	if c.clock == nil {
		return c.run(ctx, n)
	}
	err = g.within(ctx, func(ctx context.Context) error {
		times, err = c.run(ctx, n)
		return err
	})
	return times, err
}
