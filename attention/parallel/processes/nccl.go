package processes

import (
	"context"
	"slices"
	"sync"
	"time"

	"vkattn/attention/parallel"
	"vkattn/internal/control"
	"vkattn/internal/nccl"
	"vkattn/internal/pause"
	"vkattn/vk"
)

// overNCCL is the Transport of a rank over NCCL. A goroutine gives the exchanges to NCCL in their
// order, each followed by a signal of the next number. Wait polls that number, the side channel
// and NCCL's error, so that none of them can be missed.
type overNCCL struct {
	member
	comm  *nccl.Comm
	queue deviceQueue

	jobs *queue[ncclExchange] // in the order of their numbers

	mu      sync.Mutex
	issued  uint64
	pending map[*ncclExchange]bool // those that Wait has not returned from

	worker chan struct{} // closed when the goroutine has ended
}

// patience bounds the wait for NCCL and CUDA to stop. Tests lower it.
var patience = 5 * time.Second

// newNCCL owns the Channel, the communicator and the queue.
func newNCCL(ch *control.Channel, comm *nccl.Comm, q deviceQueue) *overNCCL {
	t := &overNCCL{member: newMember(ch), comm: comm, queue: q, jobs: newQueue[ncclExchange](), pending: map[*ncclExchange]bool{},
		worker: make(chan struct{})}
	go t.work()
	go t.watch()
	return t
}

// work gives exchanges to NCCL.
func (t *overNCCL) work() {
	defer close(t.worker)
	for {
		x := t.jobs.next(t.ctx.Done())
		if x == nil || t.ctx.Err() != nil {
			return
		}
		err := t.comm.Exchange(t.ctx, t.queue.stream(), x.messages)
		if err == nil {
			err = t.queue.signal(x.n)
		}
		if err != nil {
			t.failed(err, x.posted)
			return
		}
		close(x.launched)
	}
}

// failed ends the world after an error of NCCL or CUDA. The error of a rank may be the consequence
// of another one's end, which the side channel names.
func (t *overNCCL) failed(err error, posted *control.Messages) {
	look := time.NewTicker(missingInterval)
	defer look.Stop()
	late := time.After(grace)
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-look.C:
			if cause := posted.Missing(); cause != nil {
				t.ch.Abort(cause)
			}
		case <-late:
			t.ch.Abort(&parallel.RankError{Rank: t.ch.Rank(), Err: err})
		}
	}
}

// watch ends NCCL's work when the world ends or this rank leaves.
func (t *overNCCL) watch() {
	defer close(t.stopped)
	<-t.ctx.Done()
	left := t.ch.Err() == nil // without a fault
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if left {
			_ = t.comm.Close()
		} else {
			_ = t.comm.Abort()
		}
	}()
	for _, done := range []chan struct{}{ended, t.worker} {
		select {
		case <-done:
		case <-ctx.Done():
			t.abandon()
			return
		}
	}
	if err := t.queue.drain(ctx); err != nil && ctx.Err() != nil {
		t.abandon()
		return
	}
	t.queue.close()
}

// abandon keeps the memory of transfers that did not end.
func (t *overNCCL) abandon() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for x := range t.pending {
		t.queue.hold(x.memory)
	}
}

// Buffers are device-local, and exportable for CUDA.
func (t *overNCCL) Buffers() vk.BufferOptions { return vk.BufferOptions{Exportable: true} }

// launchTime is how long Exchange waits for NCCL's kernel to be in the stream. Kernels that the
// caller launches afterwards then cannot occupy the device before it. It takes some tens of
// microseconds, but for the first messages between two ranks, which connect them.
const launchTime = time.Millisecond

func (t *overNCCL) Exchange(sends, receives []parallel.Transfer) (parallel.Pending, error) {
	if err := parallel.CheckTransfers(t.Rank(), t.Ranks(), sends, receives); err != nil {
		return nil, err
	}
	x := &ncclExchange{t: t, memory: slices.Concat(sends, receives), launched: make(chan struct{})}
	for i := range x.memory {
		m := &x.memory[i]
		at, err := t.queue.address(&m.Memory)
		if err != nil {
			return nil, err
		}
		x.messages = append(x.messages, nccl.Message{Peer: m.Peer, Send: i < len(sends), Address: at, Bytes: uint64(m.Bytes)})
	}
	var err error
	if x.posted, err = t.ch.Post(peersOf(sends), peersOf(receives)); err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.issued++
	x.n = t.issued
	t.jobs.add(x)
	t.pending[x] = true
	t.mu.Unlock()
	limit := time.NewTimer(launchTime)
	defer limit.Stop()
	select {
	case <-x.launched:
	case <-t.ctx.Done():
	case <-limit.C:
	}
	return x, nil
}

// ncclExchange is a Pending.
type ncclExchange struct {
	t        *overNCCL
	n        uint64
	messages []nccl.Message
	posted   *control.Messages
	memory   []parallel.Transfer // which the device may use until poll returns
	launched chan struct{}       // closed when NCCL has added it to the stream
}

func (x *ncclExchange) Wait(ctx context.Context) error {
	if ctx == nil {
		ctx = context.Background()
	}
	t := x.t
	x.posted.Await()
	defer x.posted.Done()
	err := x.poll(ctx)
	if err == nil {
		x.forget()
		return nil
	}
	<-t.stopped // bounded by patience
	x.forget()
	return err
}

func (x *ncclExchange) forget() {
	x.t.mu.Lock()
	defer x.t.mu.Unlock()
	delete(x.t.pending, x)
}

// poll waits for the exchange, or returns an error when the world has ended.
func (x *ncclExchange) poll(ctx context.Context) error {
	t := x.t
	looked := time.Now()
	var loop pause.Loop
	for ; ; loop.Wait() {
		if t.ctx.Err() != nil {
			return left(t.ch)
		}
		if err := over(ctx, t.ch, x.posted, x.posted.Peer()); err != nil {
			return err
		}
		n, err := t.queue.reached()
		done := n >= x.n
		if now := time.Now(); err == nil && (done || now.Sub(looked) > missingInterval) {
			looked = now
			err = t.comm.Err()
		}
		switch {
		case err != nil:
			t.failed(err, x.posted)
			return left(t.ch)
		case done:
			return nil
		}
	}
}
