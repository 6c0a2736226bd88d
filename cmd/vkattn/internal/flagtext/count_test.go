package flagtext_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/flagtext"
)

func TestCount(t *testing.T) {
	require.Equal(t, "0 rows", flagtext.Count(0, "row"))
	require.Equal(t, "1 row", flagtext.Count(1, "row"))
	require.Equal(t, "2 rows", flagtext.Count(int64(2), "row"))
}
