package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"vkattn/cudapath"
)

// The kernels that a Vulkan command buffer launches. All fit its 47 KiB of dynamic shared
// memory. Their tiles were chosen on an H200 among those that docs/log/cubin.md lists.

// cubinTile is a tile of cubin.cu; cubin_tile.h explains the fields. warpgroups of 0: none.
type cubinTile struct {
	warpgroups, cols, stages int
	oneRing, pingpong        int // 1: yes
	ahead                    int
	speed                    float64 // see entry.Speed
}

var cubinBuckets = []struct {
	d, dv               int
	full, causal, short cubinTile // short is causal too
}{
	{d: 64, dv: 64, full: cubinTile{4, 48, 3, 0, 1, 0, 0}},
	{d: 96, dv: 96, full: cubinTile{3, 48, 3, 1, 0, 0, 0}},
	// Two warpgroups reach 0.9 of the speed of three. Their blocks of 128 rows divide short
	// lengths better: 1024 in 106 us, not in 109.
	{d: 128, dv: 128, full: cubinTile{3, 32, 2, 0, 0, 0, 0}, causal: cubinTile{3, 32, 2, 0, 0, 4, 0}, short: cubinTile{2, 32, 2, 0, 0, 0, 0.9}},
	{d: 192, dv: 128, full: cubinTile{2, 32, 2, 0, 0, 0, 0}},
	{d: 192, dv: 192, full: cubinTile{2, 32, 3, 1, 0, 0, 0}},
}

// cubinSequences are the tiles for calls with lengths or a window: those of cubinBuckets for causal masks, and smaller ones for short sequences.
var cubinSequences = []struct {
	d, dv              int
	long, short, paged cubinTile // paged: of paged K and V in place of long, where that spills
}{
	{d: 64, dv: 64, long: cubinTile{4, 48, 3, 0, 1, 0, 0}, short: cubinTile{2, 80, 2, 0, 1, 0, 0.8}, paged: cubinTile{4, 32, 4, 0, 1, 0, 0}},
	{d: 96, dv: 96, long: cubinTile{3, 48, 3, 1, 0, 0, 0}},
	{d: 128, dv: 128, long: cubinTile{3, 32, 2, 0, 0, 0, 0}, short: cubinTile{2, 32, 2, 0, 0, 0, 0.9}},
}

// shared is SHARED_BYTES of cubin_tile.h; cubin.cu checks that they agree.
func (t cubinTile) shared(d, dv int) int {
	panels := func(dim int) int { return (dim + 63) / 64 }
	stage := panels(d) * t.cols * 128
	if t.oneRing == 0 {
		stage += panels(dv) * t.cols * 128
	}
	barriers := 3 - t.oneRing*2 + 2 // of K and V: full and empty, and raw
	marks := t.stages * (stage + 8*barriers)
	const works, work, barrier = 4, 32, 8
	return (marks+4*t.stages+15)/16*16 + works*(work+2*barrier)
}

func cubinModules() []module {
	var list []module
	for _, dtype := range []string{"f16", "bf16"} {
		for _, b := range cubinBuckets {
			name := headDims("cubin_"+dtype, b.d, b.dv)
			m := module{name: name, source: "cubin.cu",
				defines: append([]string{"CUBIN_NAME=attn_" + name}, numbers("ATTN_", "BF16", isBF16(dtype), "D", b.d, "DV", b.dv)...)}
			for _, k := range []struct {
				kind string
				cubinTile
				causal bool
			}{{"full", b.full, false}, {"causal", cmp.Or(b.causal, b.full), true}, {"short", b.short, true}} {
				if k.warpgroups == 0 {
					continue
				}
				e := k.addTo(&m, k.kind, k.shared(b.d, b.dv))
				e.Entry, e.DType, e.D, e.DV, e.Causal = "attn_"+name+"_"+k.kind, dtype, b.d, b.dv, k.causal
			}
			list = append(list, m)
		}
	}
	return slices.Concat(list, cubinSequenceModules(), cubinFA2Modules(), decodeModules("cubin", "cubin_", cubinDecodeTiles, 47<<10))
}

// addTo adds an entry of a kind to a module, and its macros. The caller names it.
func (t cubinTile) addTo(m *module, kind string, shared int) *entry {
	m.defines = append(m.defines, numbers("CUBIN_"+strings.ToUpper(kind)+"_", "WARPGROUPS", t.warpgroups, "COLS", t.cols,
		"STAGES", t.stages, "ONE_RING", t.oneRing, "PINGPONG", t.pingpong, "AHEAD", t.ahead, "SHARED", shared)...)
	m.entries = append(m.entries, entry{Family: "cubin", Module: m.name, Threads: 128 * (t.warpgroups + 1), Shared: shared, Rows: 64 * t.warpgroups, Cols: t.cols,
		Grid: "persistent", Maps: []cudapath.Map{panels("k", t.cols), panels("v", t.cols)}, Speed: t.speed})
	return &m.entries[len(m.entries)-1]
}

func cubinSequenceModules() []module {
	var list []module
	for _, dtype := range []string{"f16", "bf16"} {
		for _, b := range cubinSequences {
			for paged, kind := range []string{"_general", "_paged"} {
				name := headDims("cubin_"+dtype, b.d, b.dv) + kind
				m := module{name: name, source: "cubin.cu", defines: append([]string{"CUBIN_NAME=attn_" + name},
					numbers("", "CUBIN_OPTIONS", 1, "CUBIN_PAGED", paged, "ATTN_BF16", isBF16(dtype), "ATTN_D", b.d, "ATTN_DV", b.dv)...)}
				for i, t := range []cubinTile{[]cubinTile{b.long, cmp.Or(b.paged, b.long)}[paged], b.short} {
					if t.warpgroups > 0 {
						e := t.addTo(&m, [...]string{"causal", "short"}[i], sharedWithBlocks(t.shared(b.d, b.dv)))
						e.Entry, e.DType, e.D, e.DV, e.General, e.Sequences, e.Paged = "attn_"+name+[...]string{"", "_short"}[i], dtype, b.d, b.dv, true, true, paged == 1
					}
				}
				list = append(list, m)
			}
		}
	}
	return list
}

// cubinFA2Tiles are the tiles of cubin_fa2.cu by head dim: of the kernels of fa2.h, with all
// of Q in registers.
var cubinFA2Tiles = []struct {
	d int
	tile
}{
	{64, tile{8, 2, 64, 32, 4, 2, 1, 0}},
	{96, tile{4, 2, 32, 32, 6, 3, 1, 0}},
	{128, tile{8, 1, 32, 32, 8, 2, 1, 1}},
}

func cubinFA2Modules() []module {
	var list []module
	for _, dtype := range fa2Types {
		for _, t := range cubinFA2Tiles {
			name := headDims("cubin_fa2_"+dtype.name, t.d, t.d)
			shared := max(t.stages*t.cols*t.d*4, t.rows()*t.d*2) + 16*t.stages
			m := module{name: name, source: "cubin_fa2.cu", arch: "sm_80", defines: []string{"CUBIN_NAME=attn_" + name, "CUBIN_ELEMENT=" + dtype.element}}
			m.defines = append(m.defines, numbers("CUBIN_", "D", t.d, "DV", t.d, "WARPS", t.warps, "MFRAGMENTS", t.mFragments, "COLS", t.cols,
				"STEP", t.step, "STAGES", t.stages, "ROUNDED", t.rounded, "SHARED", shared)...)
			for _, causal := range []bool{false, true} {
				m.entries = append(m.entries, entry{
					Entry: "attn_" + name + map[bool]string{false: "_full", true: "_causal"}[causal], Family: "cubin", DType: dtype.name,
					D: t.d, DV: t.d, Causal: causal, Module: name, Threads: t.warps * 32, Shared: shared, Rows: t.rows(), Cols: t.cols,
					Grid: gridRowsHeadsBatch, Arch: m.arch,
				})
			}
			list = append(list, m)
		}
	}
	return list
}

// headDims appends head dims to the name of a module.
func headDims(name string, d, dv int) string {
	if d == dv {
		return fmt.Sprintf("%s_d%d", name, d)
	}
	return fmt.Sprintf("%s_d%dx%d", name, d, dv)
}
