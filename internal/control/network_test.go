package control

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/internal/ranktest"
	"vkattn/internal/testlevel"
)

// The tests run in bubbles of synctest, on a network in memory: the clock moves only when all ranks wait,
// so no load of the machine makes a rank late.

// timeout is the silence after which a rank is gone.
const timeout = 600 * time.Millisecond

// inBubble runs a test whose clock is synctest's. It fails if goroutines are left.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	testlevel.HostOnly(t)
	synctest.Test(t, test)
}

// stop stops the process of a rank for some time. Its connections stay.
func stop(c *Channel, d time.Duration) {
	if c.hub == nil {
		c.link.conn.(*ranktest.Conn).Stop(d)
		return
	}
	for _, l := range c.hub.links[1:] {
		l.conn.(*ranktest.Conn).Stop(d)
	}
}

// options are those of a rank.
func options(n *ranktest.Network, rank int, join time.Duration) Options {
	o := Options{Timeout: timeout, Join: join, dialer: n}
	if rank == 0 {
		o.Listener = n
	}
	return o
}

// world is that of a rank.
func world(rank, ranks int) World {
	return World{Rank: rank, Ranks: ranks, Addresses: []string{"rank 0"}}
}

// joined brings n ranks together.
func joined(t *testing.T, n int) []*Channel {
	t.Helper()
	w := ranktest.NewNetwork()
	list := make([]*Channel, n)
	for r, err := range ranktest.OnAll(n, func(r int) (err error) {
		list[r], err = Join(context.Background(), world(r, n), options(w, r, time.Minute))
		return err
	}) {
		require.NoError(t, err, "rank %d", r)
	}
	t.Cleanup(func() {
		for _, err := range ranktest.OnAll(n, func(r int) error { return list[r].Close() }) {
			require.NoError(t, err)
		}
	})
	return list
}
