package nccl

import (
	"context"
	"errors"
	"math"
	"sync"
	"unsafe"

	"vkattn/internal/ccall"
	"vkattn/internal/pause"
	"vkattn/vk"
)

// Comm is this rank's communicator, which Join or Wrap makes. One goroutine calls Exchange and
// AllGather; Err, Abort and Close may be called from any.
type Comm struct {
	api         *ncclAPI
	cuda        uint64 // CUcontext
	rank, ranks int
	wrapped     bool // the caller's

	mu     sync.RWMutex // held for writing while the handle ends
	handle uint64       // 0: ended
}

// Join makes a communicator of some ranks, each of which calls Join with the same ID. cuda is
// the CUcontext of this rank's device, see cudapath.Context.Handle. Join waits for all ranks. If
// ctx is done first it aborts and returns the context's error.
func Join(ctx context.Context, cuda uint64, id ID, rank, ranks int) (*Comm, error) {
	const op = "ncclCommInitRankConfig"
	if ranks < 1 || ranks > math.MaxInt32 || rank < 0 || rank >= ranks {
		return nil, &Error{Op: op, Detail: "no such rank", Err: vk.ErrInvalid}
	}
	api, err := load()
	if err != nil {
		return nil, err
	}
	c := &Comm{api: api, cuda: cuda, rank: rank, ranks: ranks}
	code := api.join(cuda, &id, rank, ranks, &c.handle)
	if err := c.accepted(ctx, op, code); err != nil {
		return nil, errors.Join(err, c.Abort())
	}
	return c, nil
}

// Wrap uses the caller's ncclComm_t, which must live until the Comm is closed. It must have been
// made with ncclConfig_t.blocking = 0: otherwise a call may wait for a peer that is gone, and Abort
// waits for the call. Close does not destroy the communicator, Abort aborts it.
func Wrap(comm uintptr, cuda uint64) (*Comm, error) {
	if comm == 0 {
		return nil, &Error{Op: "Wrap", Detail: "no communicator", Err: vk.ErrInvalid}
	}
	api, err := load()
	if err != nil {
		return nil, err
	}
	rank, ranks, code := api.who(uint64(comm))
	if err := check(api, "ncclCommUserRank", code); err != nil {
		return nil, err
	}
	return &Comm{api: api, cuda: cuda, rank: rank, ranks: ranks, wrapped: true, handle: uint64(comm)}, nil
}

// Rank is this rank.
func (c *Comm) Rank() int { return c.rank }

// Ranks is the number of ranks.
func (c *Comm) Ranks() int { return c.ranks }

// use calls f with the handle, or reports that there is none.
func (c *Comm) use(op string, f func(handle uint64) int32) (int32, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.handle == 0 {
		return 0, &Error{Op: op, Detail: "the communicator has ended", Err: vk.ErrClosed}
	}
	return f(c.handle), nil
}

// Err is the error that a communicator met since its last call: a peer that is gone, for
// example. nil: none.
func (c *Comm) Err() error {
	code, err := c.state()
	if err != nil || code == inProgress {
		return err
	}
	return check(c.api, "ncclCommGetAsyncError", code)
}

// state is the result of the calls so far; NCCL_IN_PROGRESS: not known yet.
func (c *Comm) state() (code int32, err error) {
	const op = "ncclCommGetAsyncError"
	called, err := c.use(op, func(h uint64) int32 {
		return int32(ccall.Call(c.api.ncclCommGetAsyncError, uintptr(h), uintptr(unsafe.Pointer(&code))))
	})
	if err == nil {
		err = check(c.api, op, called)
	}
	return code, err
}

// accepted waits until NCCL has accepted a call that it works on in the background.
func (c *Comm) accepted(ctx context.Context, op string, code int32) error {
	for loop := new(pause.Loop); code == inProgress; loop.Wait() {
		if ctx != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		var err error
		if code, err = c.state(); err != nil {
			return err
		}
	}
	return check(c.api, op, code)
}

// Message is a range of device memory to or from a peer.
type Message struct {
	Peer           int
	Send           bool
	Address, Bytes uint64
}

// Exchange adds sends and receives to a CUDA stream, as one group. It returns when NCCL has
// accepted them; the transfers run with the stream. The first messages between two ranks
// connect them, which needs both.
func (c *Comm) Exchange(ctx context.Context, stream uint64, messages []Message) error {
	const op = "ncclGroupEnd"
	for _, m := range messages {
		if m.Peer < 0 || m.Peer >= c.Ranks() {
			return &Error{Op: op, Detail: "no such peer", Err: vk.ErrInvalid}
		}
	}
	code, err := c.use(op, func(h uint64) int32 {
		if len(messages) == 0 {
			return success
		}
		return c.api.exchange(c.cuda, h, stream, messages)
	})
	if err != nil {
		return err
	}
	return c.accepted(ctx, op, code)
}

// AllGather adds an all-gather to a CUDA stream: bytes of this rank at send, those of all
// ranks, in their order, at receive.
func (c *Comm) AllGather(ctx context.Context, stream, send, receive, bytes uint64) error {
	const op = "ncclAllGather"
	code, err := c.use(op, func(h uint64) int32 {
		return c.api.allGather(c.cuda, h, stream, send, receive, bytes)
	})
	if err != nil {
		return err
	}
	return c.accepted(ctx, op, code)
}

// Abort ends all work of the communicator on this rank and destroys it. It may be called again.
func (c *Comm) Abort() error {
	const op = "ncclCommAbort"
	c.mu.Lock()
	h := c.handle
	c.handle = 0
	c.mu.Unlock() // NCCL may take long, and other calls report the end meanwhile
	if h == 0 {
		return nil
	}
	return check(c.api, op, c.api.within(c.cuda, func() int32 { return int32(ccall.Call(c.api.ncclCommAbort, uintptr(h))) }))
}

// Close destroys the communicator; work that has not finished is aborted. The caller's own
// communicator of Wrap stays. Close may be called again.
func (c *Comm) Close() error {
	if !c.wrapped {
		return c.Abort()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handle = 0
	return nil
}
