package vk

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// A pipeline cache file is refused, or is exactly what its data is written as: a driver
// gets no byte that was not checked.
func FuzzPipelineCacheFile(f *testing.F) {
	good := formatCache([]byte("what a driver has compiled"))
	f.Add(good)
	f.Add(formatCache(nil))
	f.Add(good[:len(good)-1])
	f.Add(append(bytes.Clone(good), 0))
	for _, at := range []int{0, len(cacheMagic), cacheHead - 8, cacheHead - 1, cacheHead} {
		f.Add(flip(good, at))
	}
	f.Add([]byte(cacheMagic))
	f.Fuzz(func(t *testing.T, file []byte) {
		data, err := parseCache(file)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		require.True(t, bytes.Equal(file, formatCache(data)))
	})
}
