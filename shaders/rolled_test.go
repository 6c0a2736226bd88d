package shaders

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRolledAsksForNoUnrolledLoop(t *testing.T) {
	for _, name := range Names() {
		m, err := Get(name)
		require.NoError(t, err)
		r := m.Rolled()
		require.Same(t, r, m.Rolled())
		require.Len(t, r.Code, len(m.Code))
		nothing := func(kernel string) bool { return strings.HasPrefix(name, kernel) }
		if slices.ContainsFunc([]string{"merge", "append", "fragment", "backward_delta", "backward_sinks", "backward_table_sum"}, nothing) {
			require.Equal(t, m.Hash, r.Hash, "%s has nothing to unroll", name)
			continue
		}
		require.NotEqual(t, m.Hash, r.Hash, "%s asks for no unrolled loop at all", name)
		changed := 0
		for i := 0; i < len(m.Code); i += 4 {
			was, is := binary.LittleEndian.Uint32(m.Code[i:]), binary.LittleEndian.Uint32(r.Code[i:])
			if was != is {
				changed++
				require.EqualValues(t, loopUnroll, was)
				require.EqualValues(t, loopDontUnroll, is)
			}
		}
		require.NotZero(t, changed)
	}
}

func TestRolledSurvivesWhatIsNotSPIRV(t *testing.T) {
	for _, code := range [][]byte{nil, {1, 2, 3}, make([]byte, 40), {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 246, 0, 255, 255}} {
		m := &Module{Code: code}
		require.Equal(t, len(code), len(m.Rolled().Code))
	}
}
