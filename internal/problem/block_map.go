package problem

import "vkattn/vk"

// BlockMap is attention.BlockMap, whose comment documents it.
type BlockMap struct{ tiles TileMap }

// TileMap is what the library knows of a BlockMap.
type TileMap struct {
	Of         any        // the operation that made it
	Buffer     *vk.Buffer // nil: its calls take no map
	Size       MapSize
	Rows, Keys uint32 // of a tile
}

// NewBlockMap returns a map for a caller.
func NewBlockMap(m TileMap) *BlockMap { return &BlockMap{m} }

// TilesOf is the map behind one of a caller, the zero map for nil.
func TilesOf(m *BlockMap) TileMap {
	if m == nil {
		return TileMap{}
	}
	return m.tiles
}

// Close releases the memory of the map, when no call that was given it is in flight. It is idempotent.
func (m *BlockMap) Close() error {
	if m == nil {
		return nil
	}
	return m.tiles.Close()
}

// Close releases the memory.
func (m *TileMap) Close() error {
	if m == nil || m.Buffer == nil {
		return nil
	}
	return m.Buffer.Close()
}

// MapSize is the size of a map: the words of a row tile, one half for full tiles and one for masked ones. Heads and
// Sequences are 1 if all share it.
type MapSize struct{ Words, RowTiles, Heads, Sequences int }

// Bytes of the map, at least those of a word.
func (m MapSize) Bytes() uint64 {
	return max(4, 4*uint64(m.Words)*uint64(m.RowTiles)*uint64(m.Heads)*uint64(m.Sequences))
}

// Strides between sequences, heads and row tiles, in words.
func (m MapSize) Strides() (s [3]uint32) {
	s[2] = uint32(m.Words)
	if m.Heads > 1 {
		s[1] = s[2] * uint32(m.RowTiles)
	}
	if m.Sequences > 1 {
		s[0] = s[2] * uint32(m.RowTiles*m.Heads)
	}
	return s
}
