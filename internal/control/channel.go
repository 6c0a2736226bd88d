package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"vkattn/attention/parallel"
	"vkattn/internal/errs"
)

// Channel is this rank's side channel to the others, which Join makes. One goroutine calls Gather; the other methods
// may be called from any.
type Channel struct {
	rank, ranks int
	grace       time.Duration
	hub         *hub // of rank 0; nil on the others

	link *link
	ctx  context.Context // ends with the world, which end ends
	end  context.CancelFunc

	mu       sync.Mutex
	cause    *parallel.RankError
	mine     *parallel.RankError // passed to Abort
	left     map[int]*state      // ranks that have left
	closed   bool
	posted   map[int]posted
	awaited  []awaited
	gathers  bool
	gathered chan [][]byte // of capacity 1

	finished chan struct{} // closed when Close is through
}

func newChannel(w *World, o *Options) *Channel {
	ctx, end := context.WithCancel(context.Background())
	return &Channel{rank: w.Rank, ranks: w.Ranks, grace: o.grace(), ctx: ctx, end: end, left: map[int]*state{}, posted: map[int]posted{},
		gathered: make(chan [][]byte, 1), finished: make(chan struct{})}
}

// Rank is this rank.
func (c *Channel) Rank() int { return c.rank }

// Ranks is the number of ranks.
func (c *Channel) Ranks() int { return c.ranks }

// Context ends when the world has ended; Err then says why.
func (c *Channel) Context() context.Context { return c.ctx }

// Ended is closed when the world has ended.
func (c *Channel) Ended() <-chan struct{} { return c.ctx.Done() }

// Err is what ended the world, the same on every rank; nil: nothing yet.
func (c *Channel) Err() *parallel.RankError {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// LocalAddress is the address of this host on its connection to rank 0, without a port. It is ""
// on rank 0, whose address the other ranks have.
func (c *Channel) LocalAddress() string { return hostOf(c.link.conn.LocalAddr()) }

// RootAddress is the address of rank 0's host on this rank's connection to it, without a port: that
// of the World's Addresses which answered. It is "" on rank 0.
func (c *Channel) RootAddress() string { return hostOf(c.link.conn.RemoteAddr()) }

// hostOf is a TCP address without its port; "" for other networks.
func hostOf(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return ""
	}
	return (&net.IPAddr{IP: tcp.IP, Zone: tcp.Zone}).String()
}

// handle handles a frame of rank 0.
func (c *Channel) handle(kind frameKind, payload []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ok := true
	switch kind {
	case frameGathered:
		var parts [][]byte
		if parts, ok = decodeParts(payload, c.ranks); ok && c.gathers {
			c.gathers = false
			c.gathered <- parts
		}
	case frameQuery:
		c.link.send(frameState, c.stateLocked().encode())
	case frameAbort:
		var cause *parallel.RankError
		if cause, ok = decodeCause(payload, c.ranks); ok {
			if c.mine != nil && c.mine.Rank == cause.Rank && textOf(c.mine) == cause.Err.Error() {
				cause = c.mine // matches what the caller passed
			}
			c.endLocked(cause)
		}
	case frameLeft:
		var s *state
		if s, ok = decodeState(payload, c.ranks); ok {
			c.left[s.Rank] = s
		}
	default:
		ok = false
	}
	if !ok {
		c.endLocked(&parallel.RankError{Rank: 0, Err: fmt.Errorf("%w: frame %d is not expected", parallel.ErrMismatch, kind)})
	}
}

// gone handles the end of the connection to rank 0.
func (c *Channel) gone(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed: // rank 0 has let this rank go
	case c.left[0] != nil && !c.gathers: // it closed its Channel; what needs it will end
	case c.left[0] != nil:
		c.endLocked(&parallel.RankError{Rank: 0, Err: parallel.ErrLeft})
	default:
		c.endLocked(lost(0, err))
	}
}

func (c *Channel) endLocked(cause *parallel.RankError) {
	if c.cause == nil {
		c.cause = cause
		c.end()
	}
}

func (c *Channel) stateLocked() *state {
	s := &state{Posted: c.posted, Awaited: c.awaited}
	switch {
	case c.gathers:
		s.Activity = gathers
	case len(c.awaited) > 0:
		s.Activity = waits
	}
	return s
}

// beginLocked reports why an operation cannot start.
func (c *Channel) beginLocked() error {
	if c.left[0] != nil && !c.closed { // no operation works without rank 0
		c.endLocked(&parallel.RankError{Rank: 0, Err: parallel.ErrLeft})
	}
	return c.overLocked()
}

// overLocked is what has ended the world, or else that this rank has left it; nil: neither.
func (c *Channel) overLocked() error {
	switch {
	case c.cause != nil:
		return c.cause
	case c.closed:
		return &parallel.RankError{Rank: c.rank, Err: parallel.ErrLeft}
	}
	return nil
}

// Gather gives every rank the bytes of all ranks, in the order of ranks; see
// [parallel.Transport]. A rank has at most 64 KiB.
func (c *Channel) Gather(ctx context.Context, mine []byte) ([][]byte, error) {
	if len(mine) > maxPart {
		return nil, errs.Invalid("control: a Gather of %d bytes, at most %d", len(mine), maxPart)
	}
	if ctx == nil {
		ctx = context.Background()
	}
	c.mu.Lock()
	err := c.beginLocked()
	if err == nil && c.gathers {
		err = errs.Invalid("control: two calls of Gather at once")
	}
	if err != nil {
		c.mu.Unlock()
		return nil, err
	}
	c.gathers = true
	c.link.send(frameGather, mine)
	c.mu.Unlock()
	select {
	case parts := <-c.gathered:
		return parts, nil
	case <-c.Ended():
		return nil, c.Err()
	case <-ctx.Done():
		select {
		case parts := <-c.gathered: // all ranks have theirs
			return parts, nil
		default:
			return nil, c.TimedOut(ctx, 0)
		}
	}
}

// Messages are the sends and receives of an Exchange.
type Messages struct {
	c    *Channel
	list []awaited
}

// Post counts messages that this rank gives to its transport: a send to each peer of sends and
// a receive from each of receives, in order.
func (c *Channel) Post(sends, receives []int) (*Messages, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.beginLocked(); err != nil {
		return nil, err
	}
	for _, peer := range slices.Concat(sends, receives) {
		if peer < 0 || peer >= c.ranks || peer == c.rank {
			return nil, errs.Invalid("control: a message of rank %d with rank %d of %d", c.rank, peer, c.ranks)
		}
	}
	m := &Messages{c: c}
	for i, peers := range [2][]int{sends, receives} {
		for _, peer := range peers {
			p := c.posted[peer]
			if i == 0 {
				m.list = append(m.list, awaited{peer, true, p.Sends})
				p.Sends++
			} else {
				m.list = append(m.list, awaited{peer, false, p.Receives})
				p.Receives++
			}
			c.posted[peer] = p
		}
	}
	return m, nil
}

// Await says that this rank waits for the messages, until Done. After Close it ends the world for this
// rank: nothing would end the wait.
func (m *Messages) Await() {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	m.c.awaited = m.list
	if m.c.closed {
		m.c.endLocked(&parallel.RankError{Rank: m.c.rank, Err: parallel.ErrLeft})
	}
}

// Done says that this rank no longer waits.
func (m *Messages) Done() {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	m.c.awaited = nil
}

// Peer is a rank of the messages; this rank if there are none.
func (m *Messages) Peer() int {
	if len(m.list) == 0 {
		return m.c.rank
	}
	return m.list[len(m.list)-1].Peer
}

// Missing is the error of a peer that has left without posting its side of a message; nil: none.
func (m *Messages) Missing() *parallel.RankError {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	for i := range m.list {
		a := &m.list[i]
		if s := m.c.left[a.Peer]; s != nil && a.needs(m.c.rank, s) {
			return &parallel.RankError{Rank: a.Peer, Err: parallel.ErrLeft}
		}
	}
	return nil
}

// TimedOut ends the world after ctx has ended this rank's wait for a peer, and returns the
// cause. It names the rank that holds the others up; a canceled context names this rank.
func (c *Channel) TimedOut(ctx context.Context, peer int) error {
	if peer < 0 || peer >= c.ranks {
		return errs.Invalid("control: rank %d of %d", peer, c.ranks)
	}
	c.mu.Lock()
	over := c.overLocked() // rank 0 no longer answers one that has left
	c.mu.Unlock()
	if over != nil {
		return over
	}
	if ctx != nil && errors.Is(ctx.Err(), context.Canceled) {
		canceled := &parallel.RankError{Rank: c.rank, Err: context.Canceled}
		c.Abort(canceled)
		return c.verdict(0, canceled)
	}
	c.link.send(frameReport, encodeCause(&parallel.RankError{Rank: peer, Err: parallel.ErrTimeout}))
	return c.verdict(3*c.grace, &parallel.RankError{Rank: 0, Err: parallel.ErrTimeout})
}

// Abort ends the world on all ranks with cause, unless another cause came first.
func (c *Channel) Abort(cause *parallel.RankError) {
	if cause == nil || cause.Err == nil || cause.Rank < 0 || cause.Rank >= c.ranks {
		cause = &parallel.RankError{Rank: c.rank, Err: parallel.ErrFailed}
	}
	c.mu.Lock()
	if c.mine == nil {
		c.mine = cause
	}
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return
	}
	c.link.send(frameAbort, encodeCause(cause))
	_ = c.verdict(c.grace, cause)
}

// verdict waits until rank 0 has ended the world. Without an answer this rank ends alone.
func (c *Channel) verdict(within time.Duration, otherwise *parallel.RankError) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-c.Ended():
	case <-timer.C:
		c.mu.Lock()
		c.endLocked(otherwise)
		c.mu.Unlock()
	}
	return c.Err()
}

// Close leaves the world. Operations of other ranks that need this one end with an error that
// matches parallel.ErrLeft. When rank 0 has left, no rank can start an operation. Close is
// idempotent, and returns when everything that the Channel started has ended.
func (c *Channel) Close() error {
	c.mu.Lock()
	again := c.closed
	if !again {
		c.closed = true
		c.link.send(frameBye, c.stateLocked().encode())
		if c.gathers || len(c.awaited) > 0 { // an operation of this rank is under way
			c.endLocked(&parallel.RankError{Rank: c.rank, Err: parallel.ErrLeft})
		}
	}
	c.mu.Unlock()
	if again {
		<-c.finished
		return nil
	}
	c.link.finish(c.grace)
	if c.hub != nil {
		c.hub.close(c.grace)
	}
	close(c.finished)
	return nil
}
