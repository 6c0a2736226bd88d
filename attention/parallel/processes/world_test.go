//go:build unix

package processes

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"vkattn/attention/parallel"
	"vkattn/internal/control"
	"vkattn/internal/nccl"
	"vkattn/internal/pause"
	"vkattn/internal/ranktest"
)

// timeout is the silence after which a rank is gone. No rank of the tests is: a machine under load makes
// them silent.
const timeout = 10 * time.Minute

// set gives a variable a value for the time of a test.
func set[T any](t *testing.T, at *T, value T) {
	before := *at
	*at = value
	t.Cleanup(func() { *at = before })
}

// fakeNCCL is internal/nccl/testdata/fakenccl.c, loaded instead of NCCL.
type fakeNCCL struct {
	groups func(stream uint64, finished int32) int
	fail   func(rank, code int32)
	stuck  func(on int32)
	comm   func(rank int32) uintptr
}

// compiled is the fake library. A compilation takes a second, on a busy machine ten.
var compiled = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "libfakenccl.so")
	text, err := exec.Command("cc", "-shared", "-fPIC", "-pthread", "-o", file, "../../../internal/nccl/testdata/fakenccl.c").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	return os.ReadFile(file)
})

func useFake(t *testing.T) *fakeNCCL {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skipf("no compiler for the fake library: %v", err)
	}
	text, err := compiled()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "libfakenccl.so") // a file of its own: its state is the test's
	require.NoError(t, os.WriteFile(file, text, 0o700))
	t.Setenv(nccl.LibraryEnv, file)
	lib, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	f := &fakeNCCL{}
	for name, function := range map[string]any{"fake_groups": &f.groups, "fake_error": &f.fail, "fake_stuck": &f.stuck, "fake_comm": &f.comm} {
		purego.RegisterLibFunc(function, lib, name)
	}
	return f
}

// fakeQueue is a deviceQueue whose device is the host.
type fakeQueue struct {
	*fakeNCCL
	id uint64

	mu     sync.Mutex
	signs  [][2]uint64 // numbers, and the groups before each
	held   int         // transfers
	closed bool
}

func (q *fakeQueue) stream() uint64 { return q.id }

func (q *fakeQueue) address(m *parallel.Memory) (uint64, error) {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.Host[m.Offset:])))), nil
}

func (q *fakeQueue) signal(n uint64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.signs = append(q.signs, [2]uint64{n, uint64(q.groups(q.id, 0))})
	return nil
}

func (q *fakeQueue) reached() (n uint64, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	finished := uint64(q.groups(q.id, 1))
	for _, s := range q.signs {
		if s[1] <= finished {
			n = s[0]
		}
	}
	return n, nil
}

func (q *fakeQueue) drain(ctx context.Context) error {
	for loop := (pause.Loop{}); q.groups(q.id, 1) < q.groups(q.id, 0); loop.Wait() {
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (q *fakeQueue) hold(list []parallel.Transfer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held += len(list)
}

func (q *fakeQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// proxy passes the bytes of a rank's side channel on until it is cut.
type proxy struct {
	mu    sync.Mutex
	conns []net.Conn
}

func newProxy(t *testing.T, to string) (*proxy, string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{}
	t.Cleanup(func() { l.Close(); p.cut() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			other, err := net.Dial("tcp", to)
			if err != nil {
				conn.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, conn, other)
			p.mu.Unlock()
			for _, x := range [][2]net.Conn{{conn, other}, {other, conn}} {
				go func() {
					b := make([]byte, 4096)
					for {
						n, err := x[0].Read(b)
						if err == nil {
							_, err = x[1].Write(b[:n])
						}
						if err != nil {
							x[1].Close()
							return
						}
					}
				}()
			}
		}
	}()
	return p, l.Addr().String()
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}

// rankWorld is a world of ranks in this process, each with what a process has.
type rankWorld struct {
	kind       Transport
	fake       *fakeNCCL
	transports []parallel.Transport
	queues     []*fakeQueue // NCCL's
	proxies    []*proxy     // of ranks above 0
}

// newWorld joins n ranks.
func newWorld(t *testing.T, kind Transport, n int) *rankWorld {
	t.Helper()
	w := &rankWorld{kind: kind, transports: make([]parallel.Transport, n), queues: make([]*fakeQueue, n), proxies: make([]*proxy, n)}
	var id nccl.ID
	if kind == TransportNCCL {
		w.fake = useFake(t)
		var err error
		id, err = nccl.NewID()
		require.NoError(t, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	for r, err := range ranktest.OnAll(n, func(r int) (err error) {
		o := Options{Transport: kind, Control: control.Options{Timeout: timeout, Join: timeout}}
		address := l.Addr().String()
		if r == 0 {
			o.Control.Listener = l
		} else {
			w.proxies[r], address = newProxy(t, address)
		}
		world := control.World{Rank: r, Ranks: n, Addresses: []string{address}}
		if kind == TransportTCP {
			w.transports[r], err = Join(context.Background(), nil, world, o)
			return err
		}
		ch, err := control.Join(context.Background(), world, o.Control)
		if err != nil {
			return err
		}
		comm, err := nccl.Join(context.Background(), 0, id, r, n)
		if err != nil {
			return err
		}
		w.queues[r] = &fakeQueue{fakeNCCL: w.fake, id: uint64(r + 1)}
		w.transports[r] = newNCCL(ch, comm, w.queues[r])
		return nil
	}) {
		require.NoError(t, err, "rank %d", r)
	}
	t.Cleanup(func() {
		for _, err := range ranktest.OnAll(n, func(r int) error { return w.transports[r].Close() }) {
			require.NoError(t, err)
		}
	})
	return w
}

// exchangeAll sends bytes to all other ranks and receives as many from each.
func exchangeAll(ctx context.Context, t parallel.Transport, size int) error {
	var sends, receives []parallel.Transfer
	for r := range t.Ranks() {
		if r != t.Rank() {
			sends = append(sends, parallel.Transfer{Peer: r, Memory: parallel.Memory{Host: filled(size, 1), Bytes: int64(size)}})
			receives = append(receives, parallel.Transfer{Peer: r, Memory: parallel.Memory{Host: make([]byte, size), Bytes: int64(size)}})
		}
	}
	p, err := t.Exchange(sends, receives)
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// filled is n bytes.
func filled(n int, b byte) []byte { return bytes.Repeat([]byte{b}, n) }

func listenerOf(t *testing.T) (net.Listener, []string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l, []string{l.Addr().String()}
}

func testControl() control.Options {
	return control.Options{Timeout: timeout, Join: timeout}
}

func worldOf(r, n int, addresses []string) control.World {
	return control.World{Rank: r, Ranks: n, Addresses: addresses}
}
