package cudapath

import (
	"encoding/hex"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The maps are those that cuTensorMapEncodeTiled wrote for the same tensors on an H200
// (driver 580.159.04, no L2 promotion), in the 64 bytes that describe the tensor. CUDA notes
// the bytes of a box and the rank behind them; the hardware does not need these.
func TestTensorMapsAreThoseOfCUDA(t *testing.T) {
	for i, c := range []struct {
		spec tensorMapSpec
		want string
	}{
		{tensorMapSpec{0x7f1234567890, [4]uint64{128, 4096, 8, 16}, [3]uint64{256, 1048576, 8388608}, [4]uint32{64, 32, 1, 1}},
			"90785634127f00003063000010000000000001000000080000000000000000007f000000ff0f0000070000000f000000000000000000003f1f00000000000000"},
		{tensorMapSpec{0x10, [4]uint64{8, 77, 1, 3}, [3]uint64{65536, 16, 1099511627760}, [4]uint32{64, 80, 1, 1}},
			"1000000000000000306300000010000001000000ffffffff00000000000f0000070000004c0000000000000002000000000000000000003f4f00000000000000"},
		{tensorMapSpec{0x100000000, [4]uint64{40, 100000, 5, 1}, [3]uint64{16777216, 80, 16}, [4]uint32{64, 112, 1, 1}},
			"0000000001000000306300000000100005000000010000000000000000000000270000009f8601000400000000000000000000000000003f6f00000000000000"},
		{tensorMapSpec{0x100000000, [4]uint64{72, 1, 1, 1}, [3]uint64{16, 16, 16}, [4]uint32{64, 256, 1, 1}},
			"000000000100000030630000010000000100000001000000000000000000000047000000000000000000000000000000000000000000003fff00000000000000"},
		{tensorMapSpec{0x100000000, [4]uint64{96, 513, 1, 2}, [3]uint64{192, 16, 0}, [4]uint32{64, 48, 1, 1}},
			"0000000001000000306300000c000000010000000000000000000000000000005f000000000200000000000001000000000000000000003f2f00000000000000"},
	} {
		var m tensorMap
		require.NoError(t, c.spec.encode(&m), "map %d", i)
		require.Equal(t, c.want, hex.EncodeToString(m[:len(c.want)/2]), "map %d", i)
	}
}

func TestTensorMapRefusals(t *testing.T) {
	good := tensorMapSpec{1 << 20, [4]uint64{64, 100, 2, 3}, [3]uint64{128, 12800, 25600}, [4]uint32{64, 32, 1, 1}}
	var m tensorMap
	require.NoError(t, good.encode(&m))
	for _, c := range []struct {
		change func(s *tensorMapSpec)
		want   string
	}{
		{func(s *tensorMapSpec) { s.address++ }, "address 0x100001"},
		{func(s *tensorMapSpec) { s.sizes[1] = 0 }, "dimension 1 has size 0"},
		{func(s *tensorMapSpec) { s.sizes[1] = 1<<32 + 1 }, "dimension 1 has size 4294967297"},
		{func(s *tensorMapSpec) { s.box[1] = 257 }, "box 257"},
		{func(s *tensorMapSpec) { s.box[1] = 0 }, "box 0"},
		{func(s *tensorMapSpec) { s.strides[0] = 120 }, "stride of 120 bytes"},
		{func(s *tensorMapSpec) { s.strides[2] = 1 << 40 }, "stride of 1099511627776 bytes"},
		{func(s *tensorMapSpec) { s.strides[1] = math.MaxUint64 - 15 }, "stride of"}, // negative
	} {
		bad := good
		c.change(&bad)
		require.ErrorContains(t, bad.encode(&m), c.want)
	}
	// The stride of a dimension of one element is not used.
	good.sizes[3], good.strides[2] = 1, 7
	require.NoError(t, good.encode(&m))
}
