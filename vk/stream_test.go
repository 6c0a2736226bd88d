package vk

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/testlevel"
)

func numbers(n int, f func(i uint32) uint32) []uint32 {
	v := make([]uint32, n)
	for i := range v {
		v[i] = f(uint32(i))
	}
	return v
}

// sameWords reports the first difference only.
func sameWords(t *testing.T, want, got []uint32) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if want[i] != got[i] {
			t.Fatalf("word %d is %d, not %d", i, got[i], want[i])
		}
	}
}

func TestDispatchComputes(t *testing.T) {
	d := openExecuting(t, func(o *Options) { o.SyncValidation = true })
	const n = 10_000
	s := newStream(t, d)
	x, y := newBuffer(t, d, 4*n, DeviceLocal), newBuffer(t, d, 4*n, DeviceLocal)
	in := numbers(n, func(i uint32) uint32 { return i })
	check := func(want func(i uint32) uint32) {
		t.Helper()
		got := make([]byte, 4*n)
		require.NoError(t, s.Download(background(t), got, y, 0))
		sameWords(t, numbers(n, want), words(got))
	}
	t.Run("buffers", func(t *testing.T) {
		p := newPipeline(t, d, saxpy(t, 5))
		require.NoError(t, s.Upload(x, 0, push(in...)))
		require.NoError(t, s.Dispatch(p, []BufferRange{{Buffer: x}, {Buffer: y}}, push(3, n), groups(n)))
		check(func(i uint32) uint32 { return 3*i + 5 })
		// Enough dispatches for several descriptor pools; each adds to the last.
		q := newPipeline(t, d, saxpy(t, 1))
		for range 300 {
			require.NoError(t, s.Dispatch(q, []BufferRange{{Buffer: x}, {Buffer: y}}, push(1, n), groups(n)))
			require.NoError(t, s.Barrier())
			x, y = y, x
		}
		check(func(i uint32) uint32 { return i + 299 })
		x, y = y, x
		check(func(i uint32) uint32 { return i + 300 })
	})
	t.Run("addresses", func(t *testing.T) {
		if !d.Caps().BufferDeviceAddress {
			t.Skip("no buffer addresses")
		}
		p := newPipeline(t, d, saxpyAddress(t, 9))
		require.NoError(t, s.Upload(x, 0, push(in...)))
		require.NoError(t, s.Keep(x, y))
		args := push(uint32(x.Address()), uint32(x.Address()>>32), uint32(y.Address()), uint32(y.Address()>>32), 7, n)
		require.NoError(t, s.Dispatch(p, nil, args, groups(n)))
		check(func(i uint32) uint32 { return 7*i + 9 })
	})
	t.Run("fill and copy", func(t *testing.T) {
		require.NoError(t, s.Barrier())
		require.NoError(t, s.Fill(BufferRange{Buffer: y}, 1))
		require.NoError(t, s.Barrier())
		require.NoError(t, s.Fill(BufferRange{y, 40, 80}, 2))
		require.NoError(t, s.Barrier())
		require.NoError(t, s.Copy(BufferRange{y, 400, 80}, BufferRange{y, 40, 80}))
		check(func(i uint32) uint32 {
			if i >= 10 && i < 30 || i >= 100 && i < 120 {
				return 2
			}
			return 1
		})
	})
}

func TestBadDispatchesAreRefused(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	p := newPipeline(t, d, saxpy(t, 5))
	x, y := newBuffer(t, d, 4096, DeviceLocal), newBuffer(t, d, 4096, DeviceLocal)
	shut := newBuffer(t, d, 4096, DeviceLocal)
	require.NoError(t, shut.Close())
	both := []BufferRange{{Buffer: x}, {Buffer: y}}
	l := d.Caps().Limits
	for name, c := range map[string]struct {
		p      *Pipeline
		b      []BufferRange
		push   []byte
		groups [3]uint32
		want   error
	}{
		"no pipeline":          {nil, both, push(1, 1), groups(1), ErrInvalid},
		"too few buffers":      {p, both[:1], push(1, 1), groups(1), ErrInvalid},
		"too many buffers":     {p, append(both[:2:2], both[0]), push(1, 1), groups(1), ErrInvalid},
		"no buffer":            {p, []BufferRange{{Buffer: x}, {}}, push(1, 1), groups(1), ErrInvalid},
		"closed buffer":        {p, []BufferRange{{Buffer: x}, {Buffer: shut}}, push(1, 1), groups(1), ErrClosed},
		"range too long":       {p, []BufferRange{{Buffer: x}, {y, 256, 4096}}, push(1, 1), groups(1), ErrInvalid},
		"range overflows":      {p, []BufferRange{{Buffer: x}, {y, 256, ^uint64(0) - 100}}, push(1, 1), groups(1), ErrInvalid},
		"offset at the end":    {p, []BufferRange{{Buffer: x}, {y, 4096, 0}}, push(1, 1), groups(1), ErrInvalid},
		"offset unaligned":     {p, []BufferRange{{Buffer: x}, {y, 2, 0}}, push(1, 1), groups(1), ErrInvalid},
		"push too short":       {p, both, push(1), groups(1), ErrInvalid},
		"push too long":        {p, both, push(1, 2, 3), groups(1), ErrInvalid},
		"too many groups":      {p, both, push(1, 1), [3]uint32{1, l.MaxWorkGroupCount[1], 1}, nil},
		"too many groups in z": {p, both, push(1, 1), [3]uint32{1, 1, ^uint32(0)}, ErrInvalid},
		"no groups":            {p, both, push(1, 1), [3]uint32{0, 1, 1}, nil},
	} {
		if c.groups[1] > 1 {
			c.groups[1] = 1
		}
		err := s.Dispatch(c.p, c.b, c.push, c.groups)
		if c.want == nil {
			assert.NoError(t, err, name)
			continue
		}
		assert.ErrorIs(t, err, c.want, name)
	}
	assert.ErrorIs(t, s.Copy(BufferRange{x, 0, 100}, BufferRange{x, 50, 100}), ErrInvalid, "overlap")
	assert.ErrorIs(t, s.Copy(BufferRange{x, 0, 0}, BufferRange{shut, 0, 100}), ErrClosed)
	assert.ErrorIs(t, s.Copy(BufferRange{x, 4000, 0}, BufferRange{y, 0, 100}), ErrInvalid)
	assert.ErrorIs(t, s.Fill(BufferRange{x, 2, 4}, 0), ErrInvalid)
	assert.ErrorIs(t, s.Fill(BufferRange{x, 0, 6}, 0), ErrInvalid)
	assert.ErrorIs(t, s.Upload(x, 4090, make([]byte, 7)), ErrInvalid)
	assert.ErrorIs(t, s.Download(background(t), make([]byte, 7), x, 4090), ErrInvalid)
	assert.ErrorIs(t, s.Keep(x, shut), ErrClosed)
	assert.ErrorIs(t, s.Keep(shut), ErrClosed, "a second time too")
	_, err := s.Elapsed(Mark{}, Mark{})
	assert.ErrorIs(t, err, ErrInvalid)
	assert.ErrorIs(t, s.WaitValue(background(t), 1000), ErrInvalid)
	assert.ErrorIs(t, s.Release(), ErrInvalid)
}

func TestBatchesOfAStreamRunInOrder(t *testing.T) {
	d := openExecuting(t, func(o *Options) { o.SyncValidation = true })
	s := newStream(t, d)
	x, y := newBuffer(t, d, 1<<20, DeviceLocal), newBuffer(t, d, 1<<20, DeviceLocal)
	gate, err := d.NewTimeline(false) // so that nothing has finished before all is submitted
	require.NoError(t, err)
	require.NoError(t, s.WaitFor(gate, 1))
	for i := range uint32(3) { // each step in a batch of its own, with no barrier of ours
		require.NoError(t, s.Fill(BufferRange{Buffer: x}, i+1))
		submit(t, s)
		require.NoError(t, s.Copy(BufferRange{Buffer: y}, BufferRange{Buffer: x}))
		submit(t, s)
	}
	require.NoError(t, gate.Signal(1))
	got := make([]byte, 1<<20)
	require.NoError(t, s.Download(background(t), got, y, 0))
	sameWords(t, numbers(1<<18, func(uint32) uint32 { return 3 }), words(got))
}

func TestUploadAndDownloadOfAnySize(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	r := rand.New(rand.NewPCG(testlevel.Seed(t), 0))
	for _, size := range []int{1, 2, 15, 16, 17, 4096, minStaging/4 - 1, minStaging, minStaging + 1, 1 << 20, maxStaging, maxStaging + 12345, 3*maxStaging + 7} {
		b := newBuffer(t, d, uint64(size)+5, DeviceLocal)
		want := make([]byte, size)
		for i := range want {
			want[i] = byte(r.Uint32())
		}
		before := bytes.Clone(want)
		require.NoError(t, s.Upload(b, 5, want))
		clear(want) // not used after the call
		got := make([]byte, size)
		require.NoError(t, s.Download(background(t), got, b, 5))
		require.True(t, bytes.Equal(before, got), "%d bytes", size)
	}
	small := newBuffer(t, d, 64, DeviceLocal)
	for i := range 5000 { // many small ones, without waiting
		require.NoError(t, s.Upload(small, uint64(i%16)*4, push(uint32(i))))
	}
	got := make([]byte, 64)
	require.NoError(t, s.Download(background(t), got, small, 0))
	assert.Equal(t, uint32(4999), words(got)[4999%16])
}

func TestCancelledDownloadLeavesTheStreamWorking(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	b := newBuffer(t, d, 3*maxStaging, DeviceLocal)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 5 {
		assert.ErrorIs(t, s.Download(ctx, make([]byte, b.Size()), b, 0), context.Canceled)
	}
	want := []byte("still here")
	require.NoError(t, s.Upload(b, 7, want))
	got := make([]byte, len(want))
	require.NoError(t, s.Download(background(t), got, b, 7))
	assert.Equal(t, want, got)
}

func TestMappedBuffersAreCoherent(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	p := newPipeline(t, d, saxpy(t, 1))
	const n = 1000
	x, y := newBuffer(t, d, 4*n, Upload), newBuffer(t, d, 4*n, Readback)
	for round := range uint32(5) {
		copy(x.Bytes(), push(numbers(n, func(i uint32) uint32 { return i * round })...))
		require.NoError(t, s.Dispatch(p, []BufferRange{{Buffer: x}, {Buffer: y}}, push(2, n), groups(n)))
		require.NoError(t, s.Wait(background(t)))
		sameWords(t, numbers(n, func(i uint32) uint32 { return 2*i*round + 1 }), words(y.Bytes()))
	}
}

func TestTimestampsGrowWithWork(t *testing.T) {
	d := openExecuting(t)
	if d.Caps().Limits.TimestampValidBits == 0 {
		t.Skip("the queue has no timestamps")
	}
	s := newStream(t, d)
	p := newPipeline(t, d, spin(t))
	b := newBuffer(t, d, 64, DeviceLocal)
	require.NoError(t, s.Fill(BufferRange{Buffer: b}, 1))
	var marks []Mark
	mark := func() {
		require.NoError(t, s.Barrier())
		m, err := s.Timestamp()
		require.NoError(t, err)
		marks = append(marks, m)
	}
	for i := range 3*queryCount + 5 { // several pools
		mark()
		rounds := uint32(10)
		if i == 100 {
			rounds = spinRounds(t) / 8
		}
		require.NoError(t, s.Dispatch(p, []BufferRange{{Buffer: b}}, push(rounds), [3]uint32{1, 1, 1}))
	}
	mark()
	_, err := s.Elapsed(marks[0], marks[1])
	assert.ErrorIs(t, err, ErrInvalid, "not finished yet")
	require.NoError(t, s.Wait(background(t)))
	slow, err := s.Elapsed(marks[100], marks[101])
	require.NoError(t, err)
	all, err := s.Elapsed(marks[0], marks[len(marks)-1])
	require.NoError(t, err)
	assert.Positive(t, slow)
	assert.GreaterOrEqual(t, all, slow)
	t.Logf("spin %v of %v", slow, all)
	_, err = s.Elapsed(marks[1], marks[0])
	assert.ErrorIs(t, err, ErrInvalid)
	other := newStream(t, d)
	_, err = other.Elapsed(marks[0], marks[1])
	assert.ErrorIs(t, err, ErrInvalid)
}

func TestTicksAllowForNarrowCounters(t *testing.T) {
	assert.Equal(t, 200*time.Nanosecond, ticksToDuration(10, 110, 64, 2))
	assert.Equal(t, 20*time.Nanosecond, ticksToDuration(1<<32-10, 10, 32, 1))
	assert.Equal(t, 20*time.Nanosecond, ticksToDuration(^uint64(0)-9, 10, 64, 1))
}

// spinRounds keep a device busy for long enough to be seen at it, and not for ever.
func spinRounds(t testing.TB) uint32 {
	if os.Getenv("VKATTN_DRIVER") == "swiftshader" {
		return 1_000_000
	}
	return 20_000_000
}

func spin(t testing.TB) *PipelineDesc {
	return &PipelineDesc{Name: "spin", Code: kernel(t, "spin"), PushBytes: 4, StorageBuffers: 1,
		LocalSize: [3]uint32{testLocal, 1, 1}, Constants: []SpecConstant{{0, testLocal}}}
}

func TestWorkInFlightHoldsWhatItUses(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	p, err := d.Pipeline(spin(t))
	require.NoError(t, err)
	b, err := d.NewBuffer(64, BufferOptions{})
	require.NoError(t, err)
	done := make(chan struct{})
	require.NoError(t, s.Fill(BufferRange{Buffer: b}, 1))
	require.NoError(t, s.Barrier())
	require.NoError(t, s.Dispatch(p, []BufferRange{{Buffer: b}}, push(spinRounds(t)), [3]uint32{1, 1, 1}))
	require.NoError(t, s.Keep(OnDone(func() { close(done) })))
	value := submit(t, s)
	require.NoError(t, b.Close())
	require.NoError(t, p.Close())
	now, err := s.Timeline().Value()
	require.NoError(t, err)
	if now < value {
		assert.Equal(t, 1, d.Memory().Buffers, "still in flight")
		assert.Len(t, d.pipelines.list, 1)
	} else {
		t.Log("the device was too fast to see it in flight")
	}
	assert.ErrorIs(t, s.Dispatch(p, []BufferRange{{Buffer: b}}, push(1), [3]uint32{1, 1, 1}), ErrClosed)
	require.NoError(t, s.Wait(background(t)))
	select {
	case <-done:
	default:
		t.Fatal("a held resource is not released")
	}
	assert.Zero(t, d.Memory().Buffers)
	assert.Empty(t, d.pipelines.list)
}

func TestClosingTheDeviceUnderWork(t *testing.T) {
	d := openExecuting(t)
	s, err := d.NewStream("s")
	require.NoError(t, err)
	p := newPipeline(t, d, spin(t))
	b := newBuffer(t, d, 64, DeviceLocal)
	require.NoError(t, s.Dispatch(p, []BufferRange{{Buffer: b}}, push(spinRounds(t)), [3]uint32{1, 1, 1}))
	submit(t, s)
	require.NoError(t, s.Dispatch(p, []BufferRange{{Buffer: b}}, push(5), [3]uint32{1, 1, 1})) // recorded only
	waited := make(chan error)
	never := newTimeline(t, d)
	ctx := newPolled(false)
	go func() { waited <- never.Wait(ctx, 1) }()
	<-ctx.waits
	require.NoError(t, d.Close())
	assert.ErrorIs(t, <-waited, ErrClosed)
	_, err = s.Submit()
	assert.ErrorIs(t, err, ErrClosed)
	assert.ErrorIs(t, s.Barrier(), ErrClosed)
	assert.ErrorIs(t, s.Upload(b, 0, []byte{1}), ErrClosed)
	_, err = never.Value()
	assert.ErrorIs(t, err, ErrClosed)
	_, err = p.Statistics()
	assert.ErrorIs(t, err, ErrClosed)
	assert.Nil(t, b.Bytes())
	for _, c := range []interface{ Close() error }{s, b, p, never, d} {
		assert.NoError(t, c.Close())
	}
}

func TestStreamsWaitForTimelines(t *testing.T) {
	d := openExecuting(t, func(o *Options) { o.SyncValidation = true })
	a, b := newStream(t, d), newStream(t, d)
	buf := newBuffer(t, d, 1024, DeviceLocal)
	gate := newTimeline(t, d)
	chain := newTimeline(t, d)
	require.NoError(t, a.WaitFor(gate, 3))
	require.NoError(t, a.Fill(BufferRange{Buffer: buf}, 7))
	require.NoError(t, a.SignalTo(chain, 10))
	v := submit(t, a)
	assert.ErrorIs(t, a.WaitValue(newPolled(true), v), context.DeadlineExceeded)
	require.NoError(t, gate.Signal(2))
	assert.ErrorIs(t, gate.Signal(2), ErrInvalid)
	require.NoError(t, gate.Signal(3))
	require.NoError(t, gate.Close())
	require.NoError(t, chain.Wait(background(t), 10))
	require.NoError(t, b.WaitFor(chain, 10))
	require.NoError(t, chain.Close())
	got := make([]byte, 1024)
	require.NoError(t, b.Download(background(t), got, buf, 0))
	sameWords(t, numbers(256, func(uint32) uint32 { return 7 }), words(got))
	require.NoError(t, a.Wait(background(t)))
}

func TestSignalsStandForTheWholeSubmit(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	tl := newTimeline(t, d)
	buf := newBuffer(t, d, 3*maxStaging, DeviceLocal)
	require.NoError(t, s.SignalTo(tl, 1))
	require.NoError(t, s.Upload(buf, 0, make([]byte, buf.Size()))) // submits parts on its way
	require.NoError(t, s.WaitValue(background(t), s.submitted.Load()))
	v, err := tl.Value()
	require.NoError(t, err)
	assert.Zero(t, v)
	submit(t, s)
	require.NoError(t, tl.Wait(background(t), 1))
}
