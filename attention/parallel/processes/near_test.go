//go:build unix

package processes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/internal/control"
	"vkattn/internal/inputs"
	"vkattn/internal/ranktest"
	"vkattn/internal/testlevel"
)

// near is the gather of host memory of a rank.
func (w *rankWorld) near(r int) parallel.Near { return w.transports[r].(parallel.Near) }

// gatherNear gathers two ranges of a rank, of which the other ranks know the contents.
func gatherNear(ctx context.Context, x parallel.Near, t parallel.Transport, call, size int) error {
	want := func(r, i int) []byte { return filled(size+i, byte(1+r+10*i+call)) }
	parts := make([][][]byte, t.Ranks())
	for r := range parts {
		for i := range 2 {
			b := make([]byte, size+i)
			if r == t.Rank() {
				b = want(r, i)
			}
			parts[r] = append(parts[r], b)
		}
	}
	if err := x.GatherNear(ctx, parts); err != nil {
		return err
	}
	for r := range parts {
		for i := range 2 {
			if !bytes.Equal(parts[r][i], want(r, i)) {
				return fmt.Errorf("call %d has other bytes of rank %d", call, r)
			}
		}
	}
	return nil
}

// announce gathers bytes of a rank in two steps, of other sizes on each.
func announce(ctx context.Context, _ parallel.Near, t parallel.Transport, call, size int) error {
	want := func(r int) []byte { return filled(size*(r+1), byte(1+r+call)) }
	wait, err := t.(parallel.Near).Announce(want(t.Rank()))
	if err != nil {
		return err
	}
	all, err := wait(ctx)
	if err != nil {
		return err
	}
	for r := range all {
		if !bytes.Equal(all[r], want(r)) {
			return fmt.Errorf("call %d has other bytes of rank %d", call, r)
		}
	}
	return nil
}

// requireShared skips where the ranks of a host may not share memory.
func requireShared(t *testing.T, w *rankWorld) {
	t.Helper()
	if w.near(0).NearBytes() == 0 {
		_, err := newShared()
		require.Error(t, err, "ranks of one process share memory")
		t.Skipf("no shared memory: %v", err)
	}
}

// Gathers of host memory have the bytes of their own call, whichever rank is late.
func TestGatherNear(t *testing.T) {
	testlevel.HostOnly(t)
	for _, n := range []int{1, 2, 4} {
		w := newWorld(t, TransportTCP, n)
		requireShared(t, w)
		for r, err := range ranktest.OnAll(n, func(r int) error {
			for call := range 50 {
				if call%n == r {
					for range 100 {
						runtime.Gosched()
					}
				}
				gather := gatherNear
				if call%3 == 2 {
					gather = announce
				}
				if err := gather(context.Background(), w.near(r), w.transports[r], call, 1+call*1000); err != nil {
					return err
				}
				if call%7 == 0 { // messages of another kind between them
					if err := exchangeAll(context.Background(), w.transports[r], 100); err != nil {
						return err
					}
				}
			}
			return nil
		}) {
			require.NoError(t, err, "rank %d of %d", r, n)
		}
		require.ErrorIs(t, w.near(0).GatherNear(context.Background(), make([][][]byte, n+1)), attention.ErrInvalid)
		tooMany := make([][][]byte, n)
		for r := range tooMany {
			tooMany[r] = [][]byte{make([]byte, sharedArea+1)}
		}
		require.ErrorIs(t, w.near(0).GatherNear(context.Background(), tooMany), attention.ErrInvalid)
		_, err := w.transports[0].(parallel.Near).Announce(tooMany[0][0])
		require.ErrorIs(t, err, attention.ErrInvalid)
	}
}

// Memory that ranks share has no file, at no time: a rank that is killed while it joins leaves nothing.
func TestSharedMemoryHasNoFile(t *testing.T) {
	testlevel.HostOnly(t)
	files := func() []string {
		list, err := filepath.Glob("/dev/shm/vkattn*")
		require.NoError(t, err)
		return list
	}
	before, maps := files(), mapped(t)
	l, addresses := listenerOf(t)
	var joined sync.WaitGroup
	joined.Add(2)
	for _, err := range ranktest.OnAll(2, func(r int) error {
		o := testControl()
		if r == 0 {
			o.Listener = l
		}
		ch, err := control.Join(context.Background(), worldOf(r, 2, addresses), o)
		joined.Done()
		if err != nil {
			return err
		}
		defer ch.Close()
		if r == 0 {
			_, err := joinShared(context.Background(), ch) // waits for rank 1
			ranktest.Named(t, err, 1, parallel.ErrLeft)
			return nil
		}
		joined.Wait()
		f, err := newShared()
		if err == nil {
			assert.NoError(t, f.Close())
			assert.Eventually(t, func() bool { return mapped(t) > maps }, timeout, time.Millisecond, "rank 0 has its memory")
		}
		assert.Subset(t, before, files())
		return nil
	}) {
		require.NoError(t, err)
	}
}

// mapped is the number of mappings of shared memory.
func mapped(t *testing.T) int {
	text, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(text), "memfd:vkattn")
}

// The memory is there before it is written, and is given back.
func TestSharedMemoryIsAllocated(t *testing.T) {
	testlevel.HostOnly(t)
	f, err := newShared()
	if err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	require.EqualValues(t, sharedBytes, info.Size())
	require.GreaterOrEqual(t, info.Sys().(*syscall.Stat_t).Blocks*512, int64(sharedBytes))

	opened := func() (n int) {
		links, err := filepath.Glob("/proc/self/fd/*")
		require.NoError(t, err)
		for _, link := range links {
			if file, err := os.Readlink(link); err == nil && strings.Contains(file, "memfd:vkattn") {
				n++
			}
		}
		return n
	}
	before, files := mapped(t), opened()
	require.Equal(t, 1, files, "f")
	w := newWorld(t, TransportTCP, 3)
	requireShared(t, w)
	require.Equal(t, before+9, mapped(t))
	require.Equal(t, files, opened())
	for _, err := range ranktest.OnAll(3, func(r int) error { return w.transports[r].Close() }) {
		require.NoError(t, err)
	}
	require.Equal(t, before, mapped(t))
	for _, x := range []sharedFile{{}, {1, -1, make([]byte, sharedToken)}, {os.Getpid(), 1 << 30, make([]byte, sharedToken)},
		{os.Getpid(), int(f.Fd()), make([]byte, sharedToken+1)}, {os.Getpid(), int(f.Fd()), bytes.Repeat([]byte{1}, sharedToken)}} {
		require.Nil(t, x.open(), "%v", x)
	}
	require.Equal(t, before, mapped(t))
}

// A rank that dies, hangs, aborts, leaves or gathers another number of bytes is named on every other
// rank.
func TestFaultsOfGatherNear(t *testing.T) {
	testlevel.HostOnly(t)
	const n, bad = 3, 2
	for name, x := range map[string]struct {
		fault func(w *rankWorld) error
		want  error
	}{
		"dies": {func(w *rankWorld) error { w.proxies[bad].cut(); return nil }, parallel.ErrLeft},
		"aborts": {func(w *rankWorld) error {
			w.transports[bad].Abort(&parallel.RankError{Rank: bad, Err: errors.New("boom")})
			return nil
		}, parallel.ErrFailed},
		"leaves": {func(w *rankWorld) error { return w.transports[bad].Close() }, parallel.ErrLeft},
		"hangs":  {func(*rankWorld) error { return nil }, parallel.ErrTimeout},
	} {
		for what, gather := range map[string]func(context.Context, parallel.Near, parallel.Transport, int, int) error{"gathers": gatherNear, "announces": announce} {
			t.Run(name+" when it "+what, func(t *testing.T) {
				w := newWorld(t, TransportTCP, n)
				requireShared(t, w)
				waits := ranktest.NewWaits(n - 1)
				for r, err := range ranktest.OnAll(n, func(r int) error {
					if err := gatherNear(context.Background(), w.near(r), w.transports[r], 0, 100); err != nil {
						return err
					}
					if r == bad {
						<-waits.All()
						return x.fault(w)
					}
					return gather(waits.Context(name == "hangs"), w.near(r), w.transports[r], 1, 100)
				}) {
					if r != bad {
						ranktest.Named(t, err, bad, x.want)
					}
				}
				require.Error(t, gather(context.Background(), w.near(0), w.transports[0], 2, 100))
			})
		}
	}
	w := newWorld(t, TransportTCP, 2)
	for r, err := range ranktest.OnAll(2, func(r int) error {
		return gatherNear(context.Background(), w.near(r), w.transports[r], 0, 100+r)
	}) {
		var named *parallel.RankError
		require.ErrorAs(t, err, &named, "rank %d", r)
		require.ErrorContains(t, err, "bytes where rank")
	}
}

// Decoding has the bits of one process, whether states go through shared memory or are exchanged.
func TestDecodeHasTheBitsOfOneProcess(t *testing.T) {
	testlevel.HostOnly(t)
	const heads, dim, tokens = 2, 16, 200
	decode := func(n int, transports []parallel.Transport) [][]byte {
		outs := make([][]byte, n)
		for r, err := range ranktest.OnAll(n, func(r int) error {
			g, err := parallel.NewGroup(transports[r], parallel.GroupOptions{Timeout: timeout})
			if err != nil {
				return err
			}
			cfg := parallel.Config{}
			cfg.HeadDim = dim
			op, err := parallel.New(g, nil, cfg)
			if err != nil {
				return err
			}
			defer op.Close()
			in := func(count, seed int) attention.Tensor {
				return attention.Tensor{Host: inputs.New(int64(count*dim), cfg.DType, inputs.Normal, uint64(seed))}
			}
			held := max(1, op.Shard().Count(r, tokens)) // a cache has room for a token
			a := parallel.DecodeArgs{B: 1, Hq: heads, Hkv: heads, Sq: 1, Tokens: []int{tokens}, Q: in(heads, 1),
				Cache: parallel.Cache{K: in(heads*held, 10+r), V: in(heads*held, 20+r), Capacity: held},
				O:     attention.Tensor{Host: make([]byte, heads*dim*2)}, LSE: attention.Tensor{Host: make([]byte, heads*4)}}
			for range 3 {
				err = errors.Join(err, op.Decode(context.Background(), nil, a))
			}
			outs[r] = append(a.O.Host, a.LSE.Host...)
			return err
		}) {
			require.NoError(t, err, "rank %d", r)
		}
		return outs
	}
	for _, n := range []int{3, 8} { // eight ranks have four blocks of tokens
		one, err := parallel.InProcess(n)
		require.NoError(t, err)
		want := decode(n, one)
		for _, kind := range kinds { // the world of NCCL has no shared memory
			w := newWorld(t, kind, n)
			require.Equal(t, want, decode(n, w.transports), "%v, %d ranks", kind, n)
		}
	}
}
