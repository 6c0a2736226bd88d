package vk

import (
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/testlevel"
)

// The whole host layer while the garbage collector runs all the time: nothing C
// works on may be Go's to free or move.
func TestStressUnderGarbageCollection(t *testing.T) {
	d := openExecuting(t)
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	var stop atomic.Bool
	var collector sync.WaitGroup
	collector.Go(func() {
		for !stop.Load() {
			runtime.GC()
		}
	})
	rounds := 40
	if testing.Short() {
		rounds = 8
	}
	seed := testlevel.Seed(t)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() { stress(t, d, rand.New(rand.NewPCG(seed, uint64(g))), rounds) })
	}
	wg.Wait()
	stop.Store(true)
	collector.Wait()
	d.reclaim() // scratch memory
	m := d.Memory()
	assert.Zero(t, m.Buffers)
	assert.Zero(t, m.UsedBytes)
	assert.Empty(t, d.pipelines.list)
}

func stress(t *testing.T, d *Device, r *rand.Rand, rounds int) {
	ctx := background(t)
	s, err := d.NewStream("stress")
	if !assert.NoError(t, err) {
		return
	}
	defer func() { assert.NoError(t, s.Close()) }()
	for range rounds {
		n := uint32(1 + r.IntN(20_000))
		a, add := r.Uint32(), uint32(r.IntN(3))
		desc := saxpy(t, add)
		if d.Caps().BufferDeviceAddress && r.IntN(2) == 0 {
			desc = saxpyAddress(t, add)
		}
		ok := func(err error) bool { return assert.NoError(t, err) }
		p, err := d.Pipeline(desc)
		if !ok(err) {
			return
		}
		x, err := d.NewBuffer(uint64(4*n), BufferOptions{Name: "x"})
		if !ok(err) {
			return
		}
		y, err := d.NewBuffer(uint64(4*n), BufferOptions{Name: "y"})
		if !ok(err) {
			return
		}
		_, _, err = s.Scratch(uint64(4*r.IntN(2)), uint64(4*n))
		ok(err)
		src := make([]byte, 4*n)
		for i := range src {
			src[i] = byte(r.Uint32())
		}
		ok(s.Upload(x, 0, src))
		end := s.Label("saxpy")
		if desc.StorageBuffers == 0 {
			ok(s.Keep(x, y))
			ok(s.Dispatch(p, nil, push(uint32(x.Address()), uint32(x.Address()>>32), uint32(y.Address()), uint32(y.Address()>>32), a, n), groups(n)))
		} else {
			ok(s.Dispatch(p, []BufferRange{{Buffer: x}, {Buffer: y}}, push(a, n), groups(n)))
		}
		end()
		var m Mark
		if d.Caps().Limits.TimestampValidBits > 0 {
			m, err = s.Timestamp()
			ok(err)
		}
		ok(x.Close())
		ok(p.Close())
		got := make([]byte, 4*n)
		ok(s.Download(ctx, got, y, 0))
		ok(y.Close())
		if m.s != nil {
			_, err = s.Ticks(m)
			ok(err)
		}
		in, out := words(src), words(got)
		for i := range in {
			if out[i] != a*in[i]+add {
				t.Errorf("word %d of %d: %d, not %d", i, n, out[i], a*in[i]+add)
				return
			}
		}
	}
}

// Devices that come and go under the same pressure, closed by two at once.
func TestStressOpenAndClose(t *testing.T) {
	needExecution(t)
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	for range 5 {
		d := openExecuting(t)
		b, err := d.NewBuffer(1000, BufferOptions{})
		require.NoError(t, err)
		s, err := d.NewStream("")
		require.NoError(t, err)
		require.NoError(t, s.Fill(BufferRange{Buffer: b}, 3))
		submit(t, s)
		var wg sync.WaitGroup
		wg.Go(func() {
			for s.Barrier() == nil {
			}
		})
		wg.Go(func() { assert.NoError(t, d.Close()) })
		wg.Go(func() { assert.NoError(t, b.Close()) })
		runtime.GC()
		wg.Wait()
		require.NoError(t, d.Close())
	}
}

// Recording a dispatch by address costs no garbage: the launch path of a
// benchmark, and of a decode loop.
func TestDispatchByAddressAllocatesNothing(t *testing.T) {
	d := openExecuting(t, func(o *Options) { o.Validation = false; o.Debug = false })
	if !d.Caps().BufferDeviceAddress {
		t.Skip("no buffer addresses")
	}
	s := newStream(t, d)
	p := newPipeline(t, d, saxpyAddress(t, 1))
	x := newBuffer(t, d, 4096, DeviceLocal)
	a, pool := uint64(0), s
	a = x.Address()
	record := func() {
		var b [24]byte // on the stack, and stays there
		b[0], b[1], b[2], b[3], b[4], b[5] = byte(a), byte(a>>8), byte(a>>16), byte(a>>24), byte(a>>32), byte(a>>40)
		copy(b[8:16], b[:8])
		b[16], b[20] = 1, 1
		if err := pool.Dispatch(p, nil, b[:], [3]uint32{1, 1, 1}); err != nil {
			t.Fatal(err)
		}
		if err := pool.Barrier(); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, s.Keep(x))
	record()
	assert.Zero(t, testing.AllocsPerRun(500, record))
	require.NoError(t, s.Wait(background(t)))
}

func BenchmarkDispatchByAddress(b *testing.B) {
	d := openExecuting(b, func(o *Options) { o.Validation = false; o.Debug = false })
	s := newStream(b, d)
	p := newPipeline(b, d, saxpyAddress(b, 1))
	args := make([]byte, 24)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := s.Dispatch(p, nil, args, [3]uint32{1, 1, 1}); err != nil {
			b.Fatal(err)
		}
		if i%10000 == 9999 { // n is 0: the kernels touch nothing
			require.NoError(b, s.Wait(background(b)))
		}
	}
	require.NoError(b, s.Wait(background(b)))
}
