package ceiling

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention/problem"
	"vkattn/vk"
)

func device(t *testing.T) (*vk.Device, *vk.Stream) {
	t.Helper()
	switch name := os.Getenv("VKATTN_DRIVER"); {
	case name == "", name == "none":
		t.Skip("no Vulkan driver under test (VKATTN_DRIVER)")
	case strings.HasPrefix(name, "radv-"):
		t.Skip("a null device computes nothing")
	}
	dev, err := vk.Open(vk.Options{Validation: os.Getenv("VKATTN_VALIDATION") == "1"})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, dev.Close())
		require.Empty(t, dev.ValidationMessages())
	})
	s, err := dev.NewStream("ceiling")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return dev, s
}

// The stored sums are those of every product that is counted.
func TestProductsAreComputed(t *testing.T) {
	dev, s := device(t)
	for _, dtype := range []problem.DType{problem.F32, problem.F16, problem.BF16} {
		t.Run(dtype.String(), func(t *testing.T) {
			k, err := NewProducts(dev, dtype)
			require.Equal(t, err == nil, Supported(dev, dtype) == nil)
			if errors.Is(err, vk.ErrUnsupported) {
				t.Skip(err)
			}
			require.NoError(t, err)
			defer func() { require.NoError(t, k.Close()) }()
			require.NoError(t, k.Verify(context.Background(), s))
			require.Positive(t, k.Flops())
			require.Positive(t, k.Bytes())
			require.Equal(t, dtype != problem.F32, k.Tile() != "")
			k.total += 1.0 / 16 // the least step of a sum
			require.ErrorIs(t, k.Verify(context.Background(), s), ErrWrong)
		})
	}
}

func TestTheEmptyKernelWritesNothing(t *testing.T) {
	dev, s := device(t)
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
	_, err := NewProducts(nil, problem.F16)
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.ErrorIs(t, Supported(nil, problem.F32), vk.ErrUnsupported)
	require.ErrorIs(t, Supported(nil, 99), problem.ErrInvalid)
	_, err = NewEmpty(nil)
	require.ErrorIs(t, err, vk.ErrUnsupported)
	var none *Kernel
	require.ErrorIs(t, none.Record(nil), problem.ErrInvalid)
	require.NoError(t, none.Close())
}
