package problem

import (
	"errors"

	"vkattn/vk"
)

// BlockMap is attention.BlockMap, whose comment documents it.
type BlockMap struct {
	of    any // the operation that made it
	tiles TileMaps
}

// TileMaps are the maps of a call's kernels.
type TileMaps struct{ Forward, DQ, DKDV TileMap }

// TileMap is a map of one kernel.
type TileMap struct {
	Buffer *vk.Buffer // nil: the kernel takes no map
	At     uint64     // the first byte
	Size   MapSize
	Of     MapTiles
}

// MapTiles are the tiles that a map has bits of, and the order of its rows: kernels of other tiles or order do not read it.
type MapTiles struct {
	Rows, Keys uint32 // of a tile
	LastFirst  bool   // a sequence's last row tile comes first, though no causal mask says so
}

// NewBlockMap returns a map for a caller.
func NewBlockMap(of any, tiles TileMaps) *BlockMap { return &BlockMap{of, tiles} }

// MakerOf is the operation that made a map, nil for nil.
func MakerOf(m *BlockMap) any {
	if m == nil {
		return nil
	}
	return m.of
}

// TilesOf are the maps behind one of a caller, empty ones for nil.
func TilesOf(m *BlockMap) TileMaps {
	if m == nil {
		return TileMaps{}
	}
	return m.tiles
}

// Close releases the memory of the map, when no call that was given it is in flight. It is idempotent.
func (m *BlockMap) Close() (err error) {
	if m == nil {
		return nil
	}
	for _, t := range []*TileMap{&m.tiles.Forward, &m.tiles.DQ, &m.tiles.DKDV} {
		if t.Buffer != nil {
			err = errors.Join(err, t.Buffer.Close())
		}
	}
	return err
}

// Is reports whether m is a map of that size and of such tiles.
func (m TileMap) Is(size MapSize, of MapTiles) bool {
	return m.Buffer != nil && m.Size == size && m.Of == of
}

// MapSize is the size of a map: the words of a workgroup's row, one half for full tiles and one for masked ones, and the grid of
// the kernel along x, without splits and slices. Heads and Sequences are 1 if all share it.
type MapSize struct{ Words, Owners, Heads, Sequences int }

// Bytes of the map, at least those of a word.
func (m MapSize) Bytes() uint64 {
	return max(4, 4*uint64(m.Words)*uint64(m.Owners)*uint64(m.Heads)*uint64(m.Sequences))
}

// Strides between sequences, heads and rows, in words.
func (m MapSize) Strides() (s [3]uint32) {
	s[2] = uint32(m.Words)
	if m.Heads > 1 {
		s[1] = s[2] * uint32(m.Owners)
	}
	if m.Sequences > 1 {
		s[0] = s[2] * uint32(m.Owners*m.Heads)
	}
	return s
}

// Grid of the kernel that makes the map: it computes 32 tiles a workgroup.
func (m MapSize) Grid() [3]uint32 {
	return [3]uint32{uint32(m.Owners), uint32(m.Heads) * uint32(m.Words/2), uint32(m.Sequences)}
}
