package processes

import (
	"context"
	"sync"
	"time"

	"vkattn/attention/parallel"
	"vkattn/internal/control"
)

// member is what the transports between processes have in common.
type member struct {
	*shared // nil: not all ranks are on one host
	ch      *control.Channel

	ctx     context.Context // ends with the world, or as this rank leaves
	leave   context.CancelFunc
	stopped chan struct{} // closed when nothing of the transport runs any more
}

func newMember(ch *control.Channel) member {
	ctx, leave := context.WithCancel(ch.Context())
	return member{ch: ch, ctx: ctx, leave: leave, stopped: make(chan struct{})}
}

func (m *member) Rank() int  { return m.ch.Rank() }
func (m *member) Ranks() int { return m.ch.Ranks() }

func (m *member) Gather(ctx context.Context, mine []byte) ([][]byte, error) {
	return m.ch.Gather(ctx, mine)
}

func (m *member) Abort(cause *parallel.RankError) { m.ch.Abort(cause) }

// Close leaves the world. It returns when nothing of the transport runs any more, or after a few seconds.
func (m *member) Close() error {
	err := m.ch.Close()
	m.leave()
	<-m.stopped
	m.shared.end()
	return err
}

// queue holds work for another goroutine in its order, without a bound: an Exchange waits for no rank.
type queue[T any] struct {
	mu   sync.Mutex
	list []*T
	wake chan struct{} // of capacity 1
}

func newQueue[T any]() *queue[T] { return &queue[T]{wake: make(chan struct{}, 1)} }

func (q *queue[T]) add(x *T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = append(q.list, x)
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// next waits for work; nil: stop was closed.
func (q *queue[T]) next(stop <-chan struct{}) *T {
	for {
		q.mu.Lock()
		if len(q.list) > 0 {
			x := q.list[0]
			q.list = q.list[1:]
			q.mu.Unlock()
			return x
		}
		q.mu.Unlock()
		select {
		case <-q.wake:
		case <-stop:
			return nil
		}
	}
}

// peersOf lists the ranks of transfers.
func peersOf(list []parallel.Transfer) (peers []int) {
	for i := range list {
		peers = append(peers, list[i].Peer)
	}
	return peers
}

// grace is how long the side channel has to name the rank behind an error of a transport. Tests
// change it.
var grace = 2 * time.Second

// missingInterval is the time between two looks for a peer that has left.
const missingInterval = 5 * time.Millisecond

// left is the error of a rank that has left, or what ended the world before.
func left(ch *control.Channel) error {
	if cause := ch.Err(); cause != nil {
		return cause
	}
	return &parallel.RankError{Rank: ch.Rank(), Err: parallel.ErrLeft}
}

// over reports why a wait for messages ends, to a loop that polls; nil: it goes on.
func over(ctx context.Context, ch *control.Channel, m *control.Messages, peer int) error {
	select {
	case <-ch.Ended():
		return ch.Err()
	case <-ctx.Done():
		return ch.TimedOut(ctx, peer)
	default:
	}
	if cause := m.Missing(); cause != nil {
		ch.Abort(cause)
		return left(ch)
	}
	return nil
}
