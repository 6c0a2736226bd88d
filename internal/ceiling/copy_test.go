package ceiling

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// everyTransfer lists the variants of a kernel for this device and for a GPU.
func everyTransfer(t *testing.T, dev *vk.Device, module string) []*Transfer {
	t.Helper()
	list, err := transfers(dev, module)
	require.NoError(t, err)
	for _, w := range ways {
		w.invocations = min(w.invocations, maxInvocations(dev))
		one := &Transfer{dev: dev, module: module, way: w}
		require.NoError(t, one.build())
		list = append(list, one)
	}
	t.Cleanup(func() {
		for _, one := range list {
			require.NoError(t, one.Close())
		}
	})
	return list
}

// Sizes around a tile and around a round of all workgroups, at an offset.
func sizes(w way) (list []uint64) {
	tile := uint64(w.invocations * w.vectors)
	for _, n := range []uint64{1, 2, tile - 1, tile, tile + 1, 3*tile + 5, tile*min(uint64(w.groups), 16) + tile/2 + 3} {
		list = append(list, n*vectorBytes)
	}
	return list
}

func random(n uint64) []byte {
	out, r := make([]byte, n), rand.New(rand.NewPCG(1, n))
	for i := 0; i < len(out); i += 8 {
		binary.LittleEndian.PutUint64(out[i:], r.Uint64())
	}
	return out
}

// Every byte is copied, and none outside of the range.
func TestCopiesCopyEveryByte(t *testing.T) {
	dev := testdevice.Open(t)
	s := testdevice.Stream(t, dev, "copies")
	const before, after = 48, 32
	for _, k := range everyTransfer(t, dev, "copy") {
		require.Zero(t, k.SumBytes())
		for _, size := range sizes(k.way) {
			in := random(before + size + after)
			from, err := dev.NewBuffer(uint64(len(in)), vk.BufferOptions{})
			require.NoError(t, err)
			to, err := dev.NewBuffer(uint64(len(in)), vk.BufferOptions{})
			require.NoError(t, err)
			require.NoError(t, s.Upload(from, 0, in))
			require.NoError(t, s.Fill(vk.BufferRange{Buffer: to, Size: to.Size()}, 0))
			require.NoError(t, s.Barrier())
			require.NoError(t, k.Record(s, vk.BufferRange{Buffer: to, Offset: before, Size: size}, vk.BufferRange{Buffer: from, Offset: before, Size: size}))
			got := make([]byte, len(in))
			require.NoError(t, s.Download(context.Background(), got, to, 0))
			require.Equal(t, make([]byte, before), got[:before], "%s, %d bytes", k.Tile(), size)
			require.True(t, bytes.Equal(in[before:before+size], got[before:before+size]), "%s, %d bytes", k.Tile(), size)
			require.Equal(t, make([]byte, after), got[before+size:], "%s, %d bytes", k.Tile(), size)
			require.NoError(t, from.Close())
			require.NoError(t, to.Close())
		}
	}
}

// The sum is that of every word in the range.
func TestReadsAddUpEveryWord(t *testing.T) {
	dev := testdevice.Open(t)
	s := testdevice.Stream(t, dev, "reads")
	for _, k := range everyTransfer(t, dev, "read") {
		require.Positive(t, k.SumBytes())
		for _, size := range sizes(k.way) {
			in := random(16 + size + 16)
			from, err := dev.NewBuffer(uint64(len(in)), vk.BufferOptions{})
			require.NoError(t, err)
			require.NoError(t, s.Upload(from, 0, in))
			require.NoError(t, k.Record(s, vk.BufferRange{}, vk.BufferRange{Buffer: from, Offset: 16, Size: size}))
			got, err := k.Sum(context.Background(), s)
			require.NoError(t, err)
			var want uint32
			for i := uint64(16); i < 16+size; i += 4 {
				want += binary.LittleEndian.Uint32(in[i:])
			}
			require.Equal(t, want, got, "%s, %d bytes", k.Tile(), size)
			require.NoError(t, from.Close())
		}
	}
}
