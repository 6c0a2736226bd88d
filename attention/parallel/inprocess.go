package parallel

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"vkattn/internal/errs"
	"vkattn/vk"
)

// MaxRanks bounds the ranks of a group.
const MaxRanks = 1024

// InProcess makes the Transports of n ranks of this process, element i for rank i. They copy
// between host memory and host-visible buffers; device work on these buffers has finished
// when Exchange is called.
func InProcess(n int) ([]Transport, error) {
	if n < 1 || n > MaxRanks {
		return nil, errs.Invalid("parallel: %d ranks, want 1 to %d", n, MaxRanks)
	}
	w := &world{ended: make(chan struct{}), ranks: make([]rankState, n), queues: map[[2]int][]*message{}}
	list := make([]Transport, n)
	for i := range list {
		list[i] = &inProcess{world: w, rank: i}
	}
	return list, nil
}

// world is what the ranks of a process share.
type world struct {
	mu     sync.Mutex
	cause  *RankError    // the first error
	ended  chan struct{} // closed with cause
	ranks  []rankState
	queues map[[2]int][]*message // from one rank to another, of which that rank, or the other one, has posted its side alone
	gather *gathering            // the one that is not complete
}

// rankState is what other ranks know of a rank.
type rankState struct {
	left  bool
	needs func(r int) bool // whether it waits for a rank to act, called while the world is locked; nil: it computes
}

// message is one side of a transfer.
type message struct {
	bytes   []byte
	peer    int
	send    bool
	copying bool          // both sides are there
	done    chan struct{} // closed when the bytes are copied
}

// gathering is a Gather under way.
type gathering struct {
	parts   [][]byte
	missing int
	done    chan struct{}
}

// inProcess is a rank's Transport.
type inProcess struct {
	*world
	rank int
}

func (t *inProcess) Rank() int  { return t.rank }
func (t *inProcess) Ranks() int { return len(t.ranks) }

// Buffers are host-visible: the processor copies them.
func (t *inProcess) Buffers() vk.BufferOptions { return vk.BufferOptions{Memory: vk.Readback} }

// endLocked ends all operations with cause.
func (w *world) endLocked(cause *RankError) {
	if w.cause == nil {
		w.cause = cause
		close(w.ended)
	}
}

func (t *inProcess) Abort(cause *RankError) {
	if cause == nil {
		cause = &RankError{t.rank, ErrFailed}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endLocked(cause)
}

func (t *inProcess) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if me := &t.ranks[t.rank]; !me.left {
		me.left = true
		ends := me.needs != nil // a call of this rank is under way
		for _, other := range t.ranks {
			ends = ends || other.needs != nil && other.needs(t.rank)
		}
		if ends {
			t.endLocked(&RankError{t.rank, ErrLeft})
		}
	}
	return nil
}

// wait waits for some events while this rank needs others. It returns what has ended the world before.
func (t *inProcess) wait(ctx context.Context, needs func(r int) bool, events ...<-chan struct{}) error {
	if ctx == nil {
		ctx = context.Background()
	}
	t.mu.Lock()
	me := &t.ranks[t.rank]
	me.needs = needs
	if me.left {
		t.endLocked(&RankError{t.rank, ErrLeft})
	}
	for r := range t.ranks {
		if t.ranks[r].left && needs(r) {
			t.endLocked(&RankError{r, ErrLeft})
		}
	}
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		me.needs = nil
		t.mu.Unlock()
	}()
	for _, event := range events {
		for waiting := true; waiting; {
			select {
			case <-event:
				waiting = false
			case <-ctx.Done():
				t.timedOut(ctx, needs)
				ctx = context.Background() // the world has ended, or what is left needs no other rank
			case <-t.ended:
				select {
				case <-event:
					waiting = false
				default:
					return t.cause // as ended is closed it stays
				}
			}
		}
	}
	return nil
}

// timedOut ends the world after this rank has waited until its context ended.
func (t *inProcess) timedOut(ctx context.Context, needs func(r int) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() == context.Canceled {
		t.endLocked(&RankError{t.rank, context.Canceled})
		return
	}
	for r := range t.ranks {
		if needs(r) {
			t.endLocked(&RankError{t.culpritLocked(r), ErrTimeout})
			return
		}
	}
}

// culpritLocked follows the ranks that wait for one another from this one on, to one that waits for nobody. It is
// peer if there is none.
func (t *inProcess) culpritLocked(peer int) int {
	seen := make([]bool, len(t.ranks))
	seen[t.rank] = true
	for queue := []int{t.rank}; len(queue) > 0; queue = queue[1:] {
		needs := t.ranks[queue[0]].needs
		if needs == nil {
			return queue[0]
		}
		for r := range t.ranks {
			if !seen[r] && needs(r) {
				seen[r], queue = true, append(queue, r)
			}
		}
	}
	return peer
}

// beginLocked reports why this rank cannot start an operation.
func (t *inProcess) beginLocked() error {
	switch {
	case t.cause != nil:
		return t.cause
	case t.ranks[t.rank].left:
		return &RankError{t.rank, ErrLeft}
	}
	return nil
}

func (t *inProcess) Exchange(sends, receives []Transfer) (Pending, error) {
	if err := CheckTransfers(t.rank, len(t.ranks), sends, receives); err != nil {
		return nil, err
	}
	n := len(sends) + len(receives)
	p := &exchange{t: t, list: make([]*message, 0, n), done: make([]<-chan struct{}, 0, n)}
	for k, list := range [2][]Transfer{sends, receives} {
		for i := range list {
			b, err := list[i].OnHost()
			if err != nil {
				return nil, err
			}
			m := &message{bytes: b, peer: list[i].Peer, send: k == 0, done: make(chan struct{})}
			p.list, p.done = append(p.list, m), append(p.done, m.done)
		}
	}
	copies, err := p.post()
	for _, c := range copies { // also after an error: the other rank may wait for them
		copy(c.to.bytes, c.from.bytes)
		close(c.to.done)
		close(c.from.done)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// nearBytes is the bound of GatherNear within a process.
const nearBytes = 1 << 20

// NearBytes implements Near.
func (t *inProcess) NearBytes() int64 { return nearBytes }

// GatherNear implements Near by an Exchange.
func (t *inProcess) GatherNear(ctx context.Context, parts [][][]byte) error {
	if _, err := CheckNear(len(t.ranks), nearBytes, parts); err != nil {
		return err
	}
	var sends, receives []Transfer
	for r := range parts {
		if r == t.rank {
			continue
		}
		for i, mine := range parts[t.rank] {
			sends = append(sends, Transfer{r, Memory{Host: mine, Bytes: int64(len(mine))}})
			receives = append(receives, Transfer{r, Memory{Host: parts[r][i], Bytes: int64(len(parts[r][i]))}})
		}
	}
	p, err := t.Exchange(sends, receives)
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// messageCopy is a transfer of which both sides are there.
type messageCopy struct{ to, from *message }

// post adds the messages of an Exchange, and returns the transfers that they complete. If it returns an
// error no message is there, or the world has ended.
func (p *exchange) post() (copies []messageCopy, err error) {
	t := p.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.beginLocked(); err != nil {
		return nil, err
	}
	for _, m := range p.list {
		other, err := t.postLocked(m)
		switch {
		case err != nil:
			return copies, err
		case other == nil:
		case m.send:
			copies = append(copies, messageCopy{other, m})
		default:
			copies = append(copies, messageCopy{m, other})
		}
	}
	return copies, nil
}

// postLocked adds a side of a transfer, and returns the other side if it is there. An error ends the
// world.
func (t *inProcess) postLocked(m *message) (other *message, err error) {
	way := [2]int{m.peer, t.rank}
	if m.send {
		way = [2]int{t.rank, m.peer}
	}
	q := t.queues[way]
	if len(q) == 0 || q[0].send == m.send {
		if t.ranks[m.peer].left {
			t.endLocked(&RankError{m.peer, ErrLeft})
			return nil, t.cause
		}
		t.queues[way] = append(q, m)
		return nil, nil
	}
	other, t.queues[way] = q[0], q[1:]
	if len(other.bytes) != len(m.bytes) {
		t.endLocked(&RankError{m.peer, fmt.Errorf("%w: a message of %d bytes where rank %d expects %d", ErrMismatch,
			len(other.bytes), t.rank, len(m.bytes))})
		return nil, t.cause
	}
	other.copying, m.copying = true, true
	return other, nil
}

// exchange is a Pending.
type exchange struct {
	t    *inProcess
	list []*message
	done []<-chan struct{} // of the messages
}

// needs reports whether a message waits for a rank to post its side.
func (p *exchange) needs(r int) bool {
	return slices.ContainsFunc(p.list, func(m *message) bool { return m.peer == r && !m.copying })
}

func (p *exchange) Wait(ctx context.Context) error {
	err := p.t.wait(ctx, p.needs, p.done...)
	if err != nil {
		p.withdraw()
	}
	return err
}

// withdraw waits for messages that are being copied. The world has ended, so nobody copies the others.
func (p *exchange) withdraw() {
	for _, m := range p.list {
		p.t.mu.Lock()
		copying := m.copying
		p.t.mu.Unlock()
		if copying {
			<-m.done
		}
	}
}

func (t *inProcess) Gather(ctx context.Context, mine []byte) ([][]byte, error) {
	wait, err := t.Announce(mine)
	if err != nil {
		return nil, err
	}
	return wait(ctx)
}

// Announce implements Near, for any number of bytes.
func (t *inProcess) Announce(mine []byte) (wait func(context.Context) ([][]byte, error), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.beginLocked(); err != nil {
		return nil, err
	}
	g := t.gather
	if g == nil {
		g = &gathering{parts: make([][]byte, len(t.ranks)), missing: len(t.ranks), done: make(chan struct{})}
		t.gather = g
	}
	g.parts[t.rank] = append(make([]byte, 0, len(mine)+1), mine...) // not nil
	if g.missing--; g.missing == 0 {
		t.gather = nil
		close(g.done)
	}
	return func(ctx context.Context) ([][]byte, error) {
		if err := t.wait(ctx, func(r int) bool { return g.parts[r] == nil }, g.done); err != nil {
			return nil, err
		}
		return g.parts, nil
	}, nil
}
