package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"vkattn/internal/problem"
	"vkattn/vk"
)

// The table of candidate tiles. For each kernel family it is the cross product of the
// values in the tags of the tile's fields, starting from the heuristic's tile, without the
// tiles that the kernel cannot compute. docs/log/vulkan.md has measurements beyond these values:
// 4 M fragments per subgroup spill except at small head dims, and KV tiles of 128 or more
// keys spill at large ones.

// Tilings lists the tiles that can compute v, first v's own, the heuristic's. It ignores
// the device's limits and the shape; prune checks them.
func Tilings(v Variant) []tile {
	switch t := v.Tile.(type) {
	case scalarTile:
		return candidates(&v, t)
	case coopmatTile:
		return candidates(&v, t)
	case f32Tile:
		return candidates(&v, t)
	}
	return []tile{v.Tile}
}

// tileOf decodes the key of a tile of the same family as like. The tile need not be in the table.
func tileOf(like tile, key tileKey) (tile, bool) {
	t := reflect.New(reflect.TypeOf(like))
	d := json.NewDecoder(bytes.NewReader([]byte(key)))
	d.DisallowUnknownFields()
	if err := d.Decode(t.Interface()); err != nil {
		return nil, false
	}
	read := t.Elem().Interface().(tile)
	return read, KeyOf(read) == key
}

// tiling returns the tile of a key if it is in the table and can compute v on the device,
// or the reason why not.
func tiling(caps *vk.Caps, v Variant, key tileKey) (tile, string) {
	t, ok := tileOf(v.Tile, key)
	if !ok || !slices.Contains(Tilings(v), t) {
		return nil, notInTable(key)
	}
	v.Tile = t
	_, reason := Fits(caps, v, problem.Shape{B: 1, Hq: 1, Hkv: 1, Sq: 1, Sk: 1}) // fits every grid
	return t, reason
}

// notInTable is the reason why a stored tile is ignored.
func notInTable(key tileKey) string {
	return fmt.Sprintf("tile %q is not in the table of this build", string(key))
}
