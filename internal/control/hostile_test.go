package control

import (
	"context"
	"math"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/internal/ranktest"
	"vkattn/internal/testlevel"
)

// A rank that sends frames of a wrong form is named on every rank, not rank 0, which would relay them.
func TestFramesOfAWrongForm(t *testing.T) {
	long := &state{Posted: map[int]posted{}}
	for name, x := range map[string]struct {
		kind    frameKind
		payload []byte
	}{
		"a part that is too long":    {frameGather, make([]byte, maxPart+1)},
		"a farewell without a state": {frameBye, []byte{9}},
		"a state of another size":    {frameState, append(long.encode(), 0)},
		"a report without a rank":    {frameReport, nil},
		"a frame of rank 0":          {frameGathered, nil},
		"no kind":                    {200, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				list := joined(t, 3)
				_, err := list[2].link.conn.Write(encodeFrame(x.kind, x.payload))
				require.NoError(t, err)
				for r, c := range list {
					select {
					case <-c.Ended():
					case <-time.After(5 * timeout):
						t.Fatalf("rank %d goes on", r)
					}
					ranktest.Named(t, c.Err(), 2, parallel.ErrMismatch)
				}
			})
		})
	}
}

// A wait that begins after Close ends at once: nothing would end it later.
func TestAwaitAfterClose(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		list := joined(t, 2)
		m, err := list[1].Post(nil, []int{0})
		require.NoError(t, err)
		require.NoError(t, list[1].Close())
		m.Await()
		defer m.Done()
		select {
		case <-list[1].Ended():
		case <-time.After(5 * timeout):
			t.Fatal("the wait goes on")
		}
		ranktest.Named(t, list[1].Err(), 1, parallel.ErrLeft)
	})
}

// A Post that is refused counts no message.
func TestPostThatIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := joined(t, 2)[0]
		_, err := c.Post([]int{1}, []int{1, 2})
		require.ErrorIs(t, err, attention.ErrInvalid)
		require.Empty(t, c.posted)
	})
}

// The longest time to join is no time that is over.
func TestJoinWithoutALimit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		l := ranktest.NewNetwork()
		for r, err := range ranktest.OnAll(2, func(r int) error {
			if r == 0 {
				time.Sleep(timeout / 4) // rank 1 waits for the others
			}
			c, err := Join(context.Background(), world(r, 2), options(l, r, math.MaxInt64))
			if err != nil {
				return err
			}
			_, err = c.Gather(context.Background(), nil)
			t.Cleanup(func() { require.NoError(t, c.Close()) })
			return err
		}) {
			require.NoError(t, err, "rank %d", r)
		}
	})
}

// A connection that says nothing holds up no Join that ends, also if it ends as the greeting begins.
func TestSilentConnectionsAtTheEnd(t *testing.T) {
	for _, greeting := range []bool{true, false} {
		inBubble(t, func(t *testing.T) {
			l := ranktest.NewNetwork()
			ctx, cancel := context.WithCancel(context.Background())
			if greeting {
				l.Greeting = func() { cancel(); time.Sleep(time.Nanosecond) } // what follows the end has happened then
			} else {
				time.AfterFunc(time.Second, cancel)
			}
			var stranger net.Conn
			go func() { stranger, _ = l.DialContext(context.Background(), "", "") }()
			begin := time.Now()
			require.Error(t, admit(ctx, l, &World{Ranks: 2}, make([]net.Conn, 2)))
			require.LessOrEqual(t, time.Since(begin), time.Second)
			synctest.Wait() // for the goroutine that dials
			stranger.Close()
		})
	}
}

// Frames of any bytes, from any rank, in any order, end the world at most, and name a rank.
func TestFramesOfAnyBytes(t *testing.T) {
	testlevel.HostOnly(t)
	type frame struct {
		kind    frameKind
		payload []byte
	}
	check := func(t *rapid.T) {
		const ranks = 3
		h := newHub(ranks, time.Hour)
		var ends []net.Conn
		aborted := make(chan []byte, 2*ranks)
		for r := range ranks {
			own, other := net.Pipe()
			ends = append(ends, other)
			h.links[r] = newLink(own, time.Hour, func(frameKind, []byte) {}, func(error) {})
			go func() {
				for {
					kind, payload, err := readFrame(other, maxPayload)
					if err != nil {
						return
					}
					if kind == frameAbort {
						aborted <- payload
					}
				}
			}()
		}
		waiting := func(peer int, posts map[int]posted) []byte {
			return (&state{Activity: waits, Awaited: []awaited{{peer, true, 3}}, Posted: posts}).encode()
		}
		known := []frame{{frameGather, nil}, {frameReport, encodeCause(&parallel.RankError{Rank: 1, Err: parallel.ErrTimeout})},
			{frameReport, encodeCause(&parallel.RankError{Rank: ranks, Err: parallel.ErrTimeout})}, {frameState, (&state{}).encode()}, {frameState, waiting(2, nil)},
			{frameState, waiting(1, map[int]posted{9: {3, 4}})}, {frameState, waiting(ranks, nil)}, {frameBye, waiting(0, nil)}}
		frames := rapid.OneOf(rapid.SampledFrom(known), rapid.SampledFrom(known), rapid.SampledFrom(known), rapid.Custom(func(t *rapid.T) frame {
			return frame{frameKind(rapid.Byte().Draw(t, "kind")), rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "payload")}
		}))
		c := newChannel(&World{Rank: 1, Ranks: ranks}, &Options{Timeout: time.Second})
		c.link = h.links[1]
		for range rapid.IntRange(1, 30).Draw(t, "frames") {
			x := frames.Draw(t, "frame")
			h.handle(rapid.IntRange(0, ranks-1).Draw(t, "rank"), x.kind, x.payload)
			c.handle(x.kind, x.payload)
		}
		h.close(0)
		for _, conn := range ends {
			conn.Close()
		}
		if h.ended && len(aborted) > 0 {
			if _, ok := decodeCause(<-aborted, ranks); !ok {
				t.Fatal("the cause is no cause")
			}
		}
		if cause := c.Err(); cause != nil && (cause.Rank < 0 || cause.Rank >= ranks) {
			t.Fatalf("rank %d", cause.Rank)
		}
	}
	for range 20 { // a case takes some 200 us
		rapid.Check(t, check)
	}
}
