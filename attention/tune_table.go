package attention

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"vkattn/vk"
)

// The table of candidate tiles: for each kernel family the cross product of the values
// that the fields of its tile name, starting from the heuristic's tile, less what the
// kernel cannot compute. docs/log.md has what was measured beyond the ends of the values:
// 4 fragments of rows spill everywhere but at small head dims, and so do 128 or more keys
// at large ones.

// tilings lists the tiles that can compute v, whose own tile, the heuristic's, comes
// first. The device's limits and the shape are left to pruning.
func tilings(v variant) []tile {
	switch t := v.tile.(type) {
	case scalarTile:
		return candidates(&v, t)
	case coopmatTile:
		return candidates(&v, t)
	}
	return []tile{v.tile}
}

// tileOf reads a key of a tile of v's family, in the table or not.
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

// tiling finds the tile of a key among those that can compute v on a device.
func tiling(caps *vk.Caps, v variant, key tileKey, s Shape) (tile, string) {
	t, ok := tileOf(&v, key)
	if !ok || !slices.Contains(tilings(v), t) {
		return nil, fmt.Sprintf("tile %q is not in the table of this build", string(key))
	}
	v.tile = t
	_, reason := fits(caps, v, s)
	return t, reason
}
