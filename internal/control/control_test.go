package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/internal/ranktest"
	"vkattn/internal/testlevel"
)

// Ranks gather each other's bytes, any number of times, and leave in any order.
func TestRanksGather(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				list := joined(t, n)
				for range 20 {
					for r, err := range ranktest.OnAll(n, func(r int) error {
						parts, err := list[r].Gather(context.Background(), []byte(strings.Repeat("x", r)))
						for s, p := range parts {
							if len(p) != s {
								return fmt.Errorf("%d bytes of rank %d", len(p), s)
							}
						}
						return err
					}) {
						require.NoError(t, err, "rank %d", r)
					}
				}
				time.Sleep(20 * timeout) // heartbeats keep the world alive
				for _, c := range list {
					require.Nil(t, c.Err())
					require.NoError(t, c.Close())
					require.Nil(t, c.Err())
				}
			})
		})
	}
}

// A rank that dies, stops responding, aborts, leaves or does not call is named on every other rank.
func TestFaultsNameTheRank(t *testing.T) {
	boom := errors.New("boom")
	for name, x := range map[string]struct {
		fault func(c *Channel)
		want  error
	}{
		"dies":   {func(c *Channel) { _ = c.link.conn.Close() }, parallel.ErrLeft},
		"aborts": {func(c *Channel) { c.Abort(&parallel.RankError{Rank: c.rank, Err: boom}) }, parallel.ErrFailed},
		"leaves": {func(c *Channel) { _ = c.Close() }, parallel.ErrLeft},
		"hangs":  {func(c *Channel) {}, parallel.ErrTimeout},
		// A stopped process: its connections stay, without heartbeats.
		"is silent": {func(c *Channel) { stop(c, 3*timeout) }, parallel.ErrTimeout},
	} {
		for _, n := range []int{2, 4, 8} {
			for _, bad := range []int{0, n - 1} {
				t.Run(fmt.Sprintf("%s/%d of %d", name, bad, n), func(t *testing.T) {
					inBubble(t, func(t *testing.T) {
						list := joined(t, n)
						start := time.Now()
						for r, err := range ranktest.OnAll(n, func(r int) error {
							if r == bad {
								x.fault(list[r])
								return nil
							}
							within := 5 * timeout
							if name == "hangs" {
								within = timeout
							}
							ctx, cancel := context.WithTimeout(context.Background(), within)
							defer cancel()
							_, err := list[r].Gather(ctx, nil)
							return err
						}) {
							if r != bad {
								ranktest.Named(t, err, bad, x.want)
								require.Equal(t, err, error(list[r].Err()))
							}
						}
						require.LessOrEqual(t, time.Since(start), timeout)
						if name == "aborts" {
							require.ErrorIs(t, list[bad].Err(), boom)
						}
					})
				})
			}
		}
	}
}

// A wait for messages that times out names the rank at the end of the chain of waits, and a
// peer that left without its side of a message is found.
func TestTimeoutOfMessagesNamesTheCulprit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		list := joined(t, 4)
		// 0 waits for 3, which waits for 2, which computes. 1 has posted all that 0 needs.
		posts := []struct{ sends, receives []int }{{[]int{1}, []int{3}}, {nil, []int{0}}, {nil, nil}, {nil, []int{2}}}
		var waiting []*Messages
		for r, p := range posts {
			m, err := list[r].Post(p.sends, p.receives)
			require.NoError(t, err)
			waiting = append(waiting, m)
		}
		waiting[0].Await()
		waiting[3].Await()
		ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
		defer cancel()
		<-ctx.Done()
		ranktest.Named(t, list[0].TimedOut(ctx, 3), 2, parallel.ErrTimeout)
		for _, c := range list {
			<-c.Ended()
			ranktest.Named(t, c.Err(), 2, parallel.ErrTimeout)
		}

		list = joined(t, 3)
		m, err := list[1].Post(nil, []int{2})
		require.NoError(t, err)
		require.NoError(t, list[2].Close())
		synctest.Wait()
		ranktest.Named(t, m.Missing(), 2, parallel.ErrLeft)
		for _, peer := range []int{-1, 1, 3} {
			_, err = list[1].Post([]int{peer}, nil)
			require.ErrorIs(t, err, attention.ErrInvalid)
		}
		_, err = list[1].Gather(context.Background(), make([]byte, maxPart+1))
		require.ErrorIs(t, err, attention.ErrInvalid)
	})
}

// Ranks that disagree on the world, and those that do not come, are named on every rank.
func TestJoinNamesTheRankThatIsWrong(t *testing.T) {
	for name, x := range map[string]struct {
		bad  *World // in place of rank 2; nil: it does not come
		want error
	}{
		"world size": {&World{Rank: 2, Ranks: 4}, parallel.ErrMismatch},
		"missing":    {nil, parallel.ErrTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				l := ranktest.NewNetwork()
				for r, err := range ranktest.OnAll(3, func(r int) error {
					w, o := world(r, 3), options(l, r, timeout)
					switch {
					case r == 0:
					case r == 1:
						o.Join = time.Minute
					case x.bad == nil:
						return &parallel.RankError{Rank: 2, Err: x.want}
					default:
						w.Ranks = x.bad.Ranks
						time.Sleep(timeout / 4) // rank 1 is there
					}
					_, err := Join(context.Background(), w, o)
					return err
				}) {
					ranktest.Named(t, err, 2, x.want)
					t.Logf("rank %d: %v", r, err)
				}
			})
		})
	}
}

// Strangers and second processes of a rank are refused, and the world is made without them.
func TestStrangersAreRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		l := ranktest.NewNetwork()
		list := make([]*Channel, 3)
		var wg sync.WaitGroup
		errs := make([]error, 3)
		join := func(r int) {
			wg.Go(func() { list[r], errs[r] = Join(context.Background(), world(r, 3), options(l, r, time.Minute)) })
		}
		join(0)
		stranger, err := l.DialContext(context.Background(), "", "")
		require.NoError(t, err)
		go func() { _, _ = stranger.Write([]byte("GET / HTTP/1.1\r\n\r\n")) }()
		answer := make([]byte, 100)
		n, _ := stranger.Read(answer)
		require.Equal(t, "control: this port takes ranks of vkattn only\n", string(answer[:n]))
		stranger.Close()
		join(1)
		synctest.Wait()
		_, err = Join(context.Background(), world(1, 3), options(l, 1, time.Minute))
		ranktest.Named(t, err, 1, parallel.ErrMismatch)
		require.EqualError(t, err, "parallel: rank 1: disagrees with the other ranks: this rank has joined already")
		join(2)
		wg.Wait()
		for r, err := range errs {
			require.NoError(t, err)
			require.Nil(t, list[r].Err())
		}
		for _, err := range ranktest.OnAll(3, func(r int) error { return list[r].Close() }) {
			require.NoError(t, err)
		}
	})
}

// The variables of each launcher give the same world; wrong ones are errors of one line.
func TestFromEnvironment(t *testing.T) {
	clear := func(t *testing.T) {
		for _, f := range families {
			for _, name := range []string{f.rank, f.ranks, f.local} {
				t.Setenv(name, "")
				require.NoError(t, os.Unsetenv(name))
			}
		}
		for _, name := range []string{"MASTER_ADDR", "MASTER_PORT", PortEnv, "TORCHELASTIC_USE_AGENT_STORE"} {
			t.Setenv(name, "")
			require.NoError(t, os.Unsetenv(name))
		}
	}
	clear(t)
	_, ok, err := FromEnvironment()
	require.NoError(t, err)
	require.False(t, ok)
	for _, f := range families {
		t.Run(f.rank, func(t *testing.T) {
			clear(t)
			t.Setenv(f.rank, "3")
			t.Setenv(f.ranks, "4")
			t.Setenv(f.local, "1")
			_, ok, err := FromEnvironment()
			require.ErrorContains(t, err, "MASTER_ADDR")
			require.True(t, ok)
			t.Setenv("MASTER_ADDR", "node0")
			_, _, err = FromEnvironment()
			require.ErrorContains(t, err, "MASTER_PORT")
			t.Setenv("MASTER_PORT", "29500")
			w, ok, err := FromEnvironment()
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, World{3, 4, 1, []string{"node0:29500"}}, w)
			t.Setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
			w, _, err = FromEnvironment()
			require.NoError(t, err)
			require.Equal(t, []string{"node0:29501"}, w.Addresses)
			t.Setenv(PortEnv, "7000")
			w, _, err = FromEnvironment()
			require.NoError(t, err)
			require.Equal(t, []string{"node0:7000"}, w.Addresses)
			t.Setenv(f.rank, "4")
			_, _, err = FromEnvironment()
			require.ErrorIs(t, err, attention.ErrInvalid)
			t.Setenv(f.rank, "x")
			_, _, err = FromEnvironment()
			require.ErrorContains(t, err, f.rank)
		})
	}
}

// A name of this host that resolves to a loopback address here is another address elsewhere: rank 0
// listens on all of them.
func TestListenOnTheOwnName(t *testing.T) {
	for host, want := range map[string]bool{"127.0.0.1": false, "::1": false, "localhost": false, "ip6-localhost": false, "node0": true, "node0.cluster": true} {
		require.Equal(t, want, ownName(host, &net.TCPAddr{IP: net.IPv4(127, 0, 1, 1)}), host)
		require.False(t, ownName(host, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}), host)
	}
	name, err := os.Hostname()
	require.NoError(t, err)
	if ips, err := net.LookupIP(name); err != nil || !ips[0].IsLoopback() {
		t.Skipf("%s is not a loopback address here", name)
	}
	l, err := listen(net.JoinHostPort(name, "0"))
	require.NoError(t, err)
	defer l.Close()
	require.True(t, l.Addr().(*net.TCPAddr).IP.IsUnspecified(), "%v", l.Addr())
}

// A reason that is too long to be sent stays what the caller passed on its own rank, and whole
// characters on the others.
func TestALongReason(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		list := joined(t, 2)
		boom := errors.New("boom")
		list[1].Abort(&parallel.RankError{Rank: 1, Err: fmt.Errorf("x%s: %w", strings.Repeat("\u00e9", maxText), boom)})
		<-list[0].Ended()
		require.ErrorIs(t, list[1].Err(), boom)
		require.ErrorIs(t, list[0].Err(), parallel.ErrFailed)
		require.True(t, utf8.ValidString(list[0].Err().Error()))
	})
}

// A wait that ends after Close says that this rank has left, and asks nobody.
func TestTimedOutAfterClose(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := joined(t, 1)[0]
		require.NoError(t, c.Close())
		canceled, cancel := context.WithCancel(context.Background())
		cancel()
		late, cancel := context.WithDeadline(context.Background(), time.Now())
		defer cancel()
		for _, ctx := range []context.Context{canceled, late} {
			begin := time.Now()
			err := c.TimedOut(ctx, 0)
			require.ErrorIs(t, err, parallel.ErrLeft)
			require.EqualError(t, err, "parallel: rank 0: left the group")
			require.Zero(t, time.Since(begin))
		}
	})
}

// A rank that sends no frames is named for that, not for leaving.
func TestARankThatSendsNoFrames(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		list := joined(t, 3)
		_, err := list[2].link.conn.Write([]byte("\x01\xff\xff\xff\xff"))
		require.NoError(t, err)
		for r, c := range list {
			<-c.Ended()
			require.Equal(t, 2, c.Err().Rank, "rank %d", r)
			require.ErrorIs(t, c.Err(), parallel.ErrMismatch, "rank %d", r)
		}
	})
}

// The rank that is late is named, also if its part or its answer arrives after the report, and a
// rank that has left is named only if it owes something.
func TestCulprit(t *testing.T) {
	testlevel.HostOnly(t)
	counts := func(peer int, sends, receives uint64) map[int]posted { return map[int]posted{peer: {sends, receives}} }
	from := func(peer int) *state { return &state{Activity: waits, Awaited: []awaited{{Peer: peer}}} }
	for name, x := range map[string]struct {
		states         []*state
		has, left      []bool
		reporter, peer int
		want           int
	}{
		"a part that comes late":        {[]*state{{}, {}, {Activity: gathers}}, []bool{true, true, false}, make([]bool, 3), 1, 0, 2},
		"a rank that left after a send": {[]*state{from(1), {Posted: counts(0, 1, 0)}, {}}, make([]bool, 3), []bool{false, true, false}, 0, 2, 2},
		"a rank that left without it":   {[]*state{from(1), {}, {}}, make([]bool, 3), []bool{false, true, false}, 0, 2, 1},
		"no answer":                     {[]*state{from(1), from(2), nil}, make([]bool, 3), make([]bool, 3), 0, 1, 2},
	} {
		require.Equal(t, x.want, culprit(x.states, x.has, x.left, x.reporter, x.peer), name)
	}
}
