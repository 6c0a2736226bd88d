package parallel

import (
	"context"
	"fmt"

	"vkattn/attention"
	"vkattn/internal/errs"
	"vkattn/vk"
)

// Memory is a range of bytes, in host memory or in a device buffer, exactly one of the two.
type Memory struct {
	Host   []byte
	Buffer *vk.Buffer
	Offset int64 // of the first byte
	Bytes  int64
}

// Transfer is a message to or from another rank.
type Transfer struct {
	Peer int // the other rank
	Memory
}

// Transport moves memory between ranks. Every rank has its own Transport of the same world.
// A Transport has one owner; Abort and Close may be called from any goroutine.
//
// Messages from one rank to another are received in the order in which they were sent.
// Every send needs a receive of the same number of bytes. Errors are [*RankError] values that
// name the rank which ended the operation. After the first error of a world, every operation
// of every rank returns that error, except that Gather reports a wrong argument without
// ending anything.
type Transport interface {
	Rank() int  // of this rank, 0 to Ranks()-1
	Ranks() int // of the world

	// Exchange starts sends and receives as one group, so that no order of them can block.
	// It returns without waiting for other ranks. Until Wait has returned, the caller does
	// not change what is sent and does not read what is received.
	Exchange(sends, receives []Transfer) (Pending, error)

	// Buffers are the options of the device buffers that the transport moves.
	Buffers() vk.BufferOptions

	// Gather gives every rank the bytes of all ranks, in the order of ranks. It is for a few
	// bytes of host memory: headers and barriers. A rank that is not there when the context
	// ends is named by the error.
	Gather(ctx context.Context, mine []byte) ([][]byte, error)

	// Abort ends all operations of all ranks with cause, unless another cause came first.
	Abort(cause *RankError)

	// Close leaves the world. Operations of other ranks that need this one end with an error
	// that matches ErrLeft. Close is idempotent.
	Close() error
}

// Near is what a Transport may offer in addition where all ranks are on one host: gathers of little
// host memory that take microseconds. Decode agrees on a call and moves its states with them. An
// Exchange over NCCL would have the GPU change from Vulkan to CUDA and back, which takes longer than
// all of its other work.
type Near interface {
	// NearBytes is the most bytes of a rank that GatherNear and Announce take, the same number on
	// every rank. 0: they cannot be called.
	NearBytes() int64

	// GatherNear gives every rank the bytes of all ranks. parts[r] are the ranges for the bytes of
	// rank r, of the same sizes for all ranks; those of this rank hold its bytes. All ranks call it
	// at the same point. It returns the errors of Pending.Wait, and touches no memory afterwards.
	GatherNear(ctx context.Context, parts [][][]byte) error

	// Announce starts a Gather and returns without waiting for other ranks: this rank works meanwhile.
	// wait returns what Gather returns. All ranks call Announce at the same point, and wait exactly once,
	// before the next operation.
	Announce(mine []byte) (wait func(ctx context.Context) ([][]byte, error), err error)
}

// Pending is an Exchange under way.
type Pending interface {
	// Wait returns when all transfers have finished, or with an error when the context ends,
	// a peer is gone or the world was aborted. Once it has returned, the transport does not
	// touch the memory any more. Wait is called exactly once.
	Wait(ctx context.Context) error
}

// check reports memory that is missing, or a range outside of it.
func (m *Memory) check() error {
	var size uint64
	switch {
	case (m.Host != nil) == (m.Buffer != nil):
		return errs.Invalid("parallel: a transfer needs either host memory or a buffer")
	case m.Buffer != nil:
		size = m.Buffer.Size()
	default:
		size = uint64(len(m.Host))
	}
	if m.Offset < 0 || m.Bytes < 0 || uint64(m.Offset) > size || uint64(m.Bytes) > size-uint64(m.Offset) {
		return errs.Invalid("parallel: bytes %d to %d of memory of %d", m.Offset, m.Offset+m.Bytes, size)
	}
	return nil
}

// OnHost returns the bytes of the range, for an implementation of Transport that copies them. The error
// matches [attention.ErrUnsupported] if the buffer is not host-visible.
func (m Memory) OnHost() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	if m.Buffer != nil && m.Buffer.Bytes() == nil {
		return nil, fmt.Errorf("%w: the buffer of a transfer is not host-visible", attention.ErrUnsupported)
	}
	return m.bytes(), nil
}

// bytes returns the bytes of a range that OnHost has checked.
func (m *Memory) bytes() []byte {
	if m.Buffer != nil {
		return m.Buffer.Bytes()[m.Offset:][:m.Bytes]
	}
	return m.Host[m.Offset:][:m.Bytes]
}

// CheckTransfers checks the peers and memory of an Exchange for an implementation of Transport.
func CheckTransfers(rank, ranks int, sends, receives []Transfer) error {
	for _, list := range [2][]Transfer{sends, receives} {
		for i := range list {
			if p := list[i].Peer; p < 0 || p >= ranks || p == rank {
				return errs.Invalid("parallel: a transfer of rank %d with rank %d of %d", rank, p, ranks)
			}
			if err := list[i].check(); err != nil {
				return err
			}
		}
	}
	return nil
}

// CheckNear checks the ranges of a GatherNear for an implementation of Near, which takes most bytes of
// a rank. It returns how many a rank has.
func CheckNear(ranks int, most int64, parts [][][]byte) (bytes int64, err error) {
	if len(parts) != ranks || ranks == 0 {
		return 0, errs.Invalid("parallel: GatherNear for %d ranks of %d", len(parts), ranks)
	}
	for r := range parts {
		same := len(parts[r]) == len(parts[0])
		for i := 0; same && i < len(parts[r]); i++ {
			same = len(parts[r][i]) == len(parts[0][i])
		}
		if !same {
			return 0, errs.Invalid("parallel: GatherNear with other ranges for rank %d than for rank 0", r)
		}
	}
	for _, x := range parts[0] {
		bytes += int64(len(x))
	}
	if bytes > most {
		return 0, errs.Invalid("parallel: GatherNear of %d bytes, at most %d", bytes, most)
	}
	return bytes, nil
}
