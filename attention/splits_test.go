package attention_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// Workgroups occupy a core each only if they then leave few cores idle.
func TestWorkgroupsTakeCoresThatTheyFill(t *testing.T) {
	const cores, round = 132, 128
	of := func(b, hkv, keys int) attention.Shape {
		return attention.Shape{B: b, Hq: 4 * hkv, Hkv: hkv, Sq: 1, Sk: keys}
	}
	for _, c := range []struct {
		name      string
		shape     attention.Shape
		cores     uint32
		rowBlocks uint32
		want      bool
	}{
		{"two splits", of(8, 8, 8192), cores, 1, true},
		{"many splits", of(1, 8, 32768), cores, 1, true},
		{"a row and all cores", of(1, 1, 132*round), cores, 1, true},
		{"too few keys for them", of(1, 1, 132*round-1), cores, 1, false},
		{"too many cores left", of(3, 8, 8192), cores, 1, false},
		{"no splits", of(8, 16, 8192), cores, 1, false},
		{"more than there are cores", of(8, 32, 8192), cores, 1, false},
		{"two blocks of rows", of(8, 8, 8192), cores, 2, false},
		{"a device that does not tell", of(8, 8, 8192), 0, 1, false},
	} {
		require.Equal(t, c.want, attention.FillsCores(c.shape, c.cores, c.rowBlocks, round), c.name)
	}
}
