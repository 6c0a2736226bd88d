package main

import (
	"cmp"
	"strings"
)

// tile is how a kernel of family fa2 divides its work; fa2_tile.h explains the fields.
type tile struct {
	warps, mFragments int // a warp owns mFragments * 16 rows
	cols, step        int // keys of a KV tile in shared memory and of a KV step, whose scores are in registers
	qRegs             int // 16-wide slices of Q in registers
	stages            int // tiles in shared memory
	blocks            int // blocks a multiprocessor should hold: bounds the registers
	rounded           int // 1: O is divided by row sums of the rounded P; 0: by sums of P before rounding
}

// fa2Buckets are the head dims that kernels exist for, and their tiles. Chosen on an
// H200 among those that docs/log/cuda-fa2.md lists. The kernels for any alignment take
// the tile of full ones, or a smaller one that fits the GPUs with the least shared
// memory: there they stand in for those that do not.
var fa2Buckets = []struct {
	d, dv             int
	full, causal, any tile
}{
	{d: 32, dv: 32, full: tile{4, 2, 128, 32, 2, 2, 4, 0}},
	{d: 64, dv: 64, full: tile{4, 2, 128, 32, 4, 2, 3, 0}},
	{d: 96, dv: 96, full: tile{4, 2, 64, 64, 0, 2, 2, 0}},
	{d: 128, dv: 128, full: tile{4, 2, 64, 64, 0, 2, 2, 1}},
	{d: 192, dv: 192, full: tile{4, 1, 64, 64, 12, 2, 2, 0}},
	{d: 192, dv: 128, full: tile{4, 2, 32, 32, 0, 2, 2, 1}, causal: tile{4, 2, 32, 32, 0, 2, 2, 0}},
	{d: 256, dv: 256, full: tile{8, 1, 64, 32, 16, 2, 1, 1}, causal: tile{8, 1, 64, 32, 16, 2, 1, 0}, any: tile{4, 1, 32, 32, 16, 2, 2, 1}},
}

// fa2General are the head dims and tiles of the kernels for calls with options, without and with those of slots. They take any
// alignment, and fit the GPUs with the least shared memory. No tile spills registers (docs/log/cuda-fa2.md).
var fa2General = []struct {
	d, dv          int
	general, slots tile
}{
	{64, 64, tile{4, 2, 128, 32, 4, 2, 2, 0}, tile{4, 2, 128, 32, 4, 2, 2, 0}},
	{128, 128, tile{4, 2, 64, 32, 0, 2, 2, 1}, tile{4, 2, 64, 16, 0, 2, 2, 1}},
	{192, 128, tile{4, 2, 32, 32, 0, 2, 2, 1}, tile{8, 1, 32, 32, 0, 2, 1, 1}},
	{256, 256, tile{4, 1, 32, 32, 8, 2, 2, 1}, tile{4, 1, 32, 32, 0, 2, 2, 1}},
}

func (t tile) rows() int { return t.warps * t.mFragments * 16 }

// shared is Config::Shared of fa2.h; fa2.cu checks that they agree.
func (t tile) shared(d, dv int) int {
	stage := t.cols * (d + dv) * 2
	q := t.rows() * d * 2
	if t.qRegs == d/16 && q <= (t.stages-1)*stage {
		q = 0
	}
	const barriers = 16 // bytes per stage
	return max(t.stages*stage+q, t.rows()*dv*2) + t.stages*barriers
}

// defines are the macros of a tile.
func (t tile) defines(prefix string, d, dv int) []string {
	return numbers(prefix, "WARPS", t.warps, "MFRAGMENTS", t.mFragments, "COLS", t.cols, "STEP", t.step, "QREGS", t.qRegs,
		"STAGES", t.stages, "BLOCKS", t.blocks, "ROUNDED", t.rounded, "SHARED", t.shared(d, dv))
}

// fa2Types are the storage types of family fa2.
var fa2Types = []struct{ name, element string }{{"f16", "Half"}, {"bf16", "Bfloat"}}

// fa2Module is a module for a storage type and head dims.
func fa2Module(name, source, element string, d, dv int) module {
	return module{name: name, source: source, ptx: true,
		defines: append([]string{"FA2_NAME=attn_" + name, "FA2_ELEMENT=" + element}, numbers("FA2_", "D", d, "DV", dv)...)}
}

func fa2Modules() []module {
	var list []module
	for _, dtype := range fa2Types {
		for _, b := range fa2Buckets {
			name := headDims("fa2_"+dtype.name, b.d, b.dv)
			m := fa2Module(name, "fa2.cu", dtype.element, b.d, b.dv)
			for _, k := range []struct {
				kind string
				tile
				causal, any bool
			}{
				{"full", b.full, false, false}, {"causal", cmp.Or(b.causal, b.full), true, false},
				{"full_any", cmp.Or(b.any, b.full), false, true}, {"causal_any", cmp.Or(b.any, b.causal, b.full), true, true},
			} {
				shared := k.shared(b.d, b.dv)
				m.defines = append(m.defines, k.defines("FA2_"+strings.ToUpper(k.kind)+"_", b.d, b.dv)...)
				m.entries = append(m.entries, entry{
					Entry: "attn_" + name + "_" + k.kind, Family: "fa2", DType: dtype.name, D: b.d, DV: b.dv,
					Causal: k.causal, Any: k.any, Module: name,
					Threads: k.warps * 32, Shared: shared, Rows: k.rows(), Cols: k.cols, Grid: gridRowsHeadsBatch,
				})
			}
			list = append(list, m)
		}
		for _, b := range fa2General {
			name := headDims("fa2_"+dtype.name, b.d, b.dv) + "_general"
			m := fa2Module(name, "fa2_general.cu", dtype.element, b.d, b.dv)
			for _, k := range []struct {
				suffix, kind string
				tile
			}{{"", "GENERAL", b.general}, {"_slots", "SLOTS", b.slots}} {
				m.defines = append(m.defines, k.defines("FA2_"+k.kind+"_", b.d, b.dv)...)
				m.entries = append(m.entries, entry{
					Entry: "attn_" + name + k.suffix, Family: "fa2", DType: dtype.name, D: b.d, DV: b.dv, Any: true, General: true, Slots: k.suffix != "", Module: name,
					Threads: k.warps * 32, Shared: k.shared(b.d, b.dv), Rows: k.rows(), Cols: k.cols, Grid: gridRowsHeadsBatch,
				})
			}
			list = append(list, m)
		}
	}
	return list
}
