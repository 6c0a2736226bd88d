package tensors

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLargestAlignment(t *testing.T) {
	require.Equal(t, uint32(8), LargestAlignment(64, 0, 128))
	require.Equal(t, uint32(4), LargestAlignment(64, 12))
	require.Equal(t, uint32(2), LargestAlignment(64, 6))
	require.Equal(t, uint32(1), LargestAlignment(64, 31))
}
