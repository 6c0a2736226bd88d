package attention

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"vkattn/attention/problem"
	"vkattn/vk"
)

// The table of candidate tiles. For each kernel family it is the cross product of the
// values in the tags of the tile's fields, starting from the heuristic's tile, without the
// tiles that the kernel cannot compute. docs/log.md has measurements beyond these values:
// 4 M fragments per subgroup spill except at small head dims, and KV tiles of 128 or more
// keys spill at large ones.

// tilings lists the tiles that can compute v, first v's own, the heuristic's. It ignores
// the device's limits and the shape; prune checks them.
func tilings(v variant) []tile {
	switch t := v.tile.(type) {
	case scalarTile:
		return candidates(&v, t)
	case coopmatTile:
		return candidates(&v, t)
	}
	return []tile{v.tile}
}

// tileOf decodes the key of a tile of v's family. The tile need not be in the table.
func tileOf(v *variant, key tileKey) (tile, bool) {
	t := reflect.New(reflect.TypeOf(v.tile))
	d := json.NewDecoder(bytes.NewReader([]byte(key)))
	d.DisallowUnknownFields()
	if err := d.Decode(t.Interface()); err != nil {
		return nil, false
	}
	read := t.Elem().Interface().(tile)
	return read, keyOf(read) == key
}

// tiling returns the tile of a key if it is in the table and can compute v on the device,
// or the reason why not.
func tiling(caps *vk.Caps, v variant, key tileKey, s problem.Shape) (tile, string) {
	t, ok := tileOf(&v, key)
	if !ok || !slices.Contains(tilings(v), t) {
		return nil, fmt.Sprintf("tile %q is not in the table of this build", string(key))
	}
	v.tile = t
	_, reason := fits(caps, v, s)
	return t, reason
}
