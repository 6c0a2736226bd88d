package sweep

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A list is refused in one line, or is positive numbers, each once and not too many, that
// read back as themselves.
func FuzzInts(f *testing.F) {
	for _, list := range []string{"64,128", "1024-16384*2", "64-256+64", " 8-8+1 ,3", "1-2147483647*1000", "2147483647-2147483647+2147483647",
		"1-9999999+1", "-4", "5-3*2", "1-4*1", "", ",", "1e3", "9223372036854775808", "0x10", "1-4096+1,5000-6000+1"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		got, err := Ints(list)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		require.LessOrEqual(t, len(got), limit)
		var words []string
		seen := map[int]bool{}
		for _, v := range got {
			require.Positive(t, v)
			require.False(t, seen[v], "%d is there twice", v)
			seen[v] = true
			words = append(words, strconv.Itoa(v))
		}
		again, err := Ints(strings.Join(words, ","))
		require.NoError(t, err)
		require.True(t, slices.Equal(got, again))
	})
}
