package processes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"

	"vkattn/attention/parallel"
	"vkattn/cudapath"
	"vkattn/internal/control"
	"vkattn/internal/nccl"
	"vkattn/internal/pause"
	"vkattn/vk"
)

// FromComm makes a Group from the caller's ncclComm_t of the device dev, which must have been made
// with ncclConfig_t.blocking = 0. All ranks of the communicator call it, with no other operation
// of the communicator under way. Options.Transport has no effect.
//
// The communicator stays the caller's, who destroys it after Group.Close. It runs the Group's
// transfers in a stream of the Group, in the order of the calls on every rank: between the first
// and the last call of the Group, the caller orders its own operations the same way on all ranks,
// as NCCL demands. After a fault the communicator is aborted, and the caller must not use or
// destroy it.
//
// The ranks find one another through the communicator: rank 0 opens a port, and its addresses are
// gathered.
func FromComm(ctx context.Context, dev *vk.Device, comm uintptr, o Options) (*parallel.Group, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	if dev == nil {
		return nil, fmt.Errorf("processes: %w: a communicator of NCCL needs a device", vk.ErrUnsupported)
	}
	q, err := newCUDAQueue(dev)
	if err != nil {
		return nil, err
	}
	c, err := nccl.Wrap(comm, q.c.Handle())
	if err != nil {
		q.close()
		return nil, err
	}
	t, err := wrap(ctx, c, q, &o, func(b []byte) ([]byte, error) { return gatherOnDevice(ctx, q, c, b) })
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return group(t, o)
}

// wrap makes the Transport of a communicator. gather gathers equal numbers of bytes of all ranks.
func wrap(ctx context.Context, c *nccl.Comm, q deviceQueue, o *Options, gather func([]byte) ([]byte, error)) (parallel.Transport, error) {
	w := control.World{Rank: c.Rank(), Ranks: c.Ranks()}
	var addresses []string
	var err error
	if w.Rank == 0 && w.Ranks > 1 && o.Control.Listener == nil {
		if o.Control.Listener, err = net.Listen("tcp", ":0"); err != nil {
			q.close()
			return nil, fmt.Errorf("processes: %w", err)
		}
	}
	if l := o.Control.Listener; l != nil {
		addresses = addressesOf(l)
	}
	all, err := gather(encodeAddresses(addresses))
	if err != nil {
		if o.Control.Listener != nil {
			_ = o.Control.Listener.Close()
		}
		q.close()
		return nil, err
	}
	w.Addresses = decodeAddresses(all)
	ch, err := control.Join(ctx, w, o.Control)
	if err != nil {
		q.close()
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, o.joinTime())
	defer cancel()
	near, err := joinShared(bounded, ch)
	if err != nil {
		q.close()
		return nil, abandon(ch, err)
	}
	t := newNCCL(ch, c, q)
	t.shared = near
	return t, nil
}

// Rank 0 sends its addresses as JSON with zeros behind it: every rank gathers the same number of bytes.
const maxAddresses, addressBytes = 8, 512

// addressesOf lists the addresses of a listener of this host, those that other hosts reach first.
func addressesOf(l net.Listener) (addresses []string) {
	tcp, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return nil
	}
	list := []net.IP{tcp.IP}
	if tcp.IP.IsUnspecified() {
		list = nil
		var local []net.IP
		all, _ := net.InterfaceAddrs()
		for _, a := range all {
			switch n, ok := a.(*net.IPNet); {
			case !ok || n.IP.IsLinkLocalUnicast():
			case n.IP.IsLoopback():
				local = append(local, n.IP)
			default:
				list = append(list, n.IP)
			}
		}
		list = append(list[:min(len(list), maxAddresses-min(len(local), 1))], local...)
	}
	for _, ip := range list[:min(len(list), maxAddresses)] {
		addresses = append(addresses, net.JoinHostPort(ip.String(), strconv.Itoa(tcp.Port)))
	}
	return addresses
}

func encodeAddresses(list []string) []byte {
	text, _ := json.Marshal(list)
	return append(text, make([]byte, addressBytes-len(text))...)
}

// decodeAddresses returns those of rank 0 from the bytes of all ranks; control.Join reports that there are none.
func decodeAddresses(all []byte) (list []string) {
	_ = json.Unmarshal(bytes.TrimRight(all[:addressBytes], "\x00"), &list)
	return list
}

// gatherOnDevice gathers bytes through device memory.
func gatherOnDevice(ctx context.Context, q *cudaQueue, c *nccl.Comm, mine []byte) (all []byte, err error) {
	n := uint64(len(mine))
	m, err := q.c.Alloc(n * uint64(1+c.Ranks()))
	if err != nil {
		return nil, err
	}
	idle := true
	defer func() {
		if idle { // otherwise the device may still write to it
			_ = m.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, control.DefaultJoin)
	defer cancel()
	if err = m.CopyFromHost(0, mine); err == nil {
		err = c.AllGather(ctx, q.stream(), m.Address(), m.Address()+n, n)
	}
	if err == nil {
		err = waitFor(ctx, q.s, c)
	}
	if err != nil {
		abort := c.Abort() // so that nothing uses the memory any more
		limit, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		drained := q.drain(limit)
		idle = drained == nil
		return nil, errors.Join(err, abort, drained)
	}
	all = make([]byte, n*uint64(c.Ranks()))
	return all, m.CopyToHost(all, n)
}

// waitFor waits for the stream, and ends early with an error of the communicator.
func waitFor(ctx context.Context, s *cudapath.Stream, c *nccl.Comm) error {
	for loop := new(pause.Loop); ; loop.Wait() {
		if finished, err := s.Query(); finished || err != nil {
			return err
		}
		if err := cmp.Or(ctx.Err(), c.Err()); err != nil {
			return err
		}
	}
}
