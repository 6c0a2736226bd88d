package main

import "fmt"

// fa3BackwardTiles are the tiles of the backward kernels of fa3, as fa3_backward.cu has
// them. The build compares the bytes of shared memory.
var fa3BackwardTiles = []struct{ d, rows, keys, shared, statsShared int }{
	{64, 128, 128, 217508, 17664},
	{128, 64, 128, 215460, 34048},
}

// fa3BackwardModules lists the backward kernels of fa3: for each type and head dim a
// module with three kernels, each without and with a causal mask.
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
			for _, causal := range []bool{false, true} {
				kind := map[bool]string{false: "full", true: "causal"}[causal]
				of := func(step, outputs, grid string, threads, shared int, maps []tensorMap) entry {
					return entry{
						Entry: fmt.Sprintf("attn_%s_%s_%s", m.name, step, kind), Family: "fa3", DType: dtype, D: t.d, Dv: t.d, Causal: causal,
						Module: m.name, Threads: threads, Shared: shared, Rows: t.rows, Cols: t.keys, Grid: grid, Outputs: outputs, Dense: true, Maps: maps,
					}
				}
				m.entries = append(m.entries,
					of("stats", "stats", gridRowsHeadsBatch, 256, t.statsShared, nil),
					of("main", "dQ dK dV", "persistent", 384, t.shared, maps),
					of("dq", "dQ", gridRowsHeadsBatch, 256, 0, nil))
			}
			list = append(list, m)
		}
	}
	return list
}
