package tensors

import (
	"testing"
	"vkattn/internal/problem"

	"github.com/stretchr/testify/require"
)

func TestLargestAlignment(t *testing.T) {
	require.Equal(t, uint32(8), LargestAlignment(64, 0, 128))
	require.Equal(t, uint32(4), LargestAlignment(64, 12))
	require.Equal(t, uint32(2), LargestAlignment(64, 6))
	require.Equal(t, uint32(1), LargestAlignment(64, 31))
}

// The reference holds the keys of a row: with lists of one length they are known.
func TestKeysOfARow(t *testing.T) {
	a := &problem.Args{Shape: problem.Shape{B: 2, Hq: 4, Hkv: 1, Sq: 8192, Sk: 100}}
	require.Equal(t, uint64(100), RowKeys(a))
	a.SparseTokens = &problem.SparseTokens{TopK: 2048, PerRow: true}
	require.Equal(t, uint64(2048), RowKeys(a))
	a.SparseTokens.TopK = 5
	require.Equal(t, uint64(100), RowKeys(a), "tokens may repeat")
}
