package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cudapath"
	"vkattn/vk"
)

// The example computes the right thing where CUDA and Vulkan are there, and says
// what is missing elsewhere.
func TestExampleRuns(t *testing.T) {
	var out strings.Builder
	err := run(t.Context(), &out)
	if cudapath.Available() != nil || os.Getenv("VKATTN_DRIVER") != "native" && err != nil {
		require.Error(t, err)
		require.Empty(t, out.String())
		if cudapath.Available() != nil {
			require.ErrorIs(t, err, vk.ErrUnsupported)
		}
		return
	}
	require.NoError(t, err)
	require.Contains(t, out.String(), "\nok: ")
}
