package ceiling

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// The stored sums are those of every product that is counted, for the variants of this device
// and for all others that it can run.
func TestProductsAreComputed(t *testing.T) {
	dev := testdevice.Open(t)
	s := testdevice.Stream(t, dev, "ceiling")
	for _, dtype := range []problem.DType{problem.F32, problem.F16, problem.BF16} {
		t.Run(dtype.String(), func(t *testing.T) {
			list, err := Products(dev, dtype)
			require.Equal(t, err == nil, Supported(dev, dtype) == nil)
			if errors.Is(err, vk.ErrUnsupported) {
				t.Skip(err)
			}
			require.NoError(t, err)
			if dtype != problem.F32 {
				for _, variant := range append(slices.Clone(tiles), tileCPU, tile{64, 4, 8, 2, false}, tile{256, 2, 4, 1, false}) {
					k, err := newProducts(dev, dtype, variant)
					require.NoError(t, err)
					list = append(list, k)
				}
			}
			names := map[string]bool{}
			for _, k := range list {
				require.NoError(t, k.Verify(context.Background(), s), k.Tile())
				require.Positive(t, k.Flops())
				require.Positive(t, k.Bytes())
				require.Equal(t, dtype != problem.F32, k.Tile() != "")
				names[k.Tile()] = true
				k.total += 1.0 / 16 // the least step of a sum
				require.ErrorIs(t, k.Verify(context.Background(), s), ErrWrong)
				require.NoError(t, k.Close())
			}
			require.Equal(t, dtype == problem.F32, len(names) == 1)
		})
	}
}

func TestTheEmptyKernelWritesNothing(t *testing.T) {
	dev := testdevice.Open(t)
	s := testdevice.Stream(t, dev, "ceiling")
	k, err := NewEmpty(dev)
	if errors.Is(err, vk.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, k.Close()) }()
	require.Zero(t, k.Flops())
	require.NoError(t, s.Fill(vk.BufferRange{Buffer: k.sums, Size: k.sums.Size()}, 0x01020304))
	require.NoError(t, s.Barrier())
	require.NoError(t, k.Verify(context.Background(), s))
	got := make([]byte, k.sums.Size())
	require.NoError(t, s.Download(context.Background(), got, k.sums, 0))
	require.Equal(t, strings.Repeat("\x04\x03\x02\x01", len(got)/4), string(got))
}

func TestWithoutADeviceThereAreNoCeilings(t *testing.T) {
	_, err := Products(nil, problem.F16)
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.ErrorIs(t, Supported(nil, problem.F32), vk.ErrUnsupported)
	_, err = NewEmpty(nil)
	require.ErrorIs(t, err, vk.ErrUnsupported)
	_, err = Copies(nil)
	require.ErrorIs(t, err, vk.ErrUnsupported)
	_, err = Reads(nil)
	require.ErrorIs(t, err, vk.ErrUnsupported)
}
