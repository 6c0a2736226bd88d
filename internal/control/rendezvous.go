package control

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"vkattn/attention/parallel"
	"vkattn/internal/errs"
)

// Defaults of Options.
const (
	DefaultTimeout = 10 * time.Second
	DefaultJoin    = 5 * time.Minute
)

// Options are the options of Join.
type Options struct {
	// Timeout is how long a rank may be silent, the same on every rank. Its process sends
	// heartbeats while it computes, so this does not bound a computation. 0: DefaultTimeout.
	Timeout time.Duration
	// Join bounds the time from the first rank's Join to the last one's. 0: DefaultJoin.
	Join time.Duration
	// Listener replaces the one that rank 0 opens. Join closes it.
	Listener net.Listener

	dialer dialer // of tests, whose network is in memory; nil: a net.Dialer
}

// dialer is what Join needs of a net.Dialer.
type dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// grace is how long rank 0 waits for the answers to an inquiry. A longer Timeout, for busy machines, makes
// it longer.
func (o *Options) grace() time.Duration { return max(min(o.Timeout/2, time.Second), o.Timeout/10) }

func (o *Options) defaults() error {
	if o.Timeout < 0 || o.Join < 0 {
		return errs.Invalid("control: a timeout of %v, to join %v", o.Timeout, o.Join)
	}
	o.Timeout, o.Join = cmp.Or(o.Timeout, DefaultTimeout), cmp.Or(o.Join, DefaultJoin)
	return nil
}

// Join brings the ranks of a world together and returns this rank's Channel, which the caller closes.
// It returns when all ranks have joined. A rank that does not join, or that disagrees on the
// number of ranks, is named by the error of every rank.
func Join(ctx context.Context, w World, o Options) (*Channel, error) {
	if o.Listener != nil {
		defer o.Listener.Close()
	}
	if err := w.check(); err != nil {
		return nil, err
	}
	if err := o.defaults(); err != nil {
		return nil, err
	}
	if len(w.Addresses) == 0 && w.Ranks > 1 && (w.Rank > 0 || o.Listener == nil) {
		return nil, errs.Invalid("control: no address of rank 0")
	}
	if ctx == nil {
		ctx = context.Background()
	}
	bounded, cancel := context.WithTimeout(ctx, o.Join)
	defer cancel()
	if w.Rank == 0 {
		return lead(bounded, &w, &o)
	}
	conn, err := dial(bounded, o.dialer, w.Addresses)
	if err != nil {
		return nil, late(bounded, &w, err)
	}
	// Rank 0 is there and gives up after Options.Join. It knows who is missing.
	bounded, cancelWait := context.WithTimeout(ctx, max(o.Join, o.Join+o.grace())) // the sum may overflow
	defer cancelWait()
	return follow(bounded, conn, &w, &o)
}

// lead is Join of rank 0.
func lead(ctx context.Context, w *World, o *Options) (*Channel, error) {
	conns := make([]net.Conn, w.Ranks)
	if w.Ranks > 1 {
		l := o.Listener
		if l == nil {
			var err error
			if l, err = listen(w.Addresses[0]); err != nil {
				return nil, err
			}
			defer l.Close()
		}
		if err := admit(ctx, l, w, conns); err != nil {
			var cause *parallel.RankError
			if !errors.As(err, &cause) {
				cause = &parallel.RankError{Rank: 0, Err: err}
			}
			for _, conn := range conns {
				if conn != nil {
					refuse(conn, cause)
				}
			}
			return nil, err
		}
	}
	h := newHub(w.Ranks, o.grace())
	c := newChannel(w, o)
	own, other := net.Pipe()
	conns[0] = other
	h.mu.Lock() // until all links are there
	for r, conn := range conns {
		h.links[r] = newLink(conn, o.Timeout, func(kind frameKind, payload []byte) { h.handle(r, kind, payload) },
			func(err error) { h.gone(r, err) })
		if r > 0 {
			h.links[r].send(frameWelcome, nil)
		}
	}
	h.mu.Unlock()
	c.hub = h
	c.start(own, o)
	return c, nil
}

// start starts the link to rank 0.
func (c *Channel) start(conn net.Conn, o *Options) {
	c.mu.Lock() // until the link is there
	defer c.mu.Unlock()
	c.link = newLink(conn, o.Timeout, c.handle, c.gone)
}

// listen listens on an address, or on its port if the address is not of this host, or other hosts know
// another one.
func listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	host, port, split := net.SplitHostPort(address)
	switch {
	case split != nil:
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		l, err = net.Listen("tcp", ":"+port)
	case err == nil && ownName(host, l.Addr()):
		_ = l.Close()
		l, err = net.Listen("tcp", ":"+port)
	}
	if err != nil {
		return nil, fmt.Errorf("control: rank 0 cannot listen: %w", err)
	}
	return l, nil
}

// ownName reports whether host is a name for which this host listens on a loopback address. Debian's
// /etc/hosts has the host's own name as 127.0.1.1, and other hosts resolve it to another address.
func ownName(host string, a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback() && net.ParseIP(host) == nil && !strings.Contains(host, "localhost")
}

// admission is a rank, or what was wrong with its world.
type admission struct {
	conn net.Conn
	rank int
	err  *parallel.RankError
}

// Accept greets each connection of a listener on its own, so that one which says nothing holds up no other.
// A connection that greet accepts within the given time arrives; the others are closed. After an error of
// the listener, which fails then, nothing arrives any more. end closes the listener and waits for all of that.
func Accept[T any](ctx context.Context, l net.Listener, within time.Duration,
	greet func(net.Conn) (T, bool)) (arrived <-chan T, failed <-chan error, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	arrivals, failures := make(chan T), make(chan error, 1)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
					failures <- err
				}
				return
			}
			all.Go(func() {
				_ = conn.SetDeadline(time.Now().Add(within)) // first, so that it replaces none of the context's
				stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
				x, ok := greet(conn)
				_ = conn.SetDeadline(time.Time{})
				if !stop() || !ok {
					conn.Close()
					return
				}
				select {
				case arrivals <- x:
				case <-ctx.Done():
					conn.Close()
				}
			})
		}
	})
	return arrivals, failures, func() { cancel(); l.Close(); all.Wait() }
}

// admit accepts the connections of all other ranks.
func admit(ctx context.Context, l net.Listener, w *World, conns []net.Conn) error {
	arrived, failed, end := Accept(ctx, l, patience, func(conn net.Conn) (admission, bool) { return greet(conn, w) })
	defer end()
	for missing := w.Ranks - 1; missing > 0; {
		select {
		case a := <-arrived:
			switch {
			case a.err != nil:
				refuse(a.conn, a.err)
				return a.err
			case conns[a.rank] != nil:
				refuse(a.conn, &parallel.RankError{Rank: a.rank, Err: fmt.Errorf("%w: this rank has joined already", parallel.ErrMismatch)})
			default:
				conns[a.rank] = a.conn
				missing--
			}
		case err := <-failed:
			return fmt.Errorf("control: rank 0 cannot accept: %w", err)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return &parallel.RankError{Rank: 0, Err: context.Canceled}
			}
			for r := 1; r < w.Ranks; r++ {
				if conns[r] == nil {
					return &parallel.RankError{Rank: r, Err: fmt.Errorf("%w: it did not join", parallel.ErrTimeout)}
				}
			}
		}
	}
	return nil
}

// patience is how long a connection may take to say who it is.
const patience = 5 * time.Second

// greet reads the hello of a connection. ok is false for a stranger.
func greet(conn net.Conn, w *World) (a admission, ok bool) {
	kind, b, err := readFrame(conn, maxHello)
	if err != nil || kind != frameHello || len(b) != maxHello || string(b[:len(magic)]) != magic {
		_, _ = conn.Write([]byte("control: this port takes ranks of vkattn only\n"))
		return a, false
	}
	field := func(i int) int { return int(binary.LittleEndian.Uint32(b[len(magic)+4*i:])) }
	a = admission{conn: conn, rank: field(2)}
	wrong := func(format string, args ...any) {
		a.err = &parallel.RankError{Rank: min(a.rank, parallel.MaxRanks),
			Err: fmt.Errorf("%w: %s", parallel.ErrMismatch, fmt.Sprintf(format, args...))}
	}
	switch {
	case field(0) != version:
		wrong("protocol %d, rank 0 has %d", field(0), version)
	case field(1) != w.Ranks:
		wrong("a world of %d ranks, rank 0 has %d", field(1), w.Ranks)
	case a.rank < 1 || a.rank >= w.Ranks:
		wrong("no such rank in a world of %d", w.Ranks)
	}
	return a, true
}

// refuse tells a rank why it cannot join.
func refuse(conn net.Conn, cause *parallel.RankError) {
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, _ = conn.Write(encodeFrame(frameAbort, encodeCause(cause)))
	conn.Close()
}

// late is the error of a rank whose Join has taken too long.
func late(ctx context.Context, w *World, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return &parallel.RankError{Rank: w.Rank, Err: context.Canceled}
	}
	return &parallel.RankError{Rank: 0, Err: fmt.Errorf("%w: %w", parallel.ErrTimeout, err)}
}

// follow is Join of the other ranks, connected to rank 0.
func follow(ctx context.Context, conn net.Conn, w *World, o *Options) (*Channel, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	_, err := conn.Write(encodeFrame(frameHello, encodeHello(w)))
	var kind frameKind
	var payload []byte
	if err == nil {
		kind, payload, err = readFrame(conn, maxCause)
	}
	stopped := stop()
	switch {
	case err == nil && kind == frameWelcome && stopped:
		c := newChannel(w, o)
		c.start(conn, o)
		return c, nil
	case err == nil && kind == frameAbort:
		if cause, ok := decodeCause(payload, parallel.MaxRanks+1); ok {
			err = cause
			break
		}
		fallthrough
	case err == nil && stopped, errors.Is(err, parallel.ErrMismatch):
		err = &parallel.RankError{Rank: 0, Err: fmt.Errorf("%w: %s is not rank 0 of vkattn", parallel.ErrMismatch, conn.RemoteAddr())}
	case !stopped:
		err = late(ctx, w, errors.New("not all ranks have joined"))
	default:
		err = &parallel.RankError{Rank: 0, Err: fmt.Errorf("%w: %w", parallel.ErrLeft, err)}
	}
	conn.Close()
	return nil, err
}

// dial connects to rank 0, which may not listen yet.
func dial(ctx context.Context, d dialer, addresses []string) (net.Conn, error) {
	const longest, attempt = time.Second, 3 * time.Second
	if d == nil {
		d = &net.Dialer{Timeout: attempt}
	}
	var last error
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, longest) {
		for _, address := range addresses {
			conn, err := d.DialContext(ctx, "tcp", address)
			if err == nil {
				return conn, nil
			}
			if ctx.Err() == nil || last == nil {
				last = err
			}
		}
		select {
		case <-ctx.Done():
			return nil, last
		case <-time.After(pause):
		}
	}
}
