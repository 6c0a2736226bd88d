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

	ctx    context.Context // ends with the world
	cancel context.CancelFunc

	mu      sync.Mutex
	jobs    *queue[job] // in the order of their numbers
	issued  uint64
	pending map[*ncclExchange]bool // those that Wait has not returned from

	worker  chan struct{} // closed when the goroutine has ended
	closing chan struct{} // closed by Close
	once    sync.Once
	stopped chan struct{} // closed when nothing of the transport runs any more
}

// patience bounds the wait for NCCL and CUDA to stop. Tests lower it.
var patience = 5 * time.Second

// job is an exchange on its way to NCCL.
type job struct {
	n               uint64
	sends, receives []nccl.Message
	posted          *control.Messages
	launched        chan struct{} // closed when NCCL has added it to the stream
}

// newNCCL owns the Channel, the communicator and the queue.
func newNCCL(ch *control.Channel, comm *nccl.Comm, q deviceQueue) *overNCCL {
	t := &overNCCL{member: member{ch: ch}, comm: comm, queue: q, jobs: newQueue[job](), pending: map[*ncclExchange]bool{},
		worker: make(chan struct{}), closing: make(chan struct{}), stopped: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	go t.work()
	go t.watch()
	return t
}

// work gives exchanges to NCCL.
func (t *overNCCL) work() {
	defer close(t.worker)
	for {
		j := t.jobs.next(t.ctx.Done())
		if j == nil || t.ctx.Err() != nil {
			return
		}
		err := t.comm.Exchange(t.ctx, t.queue.stream(), j.sends, j.receives)
		if err == nil {
			err = t.queue.signal(j.n)
		}
		if err != nil {
			t.failed(err, j.posted)
			return
		}
		close(j.launched)
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
		case <-t.ch.Ended():
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
	select {
	case <-t.ch.Ended():
	case <-t.closing:
	}
	t.cancel()
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

// Close leaves the world. It returns when NCCL has ended, or after a few seconds.
func (t *overNCCL) Close() error {
	err := t.ch.Close()
	t.once.Do(func() { close(t.closing) })
	<-t.stopped
	t.shared.end()
	return err
}

// launchTime is how long Exchange waits for NCCL's kernel to be in the stream. Kernels that the
// caller launches afterwards then cannot occupy the device before it. It takes some tens of
// microseconds, but for the first messages between two ranks, which connect them.
const launchTime = time.Millisecond

func (t *overNCCL) Exchange(sends, receives []parallel.Transfer) (parallel.Pending, error) {
	if err := parallel.CheckTransfers(t.Rank(), t.Ranks(), sends, receives); err != nil {
		return nil, err
	}
	x := &ncclExchange{t: t, memory: slices.Concat(sends, receives)}
	j := &job{launched: make(chan struct{})}
	for i, list := range [2][]parallel.Transfer{sends, receives} {
		for k := range list {
			m := &list[k].Memory
			at, err := t.queue.address(m)
			if err != nil {
				return nil, err
			}
			message := nccl.Message{Peer: list[k].Peer, Address: at, Bytes: uint64(m.Bytes)}
			if i == 0 {
				j.sends = append(j.sends, message)
			} else {
				j.receives = append(j.receives, message)
			}
		}
	}
	var err error
	if x.posted, err = t.ch.Post(peersOf(sends), peersOf(receives)); err != nil {
		return nil, err
	}
	j.posted = x.posted
	t.mu.Lock()
	t.issued++
	x.n, j.n = t.issued, t.issued
	t.jobs.add(j)
	t.pending[x] = true
	t.mu.Unlock()
	limit := time.NewTimer(launchTime)
	defer limit.Stop()
	select {
	case <-j.launched:
	case <-t.ch.Ended():
	case <-limit.C:
	}
	return x, nil
}

// ncclExchange is a Pending.
type ncclExchange struct {
	t      *overNCCL
	n      uint64
	posted *control.Messages
	memory []parallel.Transfer // which the device may use until poll returns
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
		select {
		case <-t.ch.Ended():
			return t.ch.Err()
		case <-ctx.Done():
			return t.ch.TimedOut(ctx, x.posted.Peer())
		case <-t.closing:
			return left(t.ch)
		default:
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
		if cause := x.posted.Missing(); cause != nil {
			t.ch.Abort(cause)
		}
	}
}
