package bench

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Text for lengths of sequences is refused in one line, or it gives 1 to maxSequences
// sequences, at least one with rows and keys, and reads back as the same lengths.
func FuzzParseLengths(f *testing.F) {
	for _, s := range []string{"600*1/1024,5*2048/2048", "1,2,3", "0/5,7/0,1", "4*16", " 2 * 3 / 4 ", "65536*1", "65537*1", "0*1", "1*2*3",
		"2147483647/2147483647", "2147483648", "1//2", "-1", "", "*", "/"} {
		f.Add(s, 0)
		f.Add(s, 5)
	}
	f.Fuzz(func(t *testing.T, s string, rows int) {
		rows &= math.MaxInt32 // what the flag takes
		l, err := ParseLengths(s, rows)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		r, k := l.lists()
		require.Len(t, k, len(r))
		require.NotEmpty(t, r)
		require.LessOrEqual(t, len(r), maxSequences)
		some := false
		for i := range r {
			require.True(t, r[i] >= 0 && k[i] >= 0 && r[i] <= math.MaxInt32 && k[i] <= math.MaxInt32)
			some = some || r[i] > 0 && k[i] > 0
		}
		require.True(t, some)
		again, err := ParseLengths(string(l), rows)
		require.NoError(t, err)
		require.Equal(t, l, again)
	})
}
