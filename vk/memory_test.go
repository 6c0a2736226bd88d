package vk

import (
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSpansNeverOverlapAndMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 1 << 16
		s := newSpans(size)
		type piece struct{ at, n uint64 }
		var live []piece
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(t, "free") {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				s.release(live[i].at, live[i].n)
				live = append(live[:i], live[i+1:]...)
				continue
			}
			n := rapid.Uint64Range(1, 5000).Draw(t, "size")
			align := uint64(1) << rapid.IntRange(0, 10).Draw(t, "align")
			at, ok := s.alloc(n, align)
			if !ok {
				continue
			}
			if at%align != 0 || at+n > size {
				t.Fatalf("%d bytes at %d, alignment %d", n, at, align)
			}
			for _, p := range live {
				if at < p.at+p.n && p.at < at+n {
					t.Fatalf("[%d,+%d) overlaps [%d,+%d)", at, n, p.at, p.n)
				}
			}
			live = append(live, piece{at, n})
		}
		for _, p := range live {
			s.release(p.at, p.n)
		}
		if len(s.free) != 1 || s.free[0] != (span{0, size}) || s.used != 0 {
			t.Fatalf("not whole again: %+v", s)
		}
	})
}

func TestBuffersHaveWhatWasAskedFor(t *testing.T) {
	d := openExecuting(t)
	for _, kind := range []MemoryKind{DeviceLocal, Upload, Readback} {
		for _, size := range []uint64{1, 3, 4, 255, 4096, 1<<20 + 1, 40 << 20} {
			b := newBuffer(t, d, size, kind)
			assert.Equal(t, size, b.Size())
			assert.NotZero(t, b.Handle())
			if d.Caps().BufferDeviceAddress {
				assert.NotZero(t, b.Address())
				assert.Zero(t, b.Address()%4)
			} else {
				assert.Zero(t, b.Address())
			}
			if kind == DeviceLocal {
				assert.Nil(t, b.Bytes())
				continue
			}
			require.Len(t, b.Bytes(), int(size))
			b.Bytes()[size-1] = 7
		}
	}
	_, err := d.NewBuffer(0, BufferOptions{})
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = d.NewBuffer(16, BufferOptions{Memory: 9})
	assert.ErrorIs(t, err, ErrInvalid)
}

func TestSmallBuffersShareAllocations(t *testing.T) {
	d := openExecuting(t)
	var list []*Buffer
	for range 500 {
		b, err := d.NewBuffer(10_000, BufferOptions{})
		require.NoError(t, err)
		list = append(list, b)
	}
	m := d.Memory()
	assert.Equal(t, 500, m.Buffers)
	assert.LessOrEqual(t, m.Allocations, 2)
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, b := range list {
		require.NoError(t, b.Close())
		require.NoError(t, b.Close())
	}
	m = d.Memory()
	assert.Zero(t, m.Buffers)
	assert.Zero(t, m.UsedBytes)
	assert.LessOrEqual(t, m.Allocations, 1, "one empty block stays")
}

func TestTooMuchMemoryIsAnError(t *testing.T) {
	d := openExecuting(t)
	for _, size := range []uint64{1 << 44, 1 << 62, ^uint64(0), ^uint64(0) - 20} {
		_, err := d.NewBuffer(size, BufferOptions{})
		require.ErrorIs(t, err, ErrOutOfMemory, "%d", size)
		t.Log(err)
	}
	// The device goes on working.
	newBuffer(t, d, 1<<20, DeviceLocal)
}

// Until the device says no; only where memory is made up (a null device) or asked for.
func TestMemoryRunsOutCleanly(t *testing.T) {
	if os.Getenv("VKATTN_EXHAUST") != "1" {
		t.Skip("VKATTN_EXHAUST=1 fills the device's memory")
	}
	d := openExecuting(t)
	var list []*Buffer
	for {
		b, err := d.NewBuffer(256<<20, BufferOptions{})
		if err != nil {
			require.ErrorIs(t, err, ErrOutOfMemory)
			t.Logf("after %d buffers of 256 MiB: %v", len(list), err)
			break
		}
		list = append(list, b)
	}
	for _, b := range list {
		require.NoError(t, b.Close())
	}
	newBuffer(t, d, 256<<20, DeviceLocal)
}

func TestBuffersFromManyGoroutines(t *testing.T) {
	d := openExecuting(t)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for range 50 {
				b, err := d.NewBuffer(1+r.Uint64N(200_000), BufferOptions{Memory: Upload})
				if !assert.NoError(t, err) {
					return
				}
				for i := range b.Bytes() {
					b.Bytes()[i] = byte(g)
				}
				for _, v := range b.Bytes() {
					if v != byte(g) {
						t.Errorf("memory given out twice")
						break
					}
				}
				assert.NoError(t, b.Close())
			}
		})
	}
	wg.Wait()
	assert.Zero(t, d.Memory().Buffers)
}

// A buffer over 4 GiB, written at its far end.
func TestBuffersOver4GiB(t *testing.T) {
	d := openExecuting(t, func(o *Options) {
		o.OnMessage = func(m Message) { // one piece of advice is expected: see allocator.newBlock
			if !strings.HasSuffix(m.ID, "vkAllocateMemory-maxMemoryAllocationSize") {
				t.Errorf("validation: %v", m)
			}
		}
	})
	size := uint64(4<<30 + 4096)
	if l := d.Caps().Limits.MaxBufferBytes; l > 0 && l < size {
		t.Logf("the device has no buffers over %d bytes: 3 GiB instead", l)
		size = 3 << 30
	}
	b, err := d.NewBuffer(size, BufferOptions{})
	if err != nil {
		require.ErrorIs(t, err, ErrOutOfMemory)
		t.Skipf("the device has no such buffers: %v", err)
	}
	defer b.Close()
	s := newStream(t, d)
	want := []byte("the far end")
	require.NoError(t, s.Upload(b, size-uint64(len(want)), want))
	require.NoError(t, s.Upload(b, 0, []byte("the near end")))
	got := make([]byte, len(want))
	require.NoError(t, s.Download(background(t), got, b, size-uint64(len(want))))
	assert.Equal(t, want, got)
}
