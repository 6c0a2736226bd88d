package cudapath

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The launch table says what the cubins say, and every kernel fits a launch from Vulkan.
func TestCubinTable(t *testing.T) {
	table, err := embedded()
	require.NoError(t, err)
	require.Len(t, table.cubins, 12)
	for _, dtype := range []string{"f16", "bf16"} {
		for _, causal := range []bool{false, true} {
			for d, want := range map[int]int{8: 64, 64: 64, 72: 96, 96: 96, 104: 128, 128: 128} {
				k, why := table.cubin(dtype, d, d, causal)
				require.Empty(t, why)
				require.Equal(t, want, k.D)
				image, err := table.cubinImage(k)
				require.NoError(t, err)
				require.Contains(t, string(image), k.Entry)
				require.LessOrEqual(t, k.Shared, 47<<10)
				require.Equal(t, []Map{{"k", [4]uint32{64, uint32(k.Cols), 1, 1}, 128}, {"v", [4]uint32{64, uint32(k.Cols), 1, 1}, 128}}, k.Maps)
			}
			_, why := table.cubin(dtype, 136, 136, causal)
			require.Equal(t, "there is none for head dims 136/136", why)
		}
	}
	_, why := table.cubin("f32", 64, 64, false)
	require.Equal(t, "there is none for f32", why)
	var p cubinParams
	require.Len(t, p.bytes(), 2*128+184)
	for _, k := range table.kernels {
		require.NotEqual(t, cubinFamily, k.Family, "CUDA does not choose it")
	}
}
