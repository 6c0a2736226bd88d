package parallel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
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

// The header of a call: what ranks compare before they move tensors.

// callKind is the method that a rank called.
type callKind uint8

const (
	callBarrier callKind = iota
	callForward
	callBackward
	callDecode
)

func (k callKind) String() string { return [...]string{"Barrier", "Forward", "Backward", "Decode"}[k] }

// headerFields names what ranks agree on, in the order in which differences are reported.
var headerFields = [...]string{"version", "method", "number of calls so far", "Config", "Mode, Order or Schedule",
	"Shape", "cu_seqlens or lengths", "Split"}

// headerVersion changes with the protocol between ranks.
const headerVersion = 9

// header describes a call by checksums.
type header struct {
	kind                                  callKind
	number                                uint64
	config, mode, shape, sequences, split uint64
	lse                                   bool   // this rank asks for LSE; the others need not
	reach                                 uint64 // bytes of a tensor that this rank's kernels reach
}

// Numbers of an encoded header: those of headerFields, and two that may differ. Then comes the reason of a
// rank that cannot take part.
const (
	headerLSE   = len(headerFields) // 1: this rank asks for LSE
	headerReach = headerLSE + 1
	headerBytes = 8 * (headerReach + 1)
	maxReason   = 400
)

// encode returns the header, followed by the reason why this rank cannot take part.
func (h *header) encode(invalid error) []byte {
	numbers := [headerReach + 1]uint64{headerVersion, uint64(h.kind), h.number, h.config, h.mode, h.shape,
		h.sequences, h.split, headerReach: h.reach}
	if h.lse {
		numbers[headerLSE] = 1
	}
	b := make([]byte, 0, headerBytes)
	for _, x := range numbers {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	if invalid != nil {
		text := invalid.Error()
		b = append(b, text[:min(len(text), maxReason)]...)
	}
	return b
}

// number is a number of an encoded header.
func number(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }

// asksForLSE tells of each rank that agreed on a call whether it asks for LSE.
func asksForLSE(all [][]byte) []bool {
	list := make([]bool, len(all))
	for r, b := range all {
		list[r] = number(b, headerLSE) != 0
	}
	return list
}

// commonReach is the number of bytes of a tensor that the kernels of all ranks reach.
func commonReach(all [][]byte) uint64 {
	reach := uint64(everywhere)
	for _, b := range all {
		reach = min(reach, number(b, headerReach))
	}
	return reach
}

// disagreement names the first rank that cannot take part, or else the first one whose header
// differs from that of most ranks. With as many ranks on either side, rank 0's side is right.
func disagreement(all [][]byte) error {
	const size = headerBytes
	same := len(all) > 0 && len(all[0]) == size
	for r := 1; same && r < len(all); r++ {
		same = bytes.Equal(all[r], all[0])
	}
	if same {
		return nil // always, but for errors
	}
	for r, b := range all {
		switch {
		case len(b) < size:
			return &RankError{r, fmt.Errorf("%w: a header of %d bytes, want %d", ErrMismatch, len(b), size)}
		case len(b) > size:
			text := strings.ToValidUTF8(string(b[size:]), "?")
			return &RankError{r, fmt.Errorf("%w: %w", ErrFailed, errors.New(text))}
		}
	}
	for i, name := range headerFields {
		votes := map[uint64]int{}
		value := func(r int) uint64 { return number(all[r], i) }
		for r := range all {
			votes[value(r)]++
		}
		right := value(0)
		for r := range all {
			if v := value(r); votes[v] > votes[right] {
				right = v
			}
		}
		for r := range all {
			if value(r) != right {
				return &RankError{r, fmt.Errorf("%w on the %s", ErrMismatch, name)}
			}
		}
	}
	return nil
}
