//go:build cgo && !windows

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/vk"
)

// The example computes the right thing on whatever driver is under test, and says
// that there is none where there is none.
func TestExampleRuns(t *testing.T) {
	name := os.Getenv("VKATTN_DRIVER")
	if strings.HasPrefix(name, "radv-") {
		t.Skip("a null device computes nothing")
	}
	var out strings.Builder
	err := run(&out)
	if name == "none" || name == "" && err != nil {
		require.ErrorIs(t, err, vk.ErrNoDevice)
		return
	}
	require.NoError(t, err)
	// A GPU of NVIDIA runs tier cubin. Elsewhere the example says what is missing.
	if strings.Contains(out.String(), "not by tier cubin") {
		require.Contains(t, out.String(), "VK_NVX_binary_import")
		require.Contains(t, out.String(), "tier scalar")
	} else {
		require.Contains(t, out.String(), "tier cubin (attn_cubin_")
	}
	var worst float64
	_, last, _ := strings.Cut(out.String(), "\nO differs from the float64 reference by at most ")
	_, err = fmt.Sscan(last, &worst)
	require.NoError(t, err)
	require.Less(t, worst, 1e-3)
}
