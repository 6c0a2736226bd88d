//go:build !windows

package nccl

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// useFake compiles testdata/fakenccl.c and loads it instead of NCCL. It returns the function that
// counts the groups of a stream.
func useFake(t *testing.T) (groups func(stream uint64, finished int32) int) {
	t.Helper()
	testlevel.HostOnly(t)
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("no compiler for the fake library: %v", err)
	}
	file := filepath.Join(t.TempDir(), "libfakenccl.so")
	text, err := exec.Command(compiler, "-shared", "-fPIC", "-pthread", "-o", file, "testdata/fakenccl.c").CombinedOutput()
	require.NoError(t, err, "%s", text)
	t.Setenv(LibraryEnv, file)
	lib, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	purego.RegisterLibFunc(&groups, lib, "fake_groups")
	return groups
}

// join makes the communicators of some ranks.
func join(t *testing.T, n int) []*Comm {
	t.Helper()
	id, err := NewID()
	require.NoError(t, err)
	comms := make([]*Comm, n)
	onAll(t, n, func(r int) (err error) {
		comms[r], err = Join(context.Background(), 0, id, r, n)
		return err
	})
	return comms
}

func onAll(t *testing.T, n int, work func(r int) error) {
	t.Helper()
	list := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { list[r] = work(r) })
	}
	wg.Wait()
	for r, err := range list {
		require.NoError(t, err, "rank %d", r)
	}
}

// pinned returns n bytes that C may use, and their address.
func pinned(p *runtime.Pinner, n int, fill byte) ([]byte, uint64) {
	b := bytes.Repeat([]byte{fill}, n)
	p.Pin(&b[0])
	return b, uint64(uintptr(unsafe.Pointer(&b[0])))
}

// Groups of messages and all-gathers reach every rank.
func TestMessagesReachTheirRanks(t *testing.T) {
	groups := useFake(t)
	v, err := Version()
	require.NoError(t, err)
	require.Equal(t, 22803, v)
	const n, size = 3, 100
	comms := join(t, n)
	var p runtime.Pinner
	defer p.Unpin()
	outs, alls := make([][]byte, n), make([][]byte, n)
	sends, receives := make([]uint64, n), make([]uint64, n)
	gathers := make([]uint64, n)
	for r := range n {
		_, sends[r] = pinned(&p, size, byte(r+1))
		outs[r], receives[r] = pinned(&p, size, 0)
		alls[r], gathers[r] = pinned(&p, n*size, 0)
	}
	onAll(t, n, func(r int) error {
		c := comms[r]
		require.Equal(t, r, c.Rank())
		require.Equal(t, n, c.Ranks())
		s := uint64(r + 1)
		if err := c.Exchange(context.Background(), s, []Message{{(r + 1) % n, true, sends[r], size}, {(r + n - 1) % n, false, receives[r], size}}); err != nil {
			return err
		}
		return c.AllGather(context.Background(), s, sends[r], gathers[r], size)
	})
	for r := range n {
		require.Eventually(t, func() bool { return groups(uint64(r+1), 1) == 2 }, 10*time.Minute, time.Millisecond)
	}
	for r := range n {
		require.Equal(t, bytes.Repeat([]byte{byte((r+n-1)%n + 1)}, size), outs[r])
		for s := range n {
			require.Equal(t, byte(s+1), alls[r][s*size])
			require.Equal(t, byte(s+1), alls[r][(s+1)*size-1])
		}
		require.NoError(t, comms[r].Err())
	}
	own, err := Wrap(uintptr(comms[1].handle), 0)
	require.NoError(t, err)
	require.Equal(t, 1, own.Rank())
	require.Equal(t, n, own.Ranks())
	require.NoError(t, own.Close())
	require.NoError(t, comms[1].Err())
	for _, c := range comms {
		require.NoError(t, c.Close())
		require.NoError(t, c.Close())
		require.ErrorIs(t, c.Err(), vk.ErrClosed)
	}
}

// soonOver is a context whose deadline is over when it has been asked a hundred times.
type soonOver struct {
	context.Context
	asked int
}

func (c *soonOver) Err() error {
	if c.asked++; c.asked > 100 {
		return context.DeadlineExceeded
	}
	return nil
}

// A rank that is missing or gone does not block the others.
func TestMissingRanksDoNotBlock(t *testing.T) {
	useFake(t)
	id, err := NewID()
	require.NoError(t, err)
	_, err = Join(&soonOver{Context: context.Background()}, 0, id, 0, 2)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	comms := join(t, 2)
	var p runtime.Pinner
	defer p.Unpin()
	_, at := pinned(&p, 8, 0)
	require.ErrorIs(t, comms[0].Exchange(&soonOver{Context: context.Background()}, 0, []Message{{1, false, at, 8}}), context.DeadlineExceeded)
	require.NoError(t, comms[1].Abort())
	require.Eventually(t, func() bool { return comms[0].Err() != nil }, 10*time.Minute, time.Millisecond)
	require.ErrorContains(t, comms[0].Err(), "remote process exited")
	require.NoError(t, comms[0].Abort())
}

// Wrong arguments and a missing library are errors.
func TestRefusals(t *testing.T) {
	testlevel.HostOnly(t)
	t.Setenv(LibraryEnv, "off")
	_, err := Version()
	require.ErrorIs(t, err, vk.ErrUnsupported)
	t.Setenv(LibraryEnv, "/nonexistent/libnccl.so")
	_, err = NewID()
	require.ErrorIs(t, err, vk.ErrUnsupported)
	_, err = Join(context.Background(), 0, ID{}, 2, 2)
	require.ErrorIs(t, err, vk.ErrInvalid)
	_, err = Wrap(0, 0)
	require.ErrorIs(t, err, vk.ErrInvalid)
	require.ErrorIs(t, new(Comm).Exchange(context.Background(), 0, []Message{{3, true, 0, 0}}), vk.ErrInvalid)
	useFake(t)
	id, err := NewID()
	require.NoError(t, err)
	_, err = Join(context.Background(), 0, id, 0, 9)
	require.EqualError(t, err, "nccl: ncclCommInitRankConfig: invalid argument (4)")
	_, err = Join(context.Background(), 0, id, 0, 1<<32+1) // 1 in 32 bits
	require.ErrorIs(t, err, vk.ErrInvalid)
}
