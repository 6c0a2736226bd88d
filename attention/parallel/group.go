package parallel

import (
	"context"
	"errors"
	"sync"
	"time"

	"vkattn/internal/errs"
)

// DefaultTimeout is how long a rank waits for another one.
const DefaultTimeout = 2 * time.Minute

// GroupOptions are the options of NewGroup.
type GroupOptions struct {
	// Timeout is how long this rank waits for the others at any one point of a call before
	// it ends the call. It must exceed the longest computation of a step, and the time from
	// the first rank's call to the last one's. 0: DefaultTimeout.
	Timeout time.Duration
}

// Group is the membership of this rank in a group of ranks. Its methods, and those of the
// operations that use it, run one at a time. Ranks call them in the same order.
type Group struct {
	t       Transport
	timeout time.Duration

	mu    sync.Mutex
	calls uint64 // agreed on so far
	ended error  // what ended the group
}

// NewGroup makes a group of the ranks of a Transport, which it closes.
func NewGroup(t Transport, o GroupOptions) (*Group, error) {
	switch {
	case t == nil:
		return nil, errs.Invalid("NewGroup: no transport")
	case t.Ranks() < 1 || t.Ranks() > MaxRanks || t.Rank() < 0 || t.Rank() >= t.Ranks():
		return nil, errs.Invalid("NewGroup: rank %d of %d", t.Rank(), t.Ranks())
	case o.Timeout < 0:
		return nil, errs.Invalid("NewGroup: timeout %v", o.Timeout)
	case o.Timeout == 0:
		o.Timeout = DefaultTimeout
	}
	return &Group{t: t, timeout: o.Timeout}, nil
}

// Rank is the number of this rank, 0 to Ranks()-1.
func (g *Group) Rank() int {
	if g == nil || g.t == nil {
		return 0
	}
	return g.t.Rank()
}

// Ranks is the number of ranks.
func (g *Group) Ranks() int {
	if g == nil || g.t == nil {
		return 0
	}
	return g.t.Ranks()
}

func (g *Group) usable() error {
	if g == nil || g.t == nil {
		return errs.Unmade("NewGroup")
	}
	return nil
}

// Barrier returns when all ranks have called it.
func (g *Group) Barrier(ctx context.Context) error {
	if err := g.usable(); err != nil {
		return err
	}
	return g.call(ctx, header{kind: callBarrier}, nil, nil, func(context.Context, [][]byte) error { return nil })
}

// Abort ends the call under way on every rank with an error that names this one.
func (g *Group) Abort(cause error) {
	if g.usable() != nil {
		return
	}
	if cause == nil {
		cause = ErrFailed
	}
	g.t.Abort(&RankError{g.t.Rank(), cause})
}

// Close leaves the group. A call under way ends on every rank.
func (g *Group) Close() error {
	if g == nil || g.t == nil {
		return nil
	}
	return g.t.Close()
}

// call runs one call of this rank: the ranks agree on h, then run computes, with the headers of
// all. invalid is this rank's reason not to take part; the others learn it. An error after the
// ranks have agreed ends the group.
//
// prepare, if given, begins work that needs no other rank and writes no tensor of the caller. It
// runs while the ranks agree, whose messages over the network take a fifth of a millisecond: as long
// as a step of decoding. run does not follow if the ranks disagree.
func (g *Group) call(ctx context.Context, h header, invalid error, prepare func() error,
	run func(ctx context.Context, all [][]byte) error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended != nil {
		return g.ended
	}
	if ctx == nil {
		ctx = context.Background()
	}
	h.number = g.calls
	wait, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	agree, err := g.announce(wait, h.encode(invalid))
	if err != nil {
		return g.end(err)
	}
	var unprepared error
	if prepare != nil && invalid == nil {
		unprepared = prepare()
	}
	all, err := agree(wait)
	if err != nil {
		return g.end(err)
	}
	g.calls++
	switch err := disagreement(all); {
	case invalid != nil:
		return invalid // all ranks know it
	case err != nil:
		return err
	case unprepared != nil:
		return g.end(unprepared)
	}
	if err := run(ctx, all); err != nil {
		return g.end(err)
	}
	return nil
}

// announce starts to gather the headers of all ranks. Where ranks share memory, this rank writes its header there, and
// looks for those of the others when it waits: no other goroutine and no message of the network delays its work.
func (g *Group) announce(ctx context.Context, mine []byte) (wait func(context.Context) ([][]byte, error), err error) {
	if near := g.near(int64(headerBytes + maxReason)); near != nil {
		return near.Announce(mine)
	}
	var all [][]byte
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		all, failed = g.t.Gather(ctx, mine)
	}()
	return func(context.Context) ([][]byte, error) { <-done; return all, failed }, nil
}

// end closes the group to further calls, on every rank.
func (g *Group) end(err error) error {
	var named *RankError
	if !errors.As(err, &named) {
		err = &RankError{g.t.Rank(), err}
		named = err.(*RankError)
	}
	g.t.Abort(named)
	g.ended = err
	return err
}

// exchange runs transfers to their end.
func (g *Group) exchange(ctx context.Context, sends, receives []Transfer) error {
	p, err := g.t.Exchange(sends, receives)
	if err != nil {
		return err
	}
	return g.wait(ctx, p)
}

// wait waits for transfers, at most for the timeout.
func (g *Group) wait(ctx context.Context, p Pending) error {
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	return p.Wait(ctx)
}

// near is the Transport's gather of host memory for that many bytes of a rank; nil: it has none.
func (g *Group) near(bytes int64) Near {
	if n, ok := g.t.(Near); ok && bytes <= n.NearBytes() {
		return n
	}
	return nil
}

// gatherNear gathers within the timeout.
func (g *Group) gatherNear(ctx context.Context, n Near, parts [][][]byte) error {
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	return n.GatherNear(ctx, parts)
}
