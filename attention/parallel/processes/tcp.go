package processes

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"vkattn/attention/parallel"
	"vkattn/internal/control"
	"vkattn/vk"
)

// A connection for each pair of ranks. A message is its length in eight bytes, then its bytes.

// tokenSize is the size of the number by which a listener recognizes ranks.
const tokenSize = 16

// listening is the socket at which a rank expects the ranks above it.
type listening struct {
	net.Listener
	token [tokenSize]byte
}

// listen opens the socket of this rank.
func listen() (*listening, error) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return nil, fmt.Errorf("processes: %w", err)
	}
	x := &listening{Listener: l}
	_, err = rand.Read(x.token[:])
	return x, err
}

// port is the port of the socket.
func (l *listening) port() int { return l.Addr().(*net.TCPAddr).Port }

// endpoint is where a rank listens.
type endpoint struct {
	address string
	token   [tokenSize]byte
}

// overTCP is the Transport of a rank over TCP.
type overTCP struct {
	member
	peers   []*connection // by rank; nil for this one
	running sync.WaitGroup
}

// newTCP connects this rank with all others. It owns the Channel.
func newTCP(ctx context.Context, ch *control.Channel, l *listening, all []endpoint) (*overTCP, error) {
	t := &overTCP{member: newMember(ch), peers: make([]*connection, ch.Ranks())}
	conns, err := mesh(ctx, ch, l, all)
	if err != nil {
		return nil, err
	}
	for r, conn := range conns {
		if conn != nil {
			p := &connection{Conn: conn, rank: r, sends: newQueue[message](), receives: newQueue[message]()}
			t.peers[r] = p
			t.running.Go(func() { t.serve(p, p.sends, p.write) })
			t.running.Go(func() { t.serve(p, p.receives, p.read) })
		}
	}
	go func() {
		<-t.ctx.Done()
		for _, p := range t.peers {
			if p != nil {
				p.Close()
			}
		}
		t.running.Wait()
		close(t.stopped)
	}()
	return t, nil
}

// mesh dials the ranks below this one and accepts those above it.
func mesh(ctx context.Context, ch *control.Channel, l *listening, all []endpoint) (conns []net.Conn, err error) {
	me, ranks := ch.Rank(), ch.Ranks()
	conns = make([]net.Conn, ranks)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer l.Close()
	defer func() {
		if err != nil {
			for _, conn := range conns {
				if conn != nil {
					conn.Close()
				}
			}
		}
	}()
	d := net.Dialer{}
	for r := range me {
		conn, err := d.DialContext(ctx, "tcp", all[r].address)
		if err != nil {
			return conns, &parallel.RankError{Rank: r, Err: fmt.Errorf("%w: %w", parallel.ErrFailed, err)}
		}
		conns[r] = conn
		if _, err := conn.Write(binary.LittleEndian.AppendUint32(all[r].token[:], uint32(me))); err != nil {
			return conns, &parallel.RankError{Rank: r, Err: fmt.Errorf("%w: %w", parallel.ErrLeft, err)}
		}
	}
	return conns, l.admit(ctx, me, conns)
}

// arrival is a rank that has connected.
type arrival struct {
	net.Conn
	rank int
}

// admit accepts the ranks above this one.
func (l *listening) admit(ctx context.Context, me int, conns []net.Conn) error {
	arrived, failed, end := control.Accept(ctx, l, helloTime, func(conn net.Conn) (arrival, bool) {
		r, ok := l.greet(conn)
		return arrival{conn, r}, ok && r > me && r < len(conns) // otherwise not a rank of this world
	})
	defer end()
	for missing := len(conns) - 1 - me; missing > 0; {
		select {
		case a := <-arrived:
			if conns[a.rank] != nil {
				a.Close()
				continue
			}
			conns[a.rank] = a.Conn
			missing--
		case err := <-failed:
			return fmt.Errorf("processes: %w", err)
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("processes: %w", ctx.Err())
			}
			late := me + 1 + slices.Index(conns[me+1:], nil)
			return &parallel.RankError{Rank: late, Err: fmt.Errorf("%w: it did not connect", parallel.ErrTimeout)}
		}
	}
	return nil
}

// helloTime is how long a connection may take to say who it is. Tests raise it.
var helloTime = 5 * time.Second

// greet reads who a connection is; ok is false if it does not know the token.
func (l *listening) greet(conn net.Conn) (rank int, ok bool) {
	var hello [tokenSize + 4]byte
	_, err := io.ReadFull(conn, hello[:])
	return int(binary.LittleEndian.Uint32(hello[tokenSize:])), err == nil && [tokenSize]byte(hello[:]) == l.token
}

// connection moves messages between this rank and another one.
type connection struct {
	net.Conn
	rank            int
	sends, receives *queue[message]
}

// message is one transfer.
type message struct {
	bytes []byte
	done  chan struct{} // closed when the bytes are sent or received
}

// serve moves the messages of a queue.
func (t *overTCP) serve(p *connection, q *queue[message], move func([]byte) error) {
	for m := q.next(t.ctx.Done()); m != nil; m = q.next(t.ctx.Done()) {
		if err := move(m.bytes); err != nil {
			t.lost(p, err)
			return
		}
		close(m.done)
	}
}

func (p *connection) write(b []byte) error {
	var head [8]byte
	binary.LittleEndian.PutUint64(head[:], uint64(len(b)))
	buffers := net.Buffers{head[:], b}
	_, err := buffers.WriteTo(p.Conn)
	return err
}

func (p *connection) read(b []byte) error {
	var head [8]byte
	if _, err := io.ReadFull(p.Conn, head[:]); err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint64(head[:]); n != uint64(len(b)) {
		return fmt.Errorf("%w: a message of %d bytes where %d are expected", parallel.ErrMismatch, n, len(b))
	}
	_, err := io.ReadFull(p.Conn, b)
	return err
}

// lost ends the world after an error of a connection, unless the side channel knows a cause.
func (t *overTCP) lost(p *connection, err error) {
	if !errors.Is(err, parallel.ErrMismatch) {
		err = fmt.Errorf("%w: %w", parallel.ErrLeft, err)
	}
	select {
	case <-t.ctx.Done():
	case <-time.After(grace):
		t.ch.Abort(&parallel.RankError{Rank: p.rank, Err: err})
	}
}

// Buffers are host-visible: the processor reads and writes them.
func (t *overTCP) Buffers() vk.BufferOptions { return vk.BufferOptions{Memory: vk.Readback} }

func (t *overTCP) Exchange(sends, receives []parallel.Transfer) (parallel.Pending, error) {
	if err := parallel.CheckTransfers(t.Rank(), t.Ranks(), sends, receives); err != nil {
		return nil, err
	}
	x := &tcpExchange{t: t}
	for _, list := range [2][]parallel.Transfer{sends, receives} {
		for i := range list {
			b, err := list[i].OnHost()
			if err != nil {
				return nil, err
			}
			x.list = append(x.list, &message{bytes: b, done: make(chan struct{})})
		}
	}
	var err error
	if x.posted, err = t.ch.Post(peersOf(sends), peersOf(receives)); err != nil {
		return nil, err
	}
	for i, m := range x.list {
		if i < len(sends) {
			t.peers[sends[i].Peer].sends.add(m)
		} else {
			t.peers[receives[i-len(sends)].Peer].receives.add(m)
		}
	}
	return x, nil
}

// tcpExchange is a Pending.
type tcpExchange struct {
	t      *overTCP
	posted *control.Messages
	list   []*message
}

func (x *tcpExchange) Wait(ctx context.Context) error {
	if ctx == nil {
		ctx = context.Background()
	}
	t := x.t
	x.posted.Await()
	defer x.posted.Done()
	look := time.NewTicker(missingInterval)
	defer look.Stop()
	for _, m := range x.list {
		for waiting := true; waiting; {
			select {
			case <-m.done:
				waiting = false
			case <-look.C:
				if cause := x.posted.Missing(); cause != nil {
					t.ch.Abort(cause)
				}
			case <-ctx.Done():
				_ = t.ch.TimedOut(ctx, x.posted.Peer())
				ctx = context.Background() // the world ends
			case <-t.ctx.Done():
				<-t.stopped
				return left(t.ch)
			}
		}
	}
	return nil
}
