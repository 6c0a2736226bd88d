package main

import (
	"fmt"
	"slices"
)

// fa3BackwardTiles are the tiles of the backward kernels of fa3, as fa3_backward.cu has
// them. The build compares the bytes of shared memory.
var fa3BackwardTiles = []struct{ d, rows, keys, shared, optionsShared, statsShared int }{
	{64, 128, 128, 217508, 217568, 17664},
	{128, 64, 128, 215460, 215520, 34048},
}

// fa3BackwardModules lists the backward kernels of fa3: for each type and head dim a
// module with three kernels, each without and with a causal mask, and one with three that
// take lengths, a window and a softcap.
func fa3BackwardModules() []module {
	var list []module
	for which, dtype := range []string{"f16", "bf16"} {
		for _, t := range fa3BackwardTiles {
			m := module{
				name: fmt.Sprintf("fa3_%s_d%d_backward", dtype, t.d), source: "fa3_backward.cu",
				defines: []string{
					fmt.Sprintf("ATTN_BF16=%d", which), fmt.Sprintf("ATTN_D=%d", t.d), fmt.Sprintf("FA3_BACKWARD_SHARED=%d", t.shared),
					fmt.Sprintf("FA3_BACKWARD_STATS_SHARED=%d", t.statsShared),
				},
			}
			box := func(tensor string, rows int) tensorMap { return tensorMap{tensor, []int{64, rows, 1, 1}, 128} }
			maps := []tensorMap{box("q", t.rows), box("k", t.keys), box("v", t.keys), box("dO", t.rows)}
			kernels := func(m *module, kind string, mainShared int) {
				of := func(step, outputs, grid string, threads, shared int, maps []tensorMap) entry {
					return entry{
						Entry: fmt.Sprintf("attn_fa3_%s_d%d_backward_%s_%s", dtype, t.d, step, kind), Family: "fa3", DType: dtype, D: t.d, Dv: t.d,
						Causal: kind == "causal", Module: m.name, Threads: threads, Shared: shared, Rows: t.rows, Cols: t.keys, Grid: grid,
						Outputs: outputs, Dense: kind != "options", Maps: maps,
					}
				}
				m.entries = append(m.entries,
					of("stats", "stats", gridRowsHeadsBatch, 256, t.statsShared, nil),
					of("main", "dQ dK dV", "persistent", 384, mainShared, maps),
					of("dq", "dQ", gridRowsHeadsBatch, 256, 0, nil))
			}
			kernels(&m, "full", t.shared)
			kernels(&m, "causal", t.shared)
			options := module{name: m.name + "_options", source: m.source, defines: slices.Clone(m.defines)}
			options.defines[2] = fmt.Sprintf("FA3_BACKWARD_SHARED=%d", t.optionsShared)
			options.defines = append(options.defines, "ATTN_OPTIONS=1")
			kernels(&options, "options", t.optionsShared)
			list = append(list, m, options)
		}
	}
	return list
}
