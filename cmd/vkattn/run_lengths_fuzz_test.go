package main

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// Bounds of packed sequences are refused in one line, or every sequence lies within the
// rows there are, one after another.
func FuzzDifferences(f *testing.F) {
	for _, cu := range [][]int32{{0, 3, 7}, {0, 0}, {2, 1}, {-1, 4}, {0, 2147483647}, {-2147483648, 2147483647}, {5}, {}} {
		b := make([]byte, 4*len(cu))
		for i, n := range cu {
			binary.LittleEndian.PutUint32(b[4*i:], uint32(n))
		}
		f.Add(b, 7)
		f.Add(b, 1<<31-1)
	}
	f.Fuzz(func(t *testing.T, b []byte, rows int) {
		cu := make([]int32, len(b)/4)
		for i := range cu {
			cu[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
		}
		lengths, err := differences(cu, rows)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		require.Len(t, lengths, max(0, len(cu)-1))
		sum := 0
		for _, n := range lengths {
			require.GreaterOrEqual(t, n, 0)
			sum += n
		}
		if len(cu) > 0 {
			require.LessOrEqual(t, int(cu[0])+sum, rows)
		}
	})
}
