package control

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
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

// Frames between rank 0 and the other ranks: a kind of one byte, the length of the payload in
// four bytes, the payload.

type frameKind uint8

const (
	framePing     frameKind = iota
	frameHello              // rank to hub: magic, version, ranks, rank
	frameWelcome            // hub to rank: all ranks have joined
	frameGather             // rank to hub: its part
	frameGathered           // hub to ranks: the parts of all
	frameReport             // rank to hub: its wait for a peer has timed out
	frameQuery              // hub to ranks: what do you wait for?
	frameState              // rank to hub: the answer
	frameAbort              // either way: the world has ended, and why
	frameBye                // rank to hub: it leaves, with its state
	frameLeft               // hub to ranks: a rank has left, with its state
)

const (
	magic      = "vkattn/r"
	version    = 2
	headerSize = 5
	maxPart    = 64 << 10                          // of a Gather
	maxPayload = parallel.MaxRanks * (maxPart + 4) // of a frame
	maxHello   = len(magic) + 3*4                  // until the peer is known to be a rank
	maxText    = 1 << 10                           // of a reason
	maxCause   = 64 + 6*maxText                    // of a cause: JSON takes up to six bytes for one of its text
)

func encodeFrame(kind frameKind, payload []byte) []byte {
	b := make([]byte, 0, headerSize+len(payload))
	b = append(b, byte(kind))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// readFrame reads a frame whose payload has at most some bytes.
func readFrame(r io.Reader, most int) (frameKind, []byte, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(head[1:])
	if uint64(n) > uint64(most) {
		return 0, nil, fmt.Errorf("%w: a frame of %d bytes, at most %d are allowed", parallel.ErrMismatch, n, most)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, err
	}
	return frameKind(head[0]), payload, nil
}

func encodeHello(w *World) []byte {
	b := append([]byte(nil), magic...)
	for _, x := range []int{version, w.Ranks, w.Rank} {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return b
}

// parts are the byte strings of all ranks, each after its length.
func encodeParts(parts [][]byte) (b []byte) {
	for _, p := range parts {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return b
}

func decodeParts(b []byte, n int) ([][]byte, bool) {
	parts := make([][]byte, n)
	for i := range parts {
		if len(b) < 4 {
			return nil, false
		}
		size := uint64(binary.LittleEndian.Uint32(b))
		b = b[4:]
		if uint64(len(b)) < size {
			return nil, false
		}
		parts[i], b = b[:size:size], b[size:]
	}
	return parts, len(b) == 0
}

// reasons are the sentinels that errors on the other ranks match.
var reasons = []error{parallel.ErrFailed, parallel.ErrTimeout, parallel.ErrLeft, parallel.ErrMismatch, context.Canceled}

// reason is the reason of another rank's error, as that rank prints it.
type reason struct {
	text     string
	sentinel error
}

func (r *reason) Error() string { return r.text }
func (r *reason) Unwrap() error { return r.sentinel }

// sentCause is a cause as it is sent, in JSON.
type sentCause struct {
	Rank, Reason int // of reasons
	Text         string
}

func encodeCause(e *parallel.RankError) []byte {
	x := sentCause{Rank: e.Rank, Text: textOf(e)}
	for i, sentinel := range reasons {
		if errors.Is(e.Err, sentinel) {
			x.Reason = i
		}
	}
	return encodeJSON(x)
}

// textOf is the reason of an error as it is sent: whole characters, at most maxText bytes.
func textOf(e *parallel.RankError) string {
	if e.Err == nil {
		return parallel.ErrFailed.Error()
	}
	text := e.Err.Error()
	return strings.ToValidUTF8(text[:min(len(text), maxText)], "")
}

func decodeCause(b []byte, ranks int) (*parallel.RankError, bool) {
	var x sentCause
	if json.Unmarshal(b, &x) != nil || x.Rank < 0 || x.Rank >= ranks || x.Reason < 0 || x.Reason >= len(reasons) {
		return nil, false
	}
	sentinel := reasons[x.Reason]
	if x.Text == sentinel.Error() {
		return &parallel.RankError{Rank: x.Rank, Err: sentinel}, true
	}
	return &parallel.RankError{Rank: x.Rank, Err: &reason{x.Text, sentinel}}, true
}

// encodeJSON encodes a value of this package, all of which JSON has.
func encodeJSON(x any) []byte {
	b, _ := json.Marshal(x)
	return b
}
