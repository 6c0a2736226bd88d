// Package ranktest has what tests of several ranks in one process share.
package ranktest

import (
	"context"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention/parallel"
)

// NoLeak fails if goroutines are left at the end of a test.
func NoLeak(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for end := time.Now().Add(2 * time.Minute); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
			require.True(t, time.Now().Before(end), "%d goroutines, before the test %d", runtime.NumGoroutine(), before)
		}
	})
}

// OnAll runs work for n ranks at once and returns their errors.
func OnAll(n int, work func(r int) error) []error {
	list := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { list[r] = work(r) })
	}
	wg.Wait()
	return list
}

// Named checks that an error names a rank, matches a reason and is one line.
func Named(t *testing.T, err error, rank int, want error) {
	t.Helper()
	var e *parallel.RankError
	require.ErrorAs(t, err, &e)
	require.Equal(t, rank, e.Rank, "%v", err)
	require.ErrorIs(t, err, want)
	require.NotContains(t, err.Error(), "\n")
}

// Network is a listener in memory, for bubbles of synctest, and connects with it.
type Network struct {
	// Greeting, if given, is called once as a connection that was accepted gets its first deadline, before it takes effect.
	Greeting func()

	arriving chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

// NewNetwork is one that nobody uses yet.
func NewNetwork() *Network {
	return &Network{arriving: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (n *Network) Accept() (net.Conn, error) {
	select {
	case c := <-n.arriving:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (n *Network) Close() error {
	n.once.Do(func() { close(n.closed) })
	return nil
}

// Addr implements net.Listener.
func (n *Network) Addr() net.Addr { return &net.UnixAddr{} }

// DialContext connects with the listener.
func (n *Network) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	mine, theirs := net.Pipe()
	select {
	case n.arriving <- &Conn{Conn: theirs, greeting: n.Greeting}:
		return &Conn{Conn: mine}, nil
	case <-n.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Conn is an end of a connection. It sends nothing while its process is stopped.
type Conn struct {
	net.Conn
	until    atomic.Pointer[time.Time]
	greeting func()
	greeted  atomic.Bool
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	if !c.greeted.Swap(true) && c.greeting != nil {
		c.greeting()
	}
	return c.Conn.SetDeadline(t)
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	if until := c.until.Load(); until != nil {
		time.Sleep(time.Until(*until))
	}
	return c.Conn.Write(b)
}

// Stop stops the process of this end for some time.
func (c *Conn) Stop(d time.Duration) {
	until := time.Now().Add(d)
	c.until.Store(&until)
}

// Waits has contexts of ranks that tell when all of these ranks wait: for their end, which a wait looks at
// when its messages are on their way.
type Waits struct {
	left atomic.Int32
	all  chan struct{}
}

// NewWaits is for n ranks, which take a Context each.
func NewWaits(n int) *Waits {
	w := &Waits{all: make(chan struct{})}
	w.left.Store(int32(n))
	return w
}

// All is closed when all ranks wait.
func (w *Waits) All() <-chan struct{} { return w.all }

// Context is a rank's. If it ends, its deadline is over when all ranks wait.
func (w *Waits) Context(ends bool) context.Context { return &waiting{w: w, ends: ends} }

type waiting struct {
	w    *Waits
	ends bool
	once sync.Once
}

func (c *waiting) Done() <-chan struct{} {
	c.once.Do(func() {
		if c.w.left.Add(-1) == 0 {
			close(c.w.all)
		}
	})
	if !c.ends {
		return nil
	}
	return c.w.all
}

func (c *waiting) Err() error {
	if c.ends {
		select {
		case <-c.w.all:
			return context.DeadlineExceeded
		default:
		}
	}
	return nil
}

func (c *waiting) Deadline() (time.Time, bool) { return time.Time{}, false }
func (c *waiting) Value(any) any               { return nil }
