//go:build !windows

package vk

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestScratchHasZerosBeforeIt(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	for _, zeros := range []uint64{4, 256, 4096, 5000, 1 << 20} {
		for _, size := range []uint64{1, 100_000, 3 << 20} {
			b, first, err := s.Scratch(zeros, size)
			require.NoError(t, err)
			assert.Zero(t, first%256)
			require.GreaterOrEqual(t, first, zeros)
			require.GreaterOrEqual(t, b.Size(), first+size)
			// The scratch memory is left at other values; the zeros stay 0.
			require.NoError(t, s.Fill(BufferRange{Buffer: b, Offset: first}, 0xdeadbeef))
			require.NoError(t, s.Barrier())
			got := make([]byte, zeros)
			require.NoError(t, s.Download(background(t), got, b, first-zeros))
			require.Equal(t, make([]byte, zeros), got)
		}
	}
	require.NoError(t, s.Wait(background(t)))
}

// A buffer belongs to one batch until that has finished, and then to the next that
// asks for what it has.
func TestScratchIsUsedAgain(t *testing.T) {
	d := openExecuting(t)
	s, other := newStream(t, d), newStream(t, d)
	gate := newTimeline(t, d)
	first, _, err := s.Scratch(100, 1000)
	require.NoError(t, err)
	second, _, err := s.Scratch(100, 1000)
	require.NoError(t, err)
	require.NotSame(t, first, second, "one batch has both")
	require.NoError(t, s.WaitFor(gate, 1))
	submit(t, s)
	third, _, err := other.Scratch(100, 1000)
	require.NoError(t, err)
	require.NotSame(t, first, third, "in flight")
	require.NotSame(t, second, third, "in flight")
	require.NoError(t, gate.Signal(1))
	require.NoError(t, s.Wait(background(t)))
	require.NoError(t, other.Wait(background(t)))
	had := map[*Buffer]bool{first: true, second: true, third: true}
	buffers := d.Memory().Buffers
	for range 3 {
		b, _, err := s.Scratch(0, 1000)
		require.NoError(t, err)
		require.True(t, had[b], "given back")
		delete(had, b)
	}
	big, _, err := s.Scratch(0, 2<<20)
	require.NoError(t, err)
	require.NoError(t, s.Wait(background(t)))
	small, _, err := s.Scratch(0, 1000)
	require.NoError(t, err)
	require.NotSame(t, big, small, "far too large")
	require.NoError(t, s.Wait(background(t)))
	require.Equal(t, buffers+1, d.Memory().Buffers)
}

// The calls of a batch take one buffer in turn, and a larger one where they need more; the next batch has it too.
func TestSharedScratchIsTakenInTurn(t *testing.T) {
	d := openExecuting(t)
	s := newStream(t, d)
	take := func(size uint64) *Buffer {
		b, first, err := s.SharedScratch(size)
		require.NoError(t, err)
		require.LessOrEqual(t, first+size, b.Size())
		return b
	}
	first := take(1 << 20)
	barriers := s.Barriers()
	require.Same(t, first, take(1<<20))
	require.Same(t, first, take(1000))
	require.Equal(t, barriers+2, s.Barriers(), "each behind what the one before did")
	other, _, err := s.Scratch(0, 1<<20)
	require.NoError(t, err)
	require.NotSame(t, first, other)
	large := take(4 << 20)
	require.NotSame(t, first, large)
	require.Same(t, large, take(1<<20))
	require.NoError(t, s.Wait(background(t)))
	next := take(4 << 20)
	require.Same(t, large, next, "given back")
	require.Equal(t, barriers+4, s.Barriers(), "one more begins the batch")
	require.NoError(t, s.Wait(background(t)))
}

// Zeros are there for work that is submitted while the queue waits for something else:
// nobody waits for them.
func TestScratchDoesNotWaitForTheDevice(t *testing.T) {
	d := openExecuting(t)
	s, blocked := newStream(t, d), newStream(t, d)
	gate := newTimeline(t, d)
	x := newBuffer(t, d, 16, DeviceLocal)
	require.NoError(t, blocked.WaitFor(gate, 1))
	require.NoError(t, blocked.Fill(BufferRange{Buffer: x}, 1))
	submit(t, blocked)
	b, first, err := s.Scratch(64, 64)
	require.NoError(t, err)
	back := newBuffer(t, d, 64, Readback)
	require.NoError(t, s.Copy(BufferRange{Buffer: back}, BufferRange{Buffer: b, Offset: first - 64, Size: 64}))
	submit(t, s)
	require.NoError(t, gate.Signal(1))
	require.NoError(t, s.Wait(background(t)))
	require.Equal(t, make([]byte, 64), back.Bytes())
	require.NoError(t, blocked.Wait(background(t)))
}

// Unused scratch buffers over the bound are closed, except the largest. If memory runs out,
// none stays.
func TestScratchThatIsIdleIsBounded(t *testing.T) {
	d := openExecuting(t)
	d.scratch.bound = scratchIdle
	s := newStream(t, d)
	take := func(sizes ...uint64) (list []*Buffer) {
		for _, size := range sizes {
			b, _, err := s.Scratch(0, size)
			require.NoError(t, err)
			list = append(list, b)
		}
		require.NoError(t, s.Wait(background(t)))
		return list
	}
	big := take(scratchIdle+1<<20, scratchIdle/2, scratchIdle/2+1<<20, 1000)[0]
	require.LessOrEqual(t, d.scratch.idleBytes-big.Size(), uint64(scratchIdle))
	require.Len(t, d.scratch.idle, 3, "the first of the other two is closed")
	require.Equal(t, len(d.scratch.idle), d.Memory().Buffers)
	for range 3 {
		take(1000)
		require.Same(t, big, take(scratchIdle + 1<<20)[0], "large scratch is not allocated in every run")
	}
	require.True(t, d.reclaim())
	require.Zero(t, d.Memory().Buffers)
	require.False(t, d.reclaim())
	for _, c := range [][2]uint64{{maxZeros + 1, 4}, {4, scratchIdle}} {
		_, _, err := s.Scratch(c[0], c[1])
		require.ErrorIs(t, err, ErrUnsupported)
	}
}

// On a caller's queue nothing is submitted without a lock. Without one, nothing would
// order the caller's command buffer after the submission that writes the zeros.
func TestScratchOfAWrappedDevice(t *testing.T) {
	host := openExecuting(t)
	bare := wrapOf(t, host, func(e *External) { e.LockQueue, e.UnlockQueue = nil, nil })
	s, err := bare.NewStream("bare")
	require.NoError(t, err)
	_, _, err = s.Scratch(0, 100)
	require.NoError(t, err)
	_, _, err = s.Scratch(4, 100)
	require.ErrorIs(t, err, ErrUnsupported)
	require.NoError(t, bare.Close())

	d := wrapOf(t, host)
	s, err = d.NewStream("guarded")
	require.NoError(t, err)
	_, _, err = s.Scratch(4, 100)
	require.NoError(t, err)
	gate := newTimeline(t, d)
	require.NoError(t, s.WaitFor(gate, 1))
	submit(t, s)
	theirs := newStream(t, host)
	require.NoError(t, theirs.Barrier())
	c, err := d.WrapCommands(theirs.b.commands)
	require.NoError(t, err)
	_, _, err = c.Scratch(4, 100)
	require.ErrorIs(t, err, ErrUnsupported, "the zeros are behind what waits")
	require.NoError(t, gate.Signal(1))
	require.NoError(t, s.Wait(background(t)))
	require.NoError(t, d.WaitIdle())
	_, _, err = c.Scratch(4, 100)
	require.NoError(t, err)
	require.NoError(t, c.Release())
	require.NoError(t, gate.Close())
	require.NoError(t, d.Close())
}

func TestScratchBoundGrowsWithTheDevice(t *testing.T) {
	require.EqualValues(t, scratchIdle, scratchBound(nil))
	require.EqualValues(t, scratchIdle, scratchBound([]Heap{{Bytes: 2 << 30, DeviceLocal: true}, {Bytes: 64 << 30}}))
	require.EqualValues(t, 8<<30, scratchBound([]Heap{{Bytes: 128 << 30, DeviceLocal: true}}))
}
