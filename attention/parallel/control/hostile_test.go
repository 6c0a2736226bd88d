package control

import (
	"context"
	"math"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/attention/parallel/internal/ranktest"
	"vkattn/internal/testlevel"
)

// A rank that sends frames of a wrong form is named on every rank, not rank 0, which would relay them.
func TestFramesOfAWrongForm(t *testing.T) {
	testlevel.HostOnly(t)
	long := &state{posted: map[int]posted{}}
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
	}
}

// A wait that begins after Close ends at once: nothing would end it later.
func TestAwaitAfterClose(t *testing.T) {
	testlevel.HostOnly(t)
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
}

// A Post that is refused counts no message.
func TestPostThatIsRefused(t *testing.T) {
	testlevel.HostOnly(t)
	c := joined(t, 2)[0]
	_, err := c.Post([]int{1}, []int{1, 2})
	require.ErrorIs(t, err, attention.ErrInvalid)
	require.Empty(t, c.posted)
}

// The longest time to join is no time that is over.
func TestJoinWithoutALimit(t *testing.T) {
	testlevel.HostOnly(t)
	l, addresses := listener(t)
	for r, err := range ranktest.OnAll(2, func(r int) error {
		o := Options{Timeout: timeout, Join: math.MaxInt64}
		if r == 0 {
			o.Listener = l
			time.Sleep(timeout / 4) // rank 1 waits for the others
		}
		c, err := Join(context.Background(), World{Rank: r, Ranks: 2, Addresses: addresses}, o)
		if err != nil {
			return err
		}
		_, err = c.Gather(context.Background(), nil)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return err
	}) {
		require.NoError(t, err, "rank %d", r)
	}
}

// A connection that says nothing holds up no Join that ends.
func TestSilentConnectionsAtTheEnd(t *testing.T) {
	testlevel.HostOnly(t)
	// The end comes at any point of a greeting.
	for i := range 1000 {
		l, addresses := listener(t)
		ctx, cancel := context.WithCancel(context.Background())
		stranger, err := net.Dial("tcp", addresses[0])
		require.NoError(t, err)
		time.AfterFunc(time.Duration(i)*time.Microsecond, cancel)
		begin := time.Now()
		require.Error(t, admit(ctx, l, &World{Ranks: 2}, make([]net.Conn, 2)))
		require.Less(t, time.Since(begin), patience/2)
		stranger.Close()
	}
}
