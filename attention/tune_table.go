package attention

import (
	"fmt"
	"slices"

	"vkattn/vk"
)

// The table of candidate tilings: for each kernel family the fields of a tile that
// are varied, with the values they take. Candidates are their cross product,
// starting from the heuristic's tile, less what the kernel cannot compute. A field
// without an axis keeps the heuristic's value.

// axis is one number of a tile and the values it takes for a variant.
type axis struct {
	name   string
	set    func(t *tile, n uint32)
	values func(v *variant) []uint32
}

// coopmatAxes are those of forward_coopmat.comp. docs/log.md has what was measured
// beyond their ends: 4 fragments of rows spill everywhere but at small head dims, and
// so do 128 or more keys at large ones.
var coopmatAxes = []axis{
	{"subgroups", func(t *tile, n uint32) { t.local = n * t.subgroup }, values(1, 2, 4, 8, 12, 16)},
	{"row fragments", func(t *tile, n uint32) { t.mFrags = n }, values(1, 2, 4)},
	{"keys", func(t *tile, n uint32) { t.kvTile = n }, values(8, 16, 32, 48, 64, 80, 96, 128)},
	{"keys of a step", func(t *tile, n uint32) { t.kvStep = n }, values(8, 16, 32, 64)},
	{"chunks of Q staged", func(t *tile, n uint32) { t.qSmemChunks = n }, values(0, 1, 2, 3, 4, 5, 6, 7, 8)},
	{"columns of O", func(t *tile, n uint32) { t.dvSlice = n }, slicesOfO},
}

// scalarAxes are those of forward_scalar.comp.
var scalarAxes = []axis{
	{"invocations", func(t *tile, n uint32) { t.local = n }, values(128, 256, 512)},
	{"invocations along keys", func(t *tile, n uint32) { t.threadsX = n }, values(8, 16)},
	{"rows", func(t *tile, n uint32) { t.blockRows = n }, values(16, 32, 64, 128)},
	{"keys", func(t *tile, n uint32) { t.kvTile = n }, values(16, 32, 64, 128)},
	{"columns of Q and K at once", func(t *tile, n uint32) { t.chunkD = n }, values(16, 32)},
	{"keys of V at once", func(t *tile, n uint32) { t.chunkV = n }, values(8, 16)},
}

func values(n ...uint32) func(*variant) []uint32 { return func(*variant) []uint32 { return n } }

// slicesOfO are all columns, halves and quarters of them, in whole fragments and at
// least 64 columns. Each slice computes all scores again.
func slicesOfO(v *variant) []uint32 {
	list := []uint32{v.tile.dvSlice}
	for count := uint32(1); count <= 4; count *= 2 {
		n := v.headDimV
		if count > 1 {
			n = ceilDiv(ceilDiv(v.headDimV, count), v.tile.n) * v.tile.n
		}
		if !slices.Contains(list, n) && (count == 1 || n >= 64) {
			list = append(list, n)
		}
	}
	return list
}

// tilings lists the tiles that can compute v, whose own tile, the heuristic's,
// comes first. The device's limits and the shape are left to pruning.
func tilings(v variant) []tile {
	axes := scalarAxes
	if v.tile.subgroup != 0 {
		axes = coopmatAxes
	}
	list := []tile{v.tile}
	for _, a := range axes {
		var next []tile
		for _, t := range list {
			for _, n := range a.values(&v) {
				a.set(&t, n)
				next = append(next, t)
			}
		}
		list = next
	}
	all := []tile{v.tile}
	for _, t := range list {
		if t != v.tile && t.computes(v.headDimV) && (t.qSmemChunks == 0 || t.qSmemChunks <= t.chunks(v.headDim)) {
			all = append(all, t)
		}
	}
	return all
}

// computes reports whether the kernel's own conditions hold: those that the
// comments of coopmatTiles and scalarSizes give.
func (t tile) computes(headDimV uint32) bool {
	whole := t.dvSlice >= headDimV || t.dvSlice%8 == 0
	if t.subgroup != 0 {
		return whole && t.kvTile%t.kvStep == 0 && t.kvStep%t.n == 0 &&
			t.kvTile >= t.m && (t.dvSlice >= headDimV || t.dvSlice%t.n == 0)
	}
	if t.local%t.threadsX != 0 {
		return false
	}
	y := t.local / t.threadsX
	return whole && t.threadsX%4 == 0 && t.kvTile%t.threadsX == 0 && t.blockRows%y == 0 &&
		t.chunkD%8 == 0 && t.chunkV%4 == 0 && t.kvTile%t.chunkV == 0
}

// key is a tile as text, every field of it: what the cache stores, so that a tile
// is only ever taken from the table and never from a file.
func (t tile) key() string {
	type fields tile // without String
	s := fmt.Sprintf("%+v", fields(t))
	return s[1 : len(s)-1] // and tileOf reads it
}

// tileOf reads a key. It may be of any tile, in the table or not.
func tileOf(key string) (t tile, ok bool) {
	_, err := fmt.Sscanf(key, "local:%d kvTile:%d dvSlice:%d m:%d n:%d k:%d sumN:%d subgroup:%d mFrags:%d kvStep:%d qSmemChunks:%d splitKV:%t aliasKV:%t operands:%d dimSplit:%d prefetch:%d keysPerSubgroup:%t "+
		"blockRows:%d threadsX:%d chunkD:%d chunkV:%d",
		&t.local, &t.kvTile, &t.dvSlice, &t.m, &t.n, &t.k, &t.sumN, &t.subgroup, &t.mFrags, &t.kvStep, &t.qSmemChunks,
		&t.splitKV, &t.aliasKV, &t.operands, &t.dimSplit, &t.prefetch, &t.keysPerSubgroup, &t.blockRows, &t.threadsX, &t.chunkD, &t.chunkV)
	return t, err == nil && t.key() == key
}

// tiling finds the tile of a key among those that can compute v on a device.
func tiling(caps *vk.Caps, v variant, key string, s Shape) (tile, string) {
	t, ok := tileOf(key)
	if !ok || !slices.Contains(tilings(v), t) {
		return tile{}, fmt.Sprintf("tile %q is not in the table of this build", key)
	}
	v.tile = t
	_, reason := fits(caps, v, s)
	return t, reason
}
