package flagtext

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCount(t *testing.T) {
	require.Equal(t, "0 rows", Count(0, "row"))
	require.Equal(t, "1 row", Count(1, "row"))
	require.Equal(t, "2 rows", Count(int64(2), "row"))
}
