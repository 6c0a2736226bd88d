package main

import (
	"fmt"
	"slices"

	"vkattn/cudapath"
)

// fa3BackwardTile is the tile of a backward kernel of fa3, as fa3_backward.cu has it. The
// build compares the bytes of shared memory.
type fa3BackwardTile struct {
	d, dv, rows, keys                  int
	shared, optionsShared, statsShared int  // bytes
	dQShared                           int  // of the kernel that multiplies dS with K; 0: the main kernel adds dQ
	converts                           bool // the main kernel without options converts dQ
}

var fa3BackwardTiles = []fa3BackwardTile{
	{d: 64, dv: 64, rows: 128, keys: 128, shared: 217564, optionsShared: 217776, statsShared: 17664, converts: true},
	{d: 128, dv: 128, rows: 64, keys: 128, shared: 215532, optionsShared: 215744, statsShared: 34048},
	{d: 192, dv: 128, rows: 64, keys: 64, shared: 174500, optionsShared: 182912, statsShared: 50432, dQShared: 205092},
	{d: 192, dv: 192, rows: 64, keys: 64, shared: 199076, optionsShared: 207488, statsShared: 50432, dQShared: 205092},
	{d: 256, dv: 256, rows: 64, keys: 64, shared: 223380, optionsShared: 231792, statsShared: 66816, dQShared: 196880},
}

// fa3BackwardDS is what dS of a launch takes at head dims above 128.
const fa3BackwardDS = 2 << 30

// fa3BackwardModules lists the backward kernels of fa3: for each type and head dim a
// module with two or three kernels, each without and with a causal mask, and one whose
// kernels take lengths and a window, and a softcap in a main kernel of its own.
func fa3BackwardModules() []module {
	var list []module
	for _, dtype := range []string{"f16", "bf16"} {
		for _, t := range fa3BackwardTiles {
			name := headDims("fa3_"+dtype, t.d, t.dv) + "_backward"
			m := module{name: name, source: "fa3_backward.cu",
				defines: append(numbers("ATTN_", "BF16", isBF16(dtype), "D", t.d),
					numbers("FA3_BACKWARD_", "SHARED", t.shared, "STATS_SHARED", t.statsShared)...)}
			if t.dv != t.d {
				m.defines = append(m.defines, numbers("ATTN_", "DV", t.dv)...)
			}
			dS := 0
			if t.dQShared > 0 {
				dS = fa3BackwardDS
				m.defines = append(m.defines, numbers("FA3_BACKWARD_", "DS", dS, "DQ_SHARED", t.dQShared)...)
			}
			maps := []cudapath.Map{panels("q", t.rows), panels("k", t.keys), panels("v", t.keys), panels("dO", t.rows)}
			kernels := func(m *module, kind string, mainShared int) {
				of := func(step, outputs, grid string, threads, shared int, maps []cudapath.Map) entry {
					return entry{
						Entry: fmt.Sprintf("attn_%s_%s_%s", name, step, kind), Family: "fa3", DType: dtype, D: t.d, DV: t.dv,
						Causal: kind == "causal", Module: m.name, Threads: threads, Shared: shared, Rows: t.rows, Cols: t.keys, Grid: grid,
						Outputs: outputs, Dense: kind != "options", Early: kind != "options" && step != "stats", Maps: maps,
					}
				}
				main := of("main", "dQ dK dV", "persistent", 384, mainShared, maps)
				main.DSBytes = dS
				m.entries = append(m.entries, of("stats", "stats", gridRowsHeadsBatch, 256, t.statsShared, nil))
				if kind == "options" {
					capped := main
					capped.Entry = fmt.Sprintf("attn_%s_main_softcap", name)
					main.Softcap, capped.Softcap = "no", "yes"
					m.entries = append(m.entries, main, capped)
				} else {
					m.entries = append(m.entries, main)
				}
				if t.dQShared > 0 {
					dQ := of("dq", "dQ", "persistent", 384, t.dQShared, maps[1:2])
					dQ.DSBytes = dS
					m.entries = append(m.entries, dQ)
				} else if !t.converts || kind == "options" {
					m.entries = append(m.entries, of("dq", "dQ", gridRowsHeadsBatch, 256, 0, nil))
				}
			}
			kernels(&m, "full", t.shared)
			kernels(&m, "causal", t.shared)
			list = append(list, m)
			options := module{name: name + "_options", source: m.source, defines: slices.Clone(m.defines)}
			options.defines[2] = fmt.Sprintf("FA3_BACKWARD_SHARED=%d", t.optionsShared)
			options.defines = append(options.defines, "ATTN_OPTIONS=1")
			kernels(&options, "options", t.optionsShared)
			list = append(list, options)
		}
	}
	return list
}
