package processes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"vkattn/attention/parallel"
	"vkattn/cudapath"
	"vkattn/internal/control"
	"vkattn/internal/enum"
	"vkattn/internal/errs"
	"vkattn/internal/nccl"
	"vkattn/vk"
)

// Transport says what moves tensors between ranks.
type Transport uint8

// Transports. The zero value is NCCL if every rank has it, otherwise TCP.
const (
	TransportAuto Transport = iota
	TransportNCCL           // between NVIDIA GPUs
	TransportTCP            // between host memory
)

var transportNames = []string{"auto", "nccl", "tcp"}

// Valid reports whether t is one of the named transports.
func (t Transport) Valid() bool { return int(t) < len(transportNames) }

// String is "auto", "nccl" or "tcp".
func (t Transport) String() string { return enum.Name("Transport", transportNames, uint8(t)) }

// ParseTransport reads what String writes, in any case.
func ParseTransport(s string) (Transport, error) {
	return enum.Parse[Transport]("transport", transportNames, s)
}

// Options are the options of Join, FromEnvironment and FromComm. The zero value is good.
type Options struct {
	Transport Transport             // the same on every rank
	Control   control.Options       // of the side channel
	Group     parallel.GroupOptions // of the Group
}

// FromEnvironment makes the Group of this process's rank from the environment, see
// control.FromEnvironment: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or the variables of
// Open MPI, PMI and Slurm. The error matches vk.ErrUnsupported if there are none.
//
// dev is this rank's device (see [Device]); nil: the CPU tier. It must outlive the Group. The
// call returns when all ranks have joined, or with an error that names the rank which did not.
func FromEnvironment(ctx context.Context, dev *vk.Device, o Options) (*parallel.Group, error) {
	w, ok, err := control.FromEnvironment()
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("processes: %w: RANK and WORLD_SIZE are not set", vk.ErrUnsupported)
	}
	t, err := Join(ctx, dev, w, o)
	if err != nil {
		return nil, err
	}
	return group(t, o)
}

// group makes the Group of a transport, which it closes if that fails.
func group(t parallel.Transport, o Options) (*parallel.Group, error) {
	g, err := parallel.NewGroup(t, o.Group)
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return g, nil
}

// introduction is what a rank tells the others when it joins.
type introduction struct {
	Transport Transport
	Why       string // it cannot use NCCL; "": it can
	ID        []byte // of the communicator, from rank 0
	Host      string // for TCP; "" of rank 0
	Port      int
	Token     []byte
	Device    []byte // its UUID; nil: none
}

// World says which rank this process is (Rank, Ranks, LocalRank), and the Addresses of rank 0 as
// "host:port", which the others try in turn.
type World = control.World

// Join makes the Transport of a rank of a world. FromEnvironment calls it; it is for callers that
// know the world otherwise. dev is as in FromEnvironment. The caller, or the Group that it makes,
// closes the Transport.
func Join(ctx context.Context, dev *vk.Device, w World, o Options) (parallel.Transport, error) {
	if !o.Transport.Valid() {
		return nil, errs.Invalid("processes: %v", o.Transport)
	}
	if ctx == nil {
		ctx = context.Background()
	}
	ch, err := control.Join(ctx, w, o.Control)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.joinTime())
	defer cancel()
	t, err := connect(ctx, dev, ch, o.Transport)
	if err != nil {
		return nil, abandon(ch, err)
	}
	return t, nil
}

// joinTime bounds what follows control.Join.
func (o *Options) joinTime() time.Duration { return cmp.Or(o.Control.Join, control.DefaultJoin) }

// abandon leaves a world that this rank cannot join, and returns the error of every rank.
func abandon(ch *control.Channel, err error) error {
	if ch.Err() == nil {
		var named *parallel.RankError
		if !errors.As(err, &named) {
			named = &parallel.RankError{Rank: ch.Rank(), Err: err}
		}
		ch.Abort(named)
		err = named
	}
	if cause := ch.Err(); cause != nil {
		err = cause // the first one
	}
	_ = ch.Close()
	return err
}

// connect agrees on the transport and makes it.
func connect(ctx context.Context, dev *vk.Device, ch *control.Channel, want Transport) (t parallel.Transport, err error) {
	ended, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ch.Context(), cancel)()
	me := introduction{Transport: want}
	var id nccl.ID
	if want != TransportTCP {
		if err := canUseNCCL(dev); err != nil {
			me.Why = err.Error()
		} else if ch.Rank() == 0 {
			if id, err = nccl.NewID(); err != nil {
				me.Why = err.Error()
			}
			me.ID = id[:]
		}
	} else {
		me.Why = "not asked for"
	}
	l, err := listen()
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if dev != nil {
		uuid := dev.Info().UUID
		me.Device = uuid[:]
	}
	me.Host, me.Port, me.Token = ch.LocalAddress(), l.port(), l.token[:]
	all, err := gatherJSON(ctx, ch, &me)
	if err != nil {
		return nil, err
	}
	for r := range all { // before anything that depends on it
		if all[r].Transport != all[0].Transport {
			return nil, &parallel.RankError{Rank: r, Err: fmt.Errorf("%w: transport %v, rank 0 wants %v",
				parallel.ErrMismatch, all[r].Transport, all[0].Transport)}
		}
	}
	use := TransportNCCL
	owner := map[string]int{}
	for r := range all {
		if first, taken := owner[string(all[r].Device)]; taken && all[r].Why == "" {
			all[r].Why = fmt.Sprintf("it has the same GPU as rank %d, and NCCL needs one for each rank", first)
		}
		owner[string(all[r].Device)] = r
		if all[r].Why != "" {
			if want == TransportNCCL {
				return nil, &parallel.RankError{Rank: r, Err: fmt.Errorf("%w: %s", vk.ErrUnsupported, all[r].Why)}
			}
			use = TransportTCP
		}
	}
	near, err := joinShared(ctx, ch)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			near.end()
		}
	}()
	if use == TransportNCCL {
		if len(all[0].ID) != len(id) {
			return nil, &parallel.RankError{Rank: 0, Err: fmt.Errorf("%w: an ID of %d bytes", parallel.ErrMismatch, len(all[0].ID))}
		}
		t, err := joinNCCL(ended, dev, ch, nccl.ID(all[0].ID))
		if err != nil {
			return nil, err
		}
		t.shared = near
		return t, nil
	}
	endpoints := make([]endpoint, len(all))
	for r, x := range all {
		if r == 0 {
			x.Host = ch.RootAddress()
		}
		endpoints[r].address = net.JoinHostPort(x.Host, strconv.Itoa(x.Port))
		copy(endpoints[r].token[:], x.Token)
	}
	over, err := newTCP(ended, ch, l, endpoints)
	if err != nil {
		return nil, err
	}
	over.shared = near
	return over, nil
}

// gatherJSON gathers a value of each rank.
func gatherJSON[T any](ctx context.Context, ch *control.Channel, mine *T) ([]T, error) {
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	parts, err := ch.Gather(ctx, text)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(parts))
	for r, text := range parts {
		if err := json.Unmarshal(text, &all[r]); err != nil {
			return nil, &parallel.RankError{Rank: r, Err: fmt.Errorf("%w: %w", parallel.ErrMismatch, err)}
		}
	}
	return all, nil
}

// canUseNCCL reports why this rank cannot.
func canUseNCCL(dev *vk.Device) error {
	if dev == nil {
		return fmt.Errorf("%w: NCCL needs a GPU, and the rank computes on the CPU", vk.ErrUnsupported)
	}
	if _, err := cudapath.Open(dev); err != nil {
		return err
	}
	_, err := nccl.Version()
	return err
}

// joinNCCL makes the communicator.
func joinNCCL(ctx context.Context, dev *vk.Device, ch *control.Channel, id nccl.ID) (*overNCCL, error) {
	q, err := newCUDAQueue(dev)
	if err != nil {
		return nil, err
	}
	comm, err := nccl.Join(ctx, q.c.Handle(), id, ch.Rank(), ch.Ranks())
	if err != nil {
		q.close()
		return nil, blame(ctx, ch, err)
	}
	return newNCCL(ch, comm, q), nil
}

// blame waits for the side channel to name the rank behind an error. A context that ended while
// NCCL waited for the others is a timeout of one of them.
func blame(ctx context.Context, ch *control.Channel, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", parallel.ErrTimeout, err)
	}
	select {
	case <-ch.Ended():
		return ch.Err()
	case <-time.After(grace):
		return err
	}
}
