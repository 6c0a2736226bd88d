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

// Tile maps: which of the tiles that a kernel loops over a mask leaves to each of its workgroups. The general forward kernels
// and the kernels of dQ and of dK and dV take them. shaders/tile_map.comp makes them.

// Where a kernel finds its map: Options.tileMap.
const (
	mapAtMask = 1 + iota // in place of the mask, with its strides
	mapAtBias            // in place of the bias
)

// Limits of calls with a map.
const (
	mapWords = 1 << 26 // of all workgroups
	mapCells = 1 << 19 // rows times keys from which on a map for one call pays: on an H200 its dispatch takes 4 us
	mapHeads = 4       // fewest heads and sequences that share a map whose slots have to be asked one by one
	mapLocal = 128     // invocations
	tileWord = 32      // tiles of a word of a map
	mapGridY = 65535   // workgroups along y that every device dispatches
)

// MapVariant is the key of a pipeline that makes the maps of a kernel.
type MapVariant struct {
	module     string
	options    Options
	causal     bool
	ofKeys     bool   // the kernel owns keys and loops over rows
	rows, keys uint32 // of a tile
	modifiers  score.Modifiers
}

// mapVariantOf is the pipeline for a kernel with these options.
func mapVariantOf(module string, access problem.Access, o Options, causal bool, rows, keys uint32, modifiers score.Modifiers) MapVariant {
	m := MapVariant{module: dispatch.ModuleName(module, access), options: o, causal: causal, rows: rows, keys: keys, modifiers: modifiers}
	m.options.tileMap, m.options.scoreMod = 0, 0
	m.options.bias, m.options.alibi, m.options.softcap, m.options.sinks, m.options.dropout = 0, 0, false, false, false
	m.options.KV, m.options.kvBlock, m.options.pageSize = 0, 0, 0
	m.modifiers.Tiles = true
	return m
}

// MapOf returns the pipeline that makes the map of v's kernel; ok is false if it takes none.
func (v *Variant) MapOf(access problem.Access) (m MapVariant, ok bool) {
	if v.Options.tileMap == 0 {
		return m, false
	}
	m = mapVariantOf("tile_map", access, v.Options, v.causal, v.Tile.Rows(), v.Tile.keys(), v.modifiers)
	m.options.split = true // splits are words of a row of the map
	return m, true
}

// Tiles are those that the map has bits of, and their order.
func (m *MapVariant) Tiles() problem.MapTiles {
	return problem.MapTiles{Rows: m.rows, Keys: m.keys, LastFirst: m.options.lastRowsFirst}
}

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
		shaders.ConstCausal: dispatch.BoolConstant(m.causal), shaders.ConstQTile: m.rows, shaders.ConstKvTile: m.keys,
		shaders.ConstMapOfKeys: dispatch.BoolConstant(m.ofKeys), shaders.ConstMapSides: m.modifiers.Mask.Tiles().Sides}
	m.options.constants(c)
	desc, err := dispatch.DescribeKernel(module, mapLocal, c)
	if err != nil {
		return nil, err
	}
	desc.Name = fmt.Sprintf("%s %dx%d", m.module, m.rows, m.keys)
	return desc, nil
}

// MapSizeOf is the size of the map of a forward kernel with a grid of row tiles, heads and sequences.
func MapSizeOf(cfg *problem.Config, a *problem.Args, keys uint32, grid [3]int) problem.MapSize {
	return mapSizeOf(a.Sk, keys, grid, MapsOf(cfg, a))
}

// mapSizeOf is the size of the map of a kernel that loops over tiles of n rows or keys.
func mapSizeOf(n int, tile uint32, grid [3]int, per MapsPer) problem.MapSize {
	m := problem.MapSize{Words: 2 * arith.CeilDiv(n, tileWord*int(tile)), Owners: grid[0], Heads: 1, Sequences: 1}
	if per.Head {
		m.Heads = grid[1]
	}
	if per.Sequence {
		m.Sequences = grid[2]
	}
	return m
}

// MapsPer says whether heads and sequences have maps of their own.
type MapsPer struct{ Head, Sequence bool }

// MapsOf reports whether heads and sequences of a call have maps of their own.
func MapsOf(cfg *problem.Config, a *problem.Args) MapsPer {
	per := mapsPer(cfg, OptionsOf(a, cfg).Lengths != 0)
	if a.Mask != nil {
		per = MapsPer{per.Head || a.Mask.Heads != 1, per.Sequence || a.Mask.Batches != 1}
	}
	if a.Blocks != nil {
		per = MapsPer{per.Head || a.Blocks.Heads != 1, per.Sequence || a.Blocks.Batches != 1}
	}
	return per
}

// mapsPer is MapsOf without a mask and blocks.
func mapsPer(cfg *problem.Config, lengths bool) MapsPer {
	e := cfg.MaskMod
	return MapsPer{e.Reads(score.Head) || e.Reads(score.KVHead), e.Reads(score.B) || lengths}
}

// mapPlace is where the kernels of a call find a map; 0: they take none.
func (f *Options) mapPlace() uint32 {
	switch {
	case !f.maskMod || f.sparseTokens != 0:
	case !f.mask && f.mapRows == 0:
		return mapAtMask
	case f.bias == 0 && !(f.mask && f.mapRows != 0):
		return mapAtBias
	}
	return 0
}

// chooseMap decides whether a general kernel takes a map, and where it finds it.
func (v *Variant) chooseMap(cfg *problem.Config, r *Request) {
	o := &v.Options
	o.tileMap, o.lastRowsFirst = 0, false
	at := o.mapPlace()
	if at == 0 || v.IsDecode() {
		return
	}
	// The numbers of a map have 32 bits, and it knows positions up to a limit.
	grid := v.grid(r, 1)
	heads := max(int(grid[1]), 1)
	rows := max(int(grid[0])*heads*int(grid[2]/v.Slices()), 1)
	words := min(mapWords/rows/2, mapGridY/heads) // of a row
	if r.Shape.Sq > score.MaxTilePosition || r.skAtLeast(min(score.MaxTilePosition, words*tileWord*int(v.Tile.keys()))) {
		return
	}
	if !r.BlockMap && !v.mapPays(cfg, r) {
		return
	}
	o.tileMap, o.lastRowsFirst = at, !v.causal && leavesLaterRowsMore(cfg, &r.Shape)
}

// leavesLaterRowsMore reports whether the first row of a call attends to no key of the second half of those behind it, as under a
// causal mask: then the longest row tiles are probably the last ones, and start first.
func leavesLaterRowsMore(cfg *problem.Config, s *problem.Shape) bool {
	at := 0
	if problem.Alignment(cfg) == problem.BottomRight {
		at = max(s.Sk-s.Sq, 0)
	}
	over := score.Tile{I0: at, I1: at, J0: at + (s.Sk-at)/2, J1: s.Sk - 1}
	return over.J0 <= over.J1 && cfg.MaskMod.Bounds(over).Hi == 0
}

// mapPays reports whether a map for one call takes less time than it saves. On drivers of the CPU a dispatch costs little.
func (v *Variant) mapPays(cfg *problem.Config, r *Request) bool {
	keys := max(mapCells/max(r.Shape.Sq, 1), 8*int(v.Tile.keys()))
	if v.onCPU {
		keys = 2 * int(v.Tile.keys())
	}
	return r.skAtLeast(keys) && (v.onCPU || mapIsShared(cfg, &r.Shape, r.Options.Lengths))
}

// mapIsShared reports whether the map of a mask is cheap to make, or shared by many heads and sequences.
func mapIsShared(cfg *problem.Config, s *problem.Shape, lengths uint32) bool {
	if cfg.MaskMod.Tiles().Known {
		return true
	}
	share, per := 1, mapsPer(cfg, lengths != 0)
	if !per.Head {
		share *= s.Hq
	}
	if !per.Sequence {
		share *= s.B
	}
	return share >= mapHeads
}

// TileMap reports whether the kernel takes a map, and whether that is in place of the bias or else of the mask.
func (f Options) TileMap() (taken, atBias bool) { return f.tileMap != 0, f.tileMap == mapAtBias }

// -- gradients --

// mapPlace is where the kernels of dQ and of dK and dV find a map; 0: they take none.
func (r *BackwardRequest) mapPlace(cfg *problem.Config, onCPU bool) uint32 {
	s := &r.Shape
	keys := max(mapCells/max(s.Sq, 1), 512)
	if onCPU {
		keys = 32
	}
	switch {
	case r.NoMaps || max(s.Sq, s.Sk) > score.MaxTilePosition:
		return 0
	case !r.BlockMap && (s.Sk < keys || !onCPU && !mapIsShared(cfg, s, r.Options.Lengths)):
		return 0
	}
	return r.Options.mapPlace()
}

// chooseMap gives a kernel a map, which it finds there, if its size has 32 bits.
func (k *BackwardKernel) chooseMap(cfg *problem.Config, r *BackwardRequest, at uint32) {
	if at == 0 {
		return
	}
	v := &k.Variant
	rows, keys := v.Tile.QTile, v.Tile.KVTile
	n, tile := r.Shape.Sk, keys
	switch v.Kernel {
	case KernelDQ:
		if v.Coopmat != (backwardCoopmatTile{}) {
			rows, keys = v.Coopmat.Rows(), v.Coopmat.KVTile
			tile = keys
		}
	case KernelDKDV:
		if v.Coopmat != (backwardCoopmatTile{}) {
			rows, keys = v.Coopmat.RowTile, v.Coopmat.Rows()
		}
		n, tile = r.Shape.Sq*max(1, int(v.Options.packRows)), rows
	default:
		return
	}
	size := mapSizeOf(n, tile, [3]int{int(k.Groups[0]), int(k.Groups[1]), int(k.Groups[2])}, r.Maps)
	if size.Bytes() > 4*mapWords || size.Grid()[1] > mapGridY {
		return
	}
	v.Options.tileMap, v.Options.lastRowsFirst = at, v.Kernel == KernelDQ && !v.causal && leavesLaterRowsMore(cfg, &r.Shape)
	k.MapSize, k.Map = size, mapVariantOf("backward_tile_map", r.Access, v.Options, v.causal, rows, keys, v.modifiers)
	k.Map.ofKeys = v.Kernel == KernelDKDV
}

// TakesMap reports whether the kernel takes a map.
func (k *BackwardKernel) TakesMap() bool { return k.Variant.Options.tileMap != 0 }

// MapIn is the kernel's map among those of its call.
func (k *BackwardKernel) MapIn(maps *problem.TileMaps) *problem.TileMap {
	if k.Variant.Kernel == KernelDKDV {
		return &maps.DKDV
	}
	return &maps.DQ
}

// MapBytes are the bytes of the kernel's map, at the end of scratch memory.
func (k *BackwardKernel) MapBytes() uint64 {
	if !k.TakesMap() {
		return 0
	}
	return k.MapSize.Bytes()
}
