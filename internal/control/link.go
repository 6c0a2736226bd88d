package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"vkattn/attention/parallel"
)

// link is one end of the connection between rank 0 and a rank. It sends frames in order and a
// heartbeat when there is none, and expects one in turn.
type link struct {
	conn    net.Conn
	timeout time.Duration // silence after which the other end is gone

	mu      sync.Mutex
	queue   [][]byte
	closing bool
	wake    chan struct{} // of capacity 1
	running sync.WaitGroup
}

// beats is the number of heartbeats within the timeout.
const beats = 4

// newLink starts a link. handle gets each frame but heartbeats. gone gets the error that ended the
// reading, unless the link was closed on this side before. Both run on the link's goroutine.
func newLink(conn net.Conn, timeout time.Duration, handle func(frameKind, []byte), gone func(error)) *link {
	l := &link{conn: conn, timeout: timeout, wake: make(chan struct{}, 1)}
	l.running.Go(l.write)
	l.running.Go(func() {
		for {
			_ = conn.SetReadDeadline(time.Now().Add(timeout))
			kind, payload, err := readFrame(conn, maxPayload)
			if err != nil {
				l.mu.Lock()
				closing := l.closing
				l.mu.Unlock()
				if !closing {
					gone(err)
				}
				l.close()
				return
			}
			if kind != framePing {
				handle(kind, payload)
			}
		}
	})
	return l
}

// send queues a frame.
func (l *link) send(kind frameKind, payload []byte) { l.sendFrame(encodeFrame(kind, payload)) }

// sendFrame queues an encoded frame, which several links may send.
func (l *link) sendFrame(frame []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closing {
		l.queue = append(l.queue, frame)
		l.signal()
	}
}

func (l *link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// close sends what is queued and closes the connection.
func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
	l.signal()
}

// finish expects that the other end closes the connection, and closes it after some time if it
// does not. It returns when the link has ended.
func (l *link) finish(within time.Duration) {
	stop := time.AfterFunc(within, func() {
		l.close()
		_ = l.conn.Close() // a deadline could be replaced by that of the next frame
	})
	defer stop.Stop()
	l.running.Wait()
}

func (l *link) write() {
	defer l.conn.Close()
	heartbeat := time.NewTicker(max(l.timeout/beats, time.Millisecond))
	defer heartbeat.Stop()
	ping := encodeFrame(framePing, nil)
	for {
		l.mu.Lock()
		queue, closing := l.queue, l.closing
		l.queue = nil
		l.mu.Unlock()
		for _, b := range queue {
			if !l.put(b) {
				return
			}
		}
		if closing {
			return
		}
		select {
		case <-l.wake:
		case <-heartbeat.C:
			if !l.put(ping) {
				return
			}
		}
	}
}

// put writes a frame. The reader reports a connection that is gone.
func (l *link) put(b []byte) bool {
	_ = l.conn.SetWriteDeadline(time.Now().Add(l.timeout))
	_, err := l.conn.Write(b)
	return err == nil
}

// lost is the cause behind the end of a link to a rank.
func lost(rank int, err error) *parallel.RankError {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded): // it sends nothing
		err = parallel.ErrTimeout
	case !errors.Is(err, parallel.ErrMismatch): // otherwise it is there, and sends what is no frame
		err = fmt.Errorf("%w: its connection ended", parallel.ErrLeft)
	}
	return &parallel.RankError{Rank: rank, Err: err}
}
