//go:build unix

package processes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/internal/control"
	"vkattn/internal/inputs"
	"vkattn/internal/nccl"
	"vkattn/internal/ranktest"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

var kinds = []Transport{TransportTCP, TransportNCCL}

// Messages reach their ranks, in order, in exchanges that overlap.
func TestExchange(t *testing.T) {
	testlevel.HostOnly(t)
	for _, kind := range kinds {
		for _, n := range []int{2, 4} {
			t.Run(fmt.Sprintf("%v/%d", kind, n), func(t *testing.T) {
				w := newWorld(t, kind, n)
				for r, err := range ranktest.OnAll(n, func(r int) error {
					x := w.transports[r]
					if x.Rank() != r || x.Ranks() != n || KindOf(x) != kind {
						return errors.New("it does not know its rank")
					}
					before := byte((r + n - 1) % n)
					var waits []parallel.Pending
					var ins [][]byte
					for i := range 20 {
						size := 1 + i*5000
						in := make([]byte, size)
						p, err := x.Exchange([]parallel.Transfer{{Peer: (r + 1) % n, Memory: parallel.Memory{Host: filled(size+3, byte(r+10*i)), Offset: 3, Bytes: int64(size)}}},
							[]parallel.Transfer{{Peer: int(before), Memory: parallel.Memory{Host: in, Bytes: int64(size)}}})
						if err != nil {
							return err
						}
						waits, ins = append(waits, p), append(ins, in)
						if i%3 != 0 {
							continue
						}
						for _, p := range waits {
							if err := p.Wait(context.Background()); err != nil {
								return err
							}
						}
						waits = nil
					}
					for _, p := range waits {
						if err := p.Wait(context.Background()); err != nil {
							return err
						}
					}
					for i, in := range ins {
						if !bytes.Equal(in, filled(len(in), before+byte(10*i))) {
							return fmt.Errorf("exchange %d has other bytes", i)
						}
					}
					parts, err := x.Gather(context.Background(), []byte{byte(r)})
					for s, p := range parts {
						if len(p) != 1 || p[0] != byte(s) {
							return errors.New("Gather has other bytes")
						}
					}
					return err
				}) {
					require.NoError(t, err, "rank %d", r)
				}
				_, err := w.transports[0].Exchange([]parallel.Transfer{{Peer: n}}, nil)
				require.ErrorIs(t, err, attention.ErrInvalid)
			})
		}
	}
}

// Calls over processes have the bits of the same calls in one process, gradients too. A send of the
// fake NCCL waits for its receive, so no exchange may have sends that only a later one receives.
func TestCallsHaveTheBitsOfOneProcess(t *testing.T) {
	testlevel.HostOnly(t)
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) { callsHaveTheBits(t, kind, 4, 2, parallel.OrderAuto) })
	}
}

// Eight ranks as two groups of four, and striped splits, whose messages are packed.
func TestCallsOfManyRanksHaveTheBitsOfOneProcess(t *testing.T) {
	testlevel.HostOnly(t)
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			callsHaveTheBits(t, kind, 8, 4, parallel.OrderAuto)
			callsHaveTheBits(t, kind, 8, 2, parallel.OrderStriped)
			callsHaveTheBits(t, kind, 4, 2, parallel.OrderStriped)
		})
	}
}

// callsHaveTheBits computes in every mode over n ranks, of which inner share heads in mode 2d.
func callsHaveTheBits(t *testing.T, kind Transport, n, inner int, order parallel.Order) {
	t.Helper()
	const heads, rows, dim = 8, 60, 16
	p := parallel.Problem{Shape: attention.Shape{B: 1, Hq: heads, Hkv: heads, Sq: rows, Sk: rows}}
	compute := func(transports []parallel.Transport, mode parallel.Mode) [][]byte {
		outs := make([][]byte, n)
		for r, err := range ranktest.OnAll(n, func(r int) error {
			g, err := parallel.NewGroup(transports[r], parallel.GroupOptions{Timeout: timeout})
			if err != nil {
				return err
			}
			cfg := parallel.Config{Mode: mode, Inner: inner, Order: order}
			cfg.HeadDim, cfg.Causal = dim, attention.BottomRight
			op, err := parallel.New(g, nil, cfg)
			if err != nil {
				return err
			}
			defer op.Close()
			plan, err := op.Plan(p)
			if err != nil {
				return err
			}
			count := heads * plan.Rows.Count(r)
			in := func(seed int) attention.Tensor {
				return attention.Tensor{Host: inputs.New(int64(count*dim), cfg.DType, inputs.Normal, uint64(10*r+seed))}
			}
			out := func() attention.Tensor { return attention.Tensor{Host: make([]byte, count*dim*cfg.DType.Size())} }
			a := parallel.BackwardArgs{Args: parallel.Args{Problem: p, Q: in(1), K: in(2), V: in(3), O: out()}, DO: in(4), DQ: out(), DK: out(), DV: out()}
			a.LSE.Host = make([]byte, 4*count)
			if err := op.Forward(context.Background(), nil, a.Args); err != nil {
				return err
			}
			err = op.Backward(context.Background(), nil, a)
			outs[r] = bytes.Join([][]byte{a.O.Host, a.LSE.Host, a.DQ.Host, a.DK.Host, a.DV.Host}, nil)
			return err
		}) {
			require.NoError(t, err, "rank %d", r)
		}
		return outs
	}
	w := newWorld(t, kind, n)
	for _, mode := range parallel.Modes() {
		one, err := parallel.InProcess(n)
		require.NoError(t, err)
		require.Equal(t, compute(one, mode), compute(w.transports, mode), "%v of %d ranks, %v", mode, n, order)
	}
}

// A rank that dies, hangs, aborts, leaves or has an error of NCCL in the middle of an exchange is
// named on every other rank. Memory is not touched afterwards.
func TestFaultsNameTheRank(t *testing.T) {
	testlevel.HostOnly(t)
	boom := errors.New("boom")
	for name, x := range map[string]struct {
		fault func(w *rankWorld, r int)
		want  error
		also  bool // the rank itself waits
		nccl  bool
	}{
		"dies":   {func(w *rankWorld, r int) { w.proxies[r].cut() }, parallel.ErrLeft, false, false},
		"aborts": {func(w *rankWorld, r int) { w.transports[r].Abort(&parallel.RankError{Rank: r, Err: boom}) }, parallel.ErrFailed, false, false},
		"leaves": {func(w *rankWorld, r int) { _ = w.transports[r].Close() }, parallel.ErrLeft, false, false},
		"hangs":  {func(w *rankWorld, r int) {}, parallel.ErrTimeout, false, false},
		"error":  {func(w *rankWorld, r int) { w.fake.fail(int32(r), 1) }, parallel.ErrFailed, true, true},
	} {
		for _, kind := range kinds {
			for _, n := range []int{2, 4} {
				if x.nccl && kind != TransportNCCL {
					continue
				}
				t.Run(fmt.Sprintf("%s/%v/%d", name, kind, n), func(t *testing.T) {
					w := newWorld(t, kind, n)
					bad := n - 1
					for _, err := range ranktest.OnAll(n, func(r int) error { // connects the ranks
						return exchangeAll(context.Background(), w.transports[r], 100)
					}) {
						require.NoError(t, err)
					}
					// Only an error of NCCL has no other cause, which the side channel would name.
					set(t, &grace, timeout)
					if x.also {
						grace = time.Millisecond
					}
					waits := ranktest.NewWaits(n - 1)
					for r, err := range ranktest.OnAll(n, func(r int) error {
						ctx := waits.Context(name == "hangs")
						if r == bad {
							<-waits.All()
							x.fault(w, r)
							if !x.also {
								return nil
							}
							ctx = context.Background()
						}
						return exchangeAll(ctx, w.transports[r], 1000)
					}) {
						switch {
						case x.also && (r == bad || err != nil): // the others may have what they need
							var e *parallel.RankError
							require.ErrorAs(t, err, &e)
							require.Equal(t, bad, e.Rank, "%v", err)
						case !x.also && r != bad:
							ranktest.Named(t, err, bad, x.want)
						}
					}
					for r, x := range w.transports {
						if r == bad && (name == "leaves" || name == "dies") {
							continue
						}
						_, err := x.Gather(context.Background(), nil)
						require.Error(t, err)
						err = exchangeAll(context.Background(), x, 10)
						require.Error(t, err)
					}
				})
			}
		}
	}
}

// Where the device does not stop after an abort, calls end all the same, and memory is held.
func TestADeviceThatDoesNotStop(t *testing.T) {
	testlevel.HostOnly(t)
	set(t, &patience, time.Millisecond) // it is in vain
	w := newWorld(t, TransportNCCL, 2)
	w.fake.stuck(1)
	waits := ranktest.NewWaits(2)
	for _, err := range ranktest.OnAll(2, func(r int) error { return exchangeAll(waits.Context(true), w.transports[r], 10) }) {
		var e *parallel.RankError
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, err, parallel.ErrTimeout)
	}
	for r, q := range w.queues {
		require.NoError(t, w.transports[r].Close())
		require.Equal(t, 2, q.held)
		require.False(t, q.closed)
	}
	w.fake.stuck(0)
	for _, q := range w.queues {
		require.NoError(t, q.drain(context.Background()))
	}
}

// A connection that does not say who it is holds up no rank.
func TestASilentStranger(t *testing.T) {
	testlevel.HostOnly(t)
	ranktest.NoLeak(t)
	set(t, &helloTime, timeout)
	const n = 3
	first, addresses := listenerOf(t)
	sockets, endpoints := make([]*listening, n), make([]endpoint, n)
	for r := range n {
		l, err := listen()
		require.NoError(t, err)
		sockets[r], endpoints[r] = l, endpoint{fmt.Sprintf("127.0.0.1:%d", l.port()), l.token}
		stranger, err := net.Dial("tcp", endpoints[r].address)
		require.NoError(t, err)
		defer stranger.Close()
	}
	for r, err := range ranktest.OnAll(n, func(r int) error {
		o := testControl()
		if r == 0 {
			o.Listener = first
		}
		ch, err := control.Join(context.Background(), worldOf(r, n, addresses), o)
		if err != nil {
			return err
		}
		x, err := newTCP(context.Background(), ch, sockets[r], endpoints)
		if err != nil {
			return errors.Join(err, ch.Close())
		}
		return errors.Join(exchangeAll(context.Background(), x, 100), x.Close())
	}) {
		require.NoError(t, err, "rank %d", r)
	}
}

// A rank that waits for connections returns when the world ends, also if it ends as the wait begins.
func TestConnectingHeedsTheContext(t *testing.T) {
	testlevel.HostOnly(t)
	ranktest.NoLeak(t)
	for range 100 {
		l, err := listen()
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // as mesh
		failed := make(chan error, 1)
		go func() { failed <- l.admit(ctx, 0, make([]net.Conn, 2)) }()
		cancel()
		require.ErrorIs(t, <-failed, context.Canceled)
		stop()
	}
}

// A connection that says nothing does not hold up a rank whose wait ends as the greeting begins.
func TestASilentStrangerAtTheEnd(t *testing.T) {
	testlevel.HostOnly(t)
	synctest.Test(t, func(t *testing.T) {
		network := ranktest.NewNetwork()
		ctx, cancel := context.WithCancel(context.Background())
		network.Greeting = func() { cancel(); time.Sleep(time.Nanosecond) } // what follows the end has happened then
		go func() { _, _ = network.DialContext(context.Background(), "", "") }()
		begin := time.Now()
		require.ErrorIs(t, (&listening{Listener: network}).admit(ctx, 0, make([]net.Conn, 2)), context.Canceled)
		require.Less(t, time.Since(begin), time.Second)
	})
}

// A rank that does not connect within the time is named, and not the one that waits for it.
func TestARankThatDoesNotConnect(t *testing.T) {
	testlevel.HostOnly(t)
	synctest.Test(t, func(t *testing.T) {
		network := ranktest.NewNetwork()
		l := &listening{Listener: network}
		go func() {
			conn, err := network.DialContext(context.Background(), "", "")
			require.NoError(t, err)
			_, err = conn.Write(append(l.token[:], 1, 0, 0, 0))
			require.NoError(t, err)
		}()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conns := make([]net.Conn, 3)
		ranktest.Named(t, l.admit(ctx, 0, conns), 2, parallel.ErrTimeout)
		require.NotNil(t, conns[1])
	})
}

// Ranks that cannot use what they ask for, or that ask for different transports, are named.
func TestJoinRefuses(t *testing.T) {
	testlevel.HostOnly(t)
	join := func(want ...Transport) []error {
		l, addresses := listenerOf(t)
		return ranktest.OnAll(len(want), func(r int) error {
			o := Options{Transport: want[r], Control: testControl()}
			if r == 0 {
				o.Control.Listener = l
			}
			x, err := Join(context.Background(), nil, worldOf(r, len(want), addresses), o)
			if err == nil {
				defer x.Close()
				_, err = x.Gather(context.Background(), nil) // so that none leaves early
			}
			return err
		})
	}
	for _, err := range join(TransportNCCL, TransportNCCL) {
		var e *parallel.RankError
		require.ErrorAs(t, err, &e)
		require.ErrorContains(t, err, "NCCL needs a GPU")
	}
	for _, err := range join(TransportTCP, TransportTCP, TransportNCCL) {
		ranktest.Named(t, err, 2, parallel.ErrMismatch)
	}
	for _, err := range join(TransportNCCL, TransportTCP) { // and rank 0 has no GPU; all ranks return the same error
		ranktest.Named(t, err, 1, parallel.ErrMismatch)
	}
	for _, err := range join(TransportAuto, TransportAuto) {
		require.NoError(t, err)
	}
	_, err := Join(context.Background(), nil, worldOf(0, 1, nil), Options{Transport: 9})
	require.ErrorIs(t, err, attention.ErrInvalid)
	_, err = Device(-1)
	require.ErrorIs(t, err, attention.ErrInvalid)
	_, err = Device(1 << 20)
	require.ErrorIs(t, err, vk.ErrNoDevice)
}

// A communicator of the caller brings its ranks together, moves their messages and stays the
// caller's.
func TestCommunicatorOfTheCaller(t *testing.T) {
	testlevel.HostOnly(t)
	const n = 3
	fake := useFake(t)
	id, err := nccl.NewID()
	require.NoError(t, err)
	for r, err := range ranktest.OnAll(n, func(r int) error {
		own, err := nccl.Join(context.Background(), 0, id, r, n)
		if err != nil {
			return err
		}
		defer own.Close()
		c, err := nccl.Wrap(fake.comm(int32(r)), 0)
		if err != nil {
			return err
		}
		q := &fakeQueue{fakeNCCL: fake, id: uint64(r + 1)}
		o := Options{Control: testControl()}
		x, err := wrap(context.Background(), c, q, &o, func(mine []byte) ([]byte, error) {
			all := make([]byte, n*len(mine))
			at := func(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }
			err := c.AllGather(context.Background(), q.id, at(mine), at(all), uint64(len(mine)))
			return all, errors.Join(err, q.drain(context.Background()))
		})
		if err != nil {
			return err
		}
		g, err := group(x, o)
		if err != nil {
			return err
		}
		if err := exchangeAll(context.Background(), x, 1000); err != nil {
			return err
		}
		if err := errors.Join(g.Barrier(context.Background()), g.Close()); err != nil {
			return err
		}
		return own.Err() // it is not aborted
	}) {
		require.NoError(t, err, "rank %d", r)
	}
	_, err = FromComm(context.Background(), nil, 1, Options{})
	require.ErrorIs(t, err, vk.ErrUnsupported)
}

// Ranks that reach rank 0 by another address than the first one reach its transport there too.
func TestSecondAddressOfRank0(t *testing.T) {
	testlevel.HostOnly(t)
	l, addresses := listenerOf(t)
	for r, err := range ranktest.OnAll(2, func(r int) error {
		o := Options{Transport: TransportTCP, Control: testControl()}
		w := worldOf(r, 2, append([]string{"no such host:1"}, addresses...))
		if r == 0 {
			o.Control.Listener = l
		}
		x, err := Join(context.Background(), nil, w, o)
		if err != nil {
			return err
		}
		defer x.Close()
		err = exchangeAll(context.Background(), x, 100)
		_, gathered := x.Gather(context.Background(), nil) // so that none leaves early
		return errors.Join(err, gathered)
	}) {
		require.NoError(t, err, "rank %d", r)
	}
}

// A rank whose process lives but does not finish joining is named on the others, within the time to join.
func TestARankThatDoesNotFinishJoining(t *testing.T) {
	testlevel.HostOnly(t)
	const n, bad = 2, 1
	fake := useFake(t)
	id, err := nccl.NewID()
	require.NoError(t, err)
	addresses := make(chan []byte, 1)
	waits := ranktest.NewWaits(2)
	late, joined := waits.Context(true), func() { waits.Context(true).Done() } // rank 0's time to join ends then
	for _, err := range ranktest.OnAll(n, func(r int) error {
		c, err := nccl.Join(context.Background(), 0, id, r, n)
		if err != nil {
			return err
		}
		defer c.Close()
		o := Options{Control: testControl()}
		if r == bad {
			ch, err := control.Join(context.Background(), worldOf(r, n, decodeAddresses(<-addresses)), o.Control)
			if err != nil {
				return err
			}
			defer ch.Close()
			joined()
			<-ch.Ended()
			ranktest.Named(t, ch.Err(), bad, parallel.ErrTimeout)
			return nil
		}
		q := &fakeQueue{fakeNCCL: fake, id: uint64(r + 1)}
		_, err = wrap(late, c, q, &o, func(mine []byte) ([]byte, error) {
			addresses <- bytes.Clone(mine)
			return mine, nil
		})
		ranktest.Named(t, err, bad, parallel.ErrTimeout)
		require.True(t, q.closed)
		return nil
	}) {
		require.NoError(t, err)
	}
}

// FromEnvironment makes a Group of the variables of a launcher.
func TestFromEnvironment(t *testing.T) {
	testlevel.HostOnly(t)
	for _, name := range []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"} {
		t.Setenv(name, "")
		require.NoError(t, os.Unsetenv(name))
	}
	_, err := FromEnvironment(context.Background(), nil, Options{})
	require.ErrorIs(t, err, vk.ErrUnsupported)
	t.Setenv("RANK", "0")
	t.Setenv("WORLD_SIZE", "1")
	g, err := FromEnvironment(context.Background(), nil, Options{})
	require.NoError(t, err)
	require.NoError(t, g.Barrier(context.Background()))
	require.NoError(t, g.Close())
	t.Setenv("WORLD_SIZE", "0")
	_, err = FromEnvironment(context.Background(), nil, Options{})
	require.ErrorIs(t, err, attention.ErrInvalid)
}
