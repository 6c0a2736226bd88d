package plan

import (
	"fmt"

	"vkattn/attention/score"
	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/problem"
	"vkattn/shaders"
	"vkattn/vk"
)

// Tile maps: which KV tiles a mask leaves to the row tiles of a general kernel. shaders/tile_map.comp makes them.

// Where a general kernel finds its map: Options.tileMap.
const (
	mapAtMask = 1 + iota // in place of the mask, with its strides
	mapAtBias            // in place of the bias
)

// Limits of calls with a map.
const (
	mapWords = 1 << 26 // of all row tiles
	mapCells = 1 << 19 // rows times keys from which on a map for one call pays: on an H200 its dispatch takes 4 us
	mapHeads = 4       // fewest heads and sequences that share a map whose slots have to be asked one by one
	mapLocal = 128     // invocations
	tileWord = 32      // tiles of a word of a map
)

// MapVariant is the key of a pipeline that makes the maps of a forward variant.
type MapVariant struct {
	module     string
	options    Options
	causal     bool
	rows, keys uint32 // of a tile
	modifiers  score.Modifiers
}

// MapOf returns the pipeline that makes the map of v's kernel; ok is false if it takes none.
func (v *Variant) MapOf(access problem.Access) (m MapVariant, ok bool) {
	if v.Options.tileMap == 0 {
		return m, false
	}
	m = MapVariant{dispatch.ModuleName("tile_map", access), v.Options, v.causal, v.Tile.Rows(), v.Tile.keys(), v.modifiers}
	m.options.tileMap, m.options.split, m.options.scoreMod = 0, true, 0 // splits are words of a row of the map
	m.options.bias, m.options.alibi, m.options.softcap, m.options.sinks, m.options.dropout = 0, false, false, false, false
	m.options.KV, m.options.kvBlock, m.options.pageSize = 0, 0, 0
	m.modifiers.Tiles = true
	return m, true
}

// Keys are those of a tile.
func (m *MapVariant) Keys() uint32 { return m.keys }

// Pipeline describes m to package vk.
func (m MapVariant) Pipeline(*problem.Config) (*vk.PipelineDesc, error) {
	module, err := shaders.Get(m.module)
	if err != nil {
		return nil, err
	}
	if module, err = module.Modified(m.modifiers); err != nil {
		return nil, err
	}
	c := map[uint32]uint32{shaders.ConstLocalSize: mapLocal, shaders.ConstHeadDimV: 1, shaders.ConstDvSlice: 1,
		shaders.ConstCausal: dispatch.BoolConstant(m.causal), shaders.ConstQTile: m.rows, shaders.ConstKvTile: m.keys}
	m.options.constants(c)
	desc, err := dispatch.DescribeKernel(module, mapLocal, c)
	if err != nil {
		return nil, err
	}
	desc.Name = fmt.Sprintf("%s %dx%d", m.module, m.rows, m.keys)
	return desc, nil
}

// MapSizeOf is the size of the map of a kernel with a grid of row tiles, heads and sequences.
func MapSizeOf(cfg *problem.Config, a *problem.Args, keys uint32, grid [3]int) problem.MapSize {
	m := problem.MapSize{Words: 2 * arith.CeilDiv(a.Sk, tileWord*int(keys)), RowTiles: grid[0], Heads: 1, Sequences: 1}
	perHead, perSequence := mapPer(cfg, OptionsOf(a, cfg).Lengths != 0)
	if a.Mask != nil {
		perHead, perSequence = perHead || a.Mask.Heads != 1, perSequence || a.Mask.Batches != 1
	}
	if a.Blocks != nil {
		perHead, perSequence = perHead || a.Blocks.Heads != 1, perSequence || a.Blocks.Batches != 1
	}
	if perHead {
		m.Heads = grid[1]
	}
	if perSequence {
		m.Sequences = grid[2]
	}
	return m
}

// mapPer reports whether heads and sequences have maps of their own.
func mapPer(cfg *problem.Config, lengths bool) (head, sequence bool) {
	e := cfg.MaskMod
	return e.Reads(score.Head) || e.Reads(score.KVHead), e.Reads(score.B) || lengths
}

// chooseMap decides whether a general kernel takes a map, and where it finds it.
func (v *Variant) chooseMap(cfg *problem.Config, r *Request) {
	o := &v.Options
	o.tileMap = 0
	if !o.maskMod || o.sparseTokens != 0 || v.IsDecode() {
		return
	}
	at := uint32(0)
	switch {
	case !o.mask && o.mapRows == 0:
		at = mapAtMask
	case o.bias == 0 && !(o.mask && o.mapRows != 0):
		at = mapAtBias
	default:
		return
	}
	// The numbers of a map have 32 bits, and it knows positions up to a limit.
	grid := v.grid(r, 1)
	rows := max(int(grid[0])*int(grid[1])*int(grid[2]/v.Slices()), 1)
	if r.Shape.Sq > score.MaxTilePosition || r.skAtLeast(min(score.MaxTilePosition, mapWords/rows/2*tileWord*int(v.Tile.keys()))) {
		return
	}
	if !r.BlockMap && !v.mapPays(cfg, r) {
		return
	}
	o.tileMap = at
}

// mapPays reports whether a map for one call takes less time than it saves. On drivers of the CPU a dispatch costs little.
func (v *Variant) mapPays(cfg *problem.Config, r *Request) bool {
	keys := max(mapCells/max(r.Shape.Sq, 1), 8*int(v.Tile.keys()))
	if v.onCPU {
		keys = 2 * int(v.Tile.keys())
	}
	if !r.skAtLeast(keys) {
		return false
	}
	if _, known := cfg.MaskMod.Tiles(); known || v.onCPU {
		return true
	}
	share := 1
	head, sequence := mapPer(cfg, r.Options.Lengths != 0)
	if !head {
		share *= r.Shape.Hq
	}
	if !sequence {
		share *= r.Shape.B
	}
	return share >= mapHeads
}

// TileMap reports whether the kernel takes a map, and whether that is in place of the bias or else of the mask.
func (f Options) TileMap() (taken, atBias bool) { return f.tileMap != 0, f.tileMap == mapAtBias }
