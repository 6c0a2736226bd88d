package plan

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A subgroup loads contiguous keys only if their vectors divide evenly among its lanes. If
// a KV tile spans several pages, the keys of a subgroup are in one page.
func TestKeysPerSubgroup(t *testing.T) {
	v := func(subgroups, keys, dim, page uint32, contiguous bool) Variant {
		return Variant{
			Tile: coopmatTile{fragment: fragment{M: 16, N: 16, K: 16, Subgroup: 32}, Subgroups: subgroups, KVTile: keys,
				DvSlice: dim, Contiguous: contiguous},
			headDim: dim, headDimV: dim, Options: Options{pageSize: page},
		}
	}
	for _, c := range []struct {
		why  string
		v    Variant
		want uint32
	}{
		{"contiguous tile, no pages", v(8, 128, 64, 0, true), 16},
		{"tile not contiguous, no pages", v(8, 128, 64, 0, false), 0},
		{"one page per subgroup", v(8, 128, 64, 16, false), 16},
		{"a quarter of a page per subgroup", v(8, 32, 128, 16, false), 4},
		{"page size not a power of two", v(8, 128, 64, 48, false), 16},
		{"pages smaller than a subgroup's keys", v(8, 128, 64, 8, true), 0},
		{"pages that start among a subgroup's keys", v(8, 96, 64, 16, true), 0},
		{"tile within a page", v(8, 32, 128, 64, false), 0},
		{"contiguous tile within a page", v(8, 128, 64, 256, true), 16},
		{"keys do not divide among subgroups", v(8, 20, 64, 0, true), 0},
		{"vectors do not divide among lanes", v(8, 48, 192, 0, false), 0},
		{"vectors do not divide among lanes, contiguous tile", v(8, 8, 32, 0, true), 0},
	} {
		assert.Equal(t, c.want, c.v.Tile.(coopmatTile).keysPerSubgroup(&c.v), c.why)
	}
}
