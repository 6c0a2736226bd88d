package cudapath

import (
	"errors"
	"time"

	"vkattn/vk"
)

// link is the CUDA side of a Vulkan stream: a CUDA stream that takes turns with it.
type link struct {
	stream    *Stream
	semaphore *Semaphore // the timeline that both signal

	workspace *Memory   // of backward, latent and decode kernels, behind counterBytes; nil: none yet
	zeroed    bool      // the counters of decode kernels, in front of it, are 0, as these leave them
	retired   []*Memory // smaller ones, which unfinished work may use

	closed bool
}

// Turn starts a turn of CUDA in a Vulkan stream and returns its CUDA stream. It submits the
// work recorded in s. The work of the CUDA stream runs after it, and before what is
// recorded in s later. Nothing waits on the host. keep is held until CUDA has finished:
// pass the buffers whose Address is used. Stream.Wait, Submit and Download of s cover
// CUDA's work. The turn ends with the next use of s; call Turn again for the next one.
//
// Turn always returns the same CUDA stream for s, which is closed with s.
func (c *Context) Turn(s *vk.Stream, keep ...vk.Resource) (*Stream, error) {
	if c == nil || c.lib == nil {
		return nil, unmade("Turn")
	}
	if s == nil || c.dev == nil || s.Device() != c.dev {
		return nil, invalid("Turn", "no stream of the context's device")
	}
	l, err := c.link(s)
	if err != nil {
		return nil, err
	}
	if err := s.HandOver(keep...); err != nil {
		return nil, err
	}
	return l.stream, nil
}

// link returns the CUDA side of a stream and creates it if needed.
func (c *Context) link(s *vk.Stream) (*link, error) {
	if l, ok := s.Peer().(*link); ok {
		return l, nil
	}
	err := s.SetPeer(func(shared *vk.Timeline) (vk.Peer, error) { return c.newLink(shared) })
	if err != nil {
		return nil, err
	}
	return s.Peer().(*link), nil
}

func (c *Context) newLink(shared *vk.Timeline) (*link, error) {
	const op = "Turn"
	t, err := c.importTimeline(op, shared)
	if err != nil {
		return nil, err
	}
	if err := c.enter(op); err != nil {
		_ = t.Close()
		return nil, err
	}
	s, err := c.newStream()
	c.leave()
	if err != nil {
		_ = t.Close()
		return nil, err
	}
	s.shared = true
	return &link{stream: s, semaphore: t}, nil
}

// scratch returns the address of memory for the stream's next work, which runs after all
// that uses the same memory now. It does not wait: a workspace that is too small stays until
// a call finds the stream idle, or the stream is closed. An idle stream gives it back before a
// larger one is allocated, as both may have gigabytes.
func (l *link) scratch(bytes uint64) (uint64, error) {
	bytes += counterBytes
	enough, idle := l.workspace != nil && l.workspace.Size() >= bytes, false
	if len(l.retired) > 0 || l.workspace != nil && !enough {
		var err error
		if idle, err = l.stream.poll("Launch", 0); err != nil {
			return 0, err
		}
	}
	if idle {
		l.release()
	}
	if enough {
		return l.workspace.Address() + counterBytes, nil
	}
	if idle {
		_ = l.workspace.Close()
		l.workspace = nil
	}
	m, err := l.stream.c.Alloc(max(bytes+bytes/4, 2<<20)) // the driver rounds up to 2 MiB
	if errors.Is(err, vk.ErrOutOfMemory) {
		m, err = l.stream.c.Alloc(bytes)
	}
	if err != nil {
		return 0, err
	}
	if l.workspace != nil {
		l.retired = append(l.retired, l.workspace)
	}
	l.workspace, l.zeroed = m, false
	return m.Address() + counterBytes, nil
}

// release closes the retired workspaces.
func (l *link) release() {
	for _, m := range l.retired {
		_ = m.Close()
	}
	l.retired = nil
}

// WaitFor, SignalTo, Poll and Close implement vk.Peer.
func (l *link) WaitFor(value uint64) error { return l.stream.WaitFor(l.semaphore, value) }

func (l *link) SignalTo(value uint64) error { return l.stream.SignalTo(l.semaphore, value) }

func (l *link) Poll(atMost time.Duration) (done bool, err error) {
	return l.stream.poll("Poll", atMost)
}

func (l *link) Close() {
	if l.closed {
		return
	}
	l.closed = true
	if l.stream.c.dev.Lost() {
		return // CUDA may wait for what the lost device will not signal
	}
	l.stream.close()
	_ = l.semaphore.Close()
	l.release()
	if l.workspace != nil {
		_ = l.workspace.Close()
	}
}
