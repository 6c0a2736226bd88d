package vk

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// windowBuffer is a buffer of a device with these limits, without Vulkan.
func windowBuffer(offset, size, align, most uint64) *Buffer {
	d := &Device{}
	d.info.Caps.Limits = Limits{MinStorageBufferOffsetAlignment: align, MaxStorageBufferRange: most}
	return &Buffer{d: d, offset: offset, size: size, capacity: alignUp(size, padding)}
}

func TestAWindowBeginsAtTheAlignment(t *testing.T) {
	for _, c := range []struct {
		name                       string
		offset, size, align        uint64 // of the buffer, of the device
		at, bytes                  uint64 // of the access
		wantOffset, want, wantSize uint64 // of the window, of the access in it
	}{
		{"aligned", 0, 100, 16, 32, 8, 32, 0, 8},
		{"between", 0, 100, 16, 38, 8, 32, 6, 14},
		{"whole", 0, 100, 256, 0, 100, 0, 0, 100},
		{"last byte", 0, 100, 64, 99, 1, 64, 35, 36},
		{"no alignment is a word", 0, 100, 1, 7, 2, 4, 3, 5},
		{"wrapped", 64, 100, 64, 70, 8, 64, 6, 14},
		{"wrapped at less than the alignment", 16, 100, 64, 3, 8, 0, 3, 11},
		{"wrapped, next multiple", 16, 100, 64, 50, 8, 48, 2, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := windowBuffer(c.offset, c.size, c.align, 1<<20)
			r, first, err := b.Window(c.at, c.bytes)
			require.NoError(t, err)
			require.Equal(t, BufferRange{Buffer: b, Offset: c.wantOffset, Size: c.wantSize}, r)
			require.Equal(t, c.want, first)
		})
	}
}

func TestAWindowHasLimits(t *testing.T) {
	b := windowBuffer(0, 1<<20, 16, 1000)
	require.EqualValues(t, 984, b.d.info.Caps.Limits.MaxWindow())
	_, _, err := b.Window(32, 1000)
	require.NoError(t, err)
	_, _, err = b.Window(33, 999)
	require.NoError(t, err)
	for _, c := range [][2]uint64{{32, 1001}, {33, 1000}, {47, 986}, {0, 1 << 20}} {
		_, _, err = b.Window(c[0], c[1])
		require.ErrorIs(t, err, ErrUnsupported, "%v", c)
		require.ErrorContains(t, err, "a descriptor holds 1000")
	}
	for _, c := range [][2]uint64{{0, 0}, {1 << 20, 1}, {0, 1<<20 + 1}, {1<<20 - 1, 2}, {math.MaxUint64, 2}, {5, math.MaxUint64}} {
		_, _, err = b.Window(c[0], c[1])
		require.ErrorIs(t, err, ErrInvalid, "%v", c)
	}
	for _, b := range []*Buffer{nil, {}} {
		_, _, err = b.Window(0, 1)
		require.ErrorIs(t, err, ErrInvalid)
	}
	require.Zero(t, (*Limits)(nil).MaxWindow())
	require.Zero(t, (&Limits{MaxStorageBufferRange: 100, MinStorageBufferOffsetAlignment: 256}).MaxWindow())
	// A range of 2^32-1 bytes cannot be rounded up to a word.
	b = windowBuffer(0, 1<<33, 16, math.MaxUint32)
	_, _, err = b.Window(0, math.MaxUint32)
	require.ErrorIs(t, err, ErrUnsupported)
	_, _, err = b.Window(0, math.MaxUint32-3)
	require.NoError(t, err)
}

// Dispatch takes every window, and every size up to MaxWindow has one.
func TestPropertyAWindowCanBeBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		align := uint64(1) << rapid.IntRange(0, 9).Draw(t, "log2 align")
		most := rapid.Uint64Range(1, 5000).Draw(t, "max range")
		b := windowBuffer(align*rapid.Uint64Range(0, 9).Draw(t, "wrapped offset"), rapid.Uint64Range(1, 4000).Draw(t, "buffer"), align, most)
		at := rapid.Uint64Range(0, b.size-1).Draw(t, "offset")
		size := rapid.Uint64Range(1, b.size-at).Draw(t, "size")
		l := &b.d.info.Caps.Limits
		r, first, err := b.Window(at, size)
		if err != nil {
			require.ErrorIs(t, err, ErrUnsupported)
			require.Greater(t, size, l.MaxWindow())
			return
		}
		require.Equal(t, at, r.Offset+first, "the access begins at first")
		require.Equal(t, size, r.Size-first, "and ends with the window")
		require.Zero(t, (b.offset+r.Offset)%align)
		require.Less(t, first, max(4, align))
		_, _, ok := r.resolve()
		require.True(t, ok)
		require.LessOrEqual(t, alignUp(r.Size, 4), most, "rounded up as Dispatch does")
	})
}
