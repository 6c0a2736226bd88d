package ranktest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

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
