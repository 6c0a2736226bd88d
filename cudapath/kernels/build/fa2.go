package main

import "fmt"

// tile is how a kernel of family fa2 divides its work; fa2.h explains the parts.
type tile struct {
	warps, rowTiles int // a warp owns rowTiles * 16 rows
	cols, step      int // columns of a tile in shared memory, and of which a warp holds scores
	qRegs           int // 16-wide slices of Q in registers
	stages          int // tiles in shared memory
	blocks          int // blocks a multiprocessor should hold: bounds the registers
}

// fa2Buckets are the head dims that kernels exist for, and their tiles. Chosen on an
// H200 among those that docs/cuda-log.md lists.
var fa2Buckets = []struct {
	d, dv        int
	full, causal tile
}{
	{32, 32, tile{4, 2, 128, 64, 2, 2, 2}, tile{4, 2, 128, 64, 2, 2, 2}},
	{64, 64, tile{4, 2, 128, 64, 4, 2, 2}, tile{4, 2, 128, 64, 4, 2, 2}},
	{96, 96, tile{4, 2, 64, 32, 6, 2, 2}, tile{4, 2, 64, 32, 6, 2, 2}},
	{128, 128, tile{4, 2, 64, 32, 0, 2, 2}, tile{4, 2, 64, 32, 0, 2, 2}},
	{192, 192, tile{8, 1, 64, 32, 12, 2, 1}, tile{8, 1, 64, 32, 12, 2, 1}},
	{192, 128, tile{8, 1, 64, 64, 12, 2, 1}, tile{8, 1, 64, 64, 12, 2, 1}},
	{256, 256, tile{8, 1, 32, 32, 16, 2, 1}, tile{8, 1, 32, 32, 16, 2, 1}},
}

func (t tile) rows() int { return t.warps * t.rowTiles * 16 }

// shared is Config::Shared of fa2.h; fa2.cu checks that they agree.
func (t tile) shared(d, dv int) int {
	stage := t.cols * (d + dv) * 2
	q := t.rows() * d * 2
	if t.qRegs == d/16 && q <= (t.stages-1)*stage {
		q = 0
	}
	return max(t.stages*stage+q, t.rows()*dv*2)
}

func fa2Modules() []module {
	var list []module
	for _, dtype := range []struct{ name, element string }{{"f16", "Half"}, {"bf16", "Bfloat"}} {
		for _, b := range fa2Buckets {
			name := fmt.Sprintf("fa2_%s_d%d", dtype.name, b.d)
			if b.dv != b.d {
				name += fmt.Sprintf("x%d", b.dv)
			}
			m := module{name: name, source: "fa2.cu", ptx: true, defines: []string{
				"FA2_NAME=attn_" + name, "FA2_ELEMENT=" + dtype.element,
				fmt.Sprintf("FA2_D=%d", b.d), fmt.Sprintf("FA2_DV=%d", b.dv),
			}}
			for _, k := range []struct {
				kind, macro string
				tile
				causal bool
			}{{"full", "FULL", b.full, false}, {"causal", "CAUSAL", b.causal, true}} {
				shared := k.shared(b.d, b.dv)
				for _, part := range []struct {
					name  string
					value int
				}{
					{"WARPS", k.warps}, {"ROWTILES", k.rowTiles}, {"COLS", k.cols}, {"STEP", k.step},
					{"QREGS", k.qRegs}, {"STAGES", k.stages}, {"BLOCKS", k.blocks}, {"SHARED", shared},
				} {
					m.defines = append(m.defines, fmt.Sprintf("FA2_%s_%s=%d", k.macro, part.name, part.value))
				}
				for _, suffix := range []string{"", "_any"} {
					m.entries = append(m.entries, entry{
						Entry: "attn_" + name + "_" + k.kind + suffix, Family: "fa2", DType: dtype.name, D: b.d, Dv: b.dv,
						Causal: k.causal, Any: suffix != "", Module: name,
						Threads: k.warps * 32, Shared: shared, Rows: k.rows(), Cols: k.cols, Grid: gridRowsHeadsBatch,
					})
				}
			}
			list = append(list, m)
		}
	}
	return list
}
