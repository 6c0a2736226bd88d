package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/vk"
)

// The example computes the right thing on whatever driver is under test, and says
// that there is none where there is none.
func TestExampleRuns(t *testing.T) {
	var out strings.Builder
	err := run(&out)
	switch name := os.Getenv("VKATTN_DRIVER"); {
	case strings.HasPrefix(name, "radv-"):
		t.Skip("a null device computes nothing")
	case name == "" && err != nil, name == "none":
		require.ErrorIs(t, err, vk.ErrNoDevice)
	default:
		require.NoError(t, err)
		require.Contains(t, out.String(), "tier scalar")
		require.Contains(t, out.String(), "\nok: 1600 of 1600 rows")
	}
}
