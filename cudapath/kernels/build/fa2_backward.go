package main

// fa2BackwardTile is a tile of fa2_backward_tile.h. The build compares the bytes of shared memory.
type fa2BackwardTile struct{ warps, rows, keys, shared int }

// fa2BackwardBuckets are the head dims that backward kernels exist for, and their tiles.
var fa2BackwardBuckets = []struct {
	d, dv     int
	main, any fa2BackwardTile
}{
	{64, 64, fa2BackwardTile{8, 128, 128, 167264}, fa2BackwardTile{8, 32, 64, 42016}},
	{96, 96, fa2BackwardTile{8, 64, 128, 165736}, fa2BackwardTile{4, 32, 64, 58400}},
	{128, 128, fa2BackwardTile{8, 64, 128, 198504}, fa2BackwardTile{8, 32, 64, 74784}},
	{192, 128, fa2BackwardTile{8, 64, 64, 157480}, fa2BackwardTile{4, 32, 32, 66560}},
	{192, 192, fa2BackwardTile{8, 64, 64, 182056}, fa2BackwardTile{4, 32, 32, 78848}},
	{256, 256, fa2BackwardTile{8, 64, 64, 214816}, fa2BackwardTile{4, 32, 32, 70248}},
}

// fa2BackwardModules lists the backward kernels of fa2: for each type and bucket a module
// with the kernels of aligned tensors, of which the main one has a variant with softcap,
// and those for any alignment, with a smaller tile that fits the GPUs with the least shared
// memory. All take causal masks, windows and lengths.
func fa2BackwardModules() []module {
	var list []module
	for _, dtype := range fa2Types {
		for _, b := range fa2BackwardBuckets {
			m := fa2Module(headDims("fa2_"+dtype.name, b.d, b.dv)+"_backward", "fa2_backward.cu", dtype.element, b.d, b.dv)
			m.defines = append(m.defines, numbers("FA2_", "SHARED", b.main.shared, "ANY_SHARED", b.any.shared)...)
			of := func(step, outputs string, t fa2BackwardTile, any bool, softcap string) entry {
				e := entry{
					Entry: "attn_" + m.name + "_" + step, Family: "fa2", DType: dtype.name, D: b.d, DV: b.dv, Any: any, Module: m.name,
					Threads: 32 * t.warps, Shared: t.shared, Rows: t.rows, Cols: t.keys, Grid: gridKeys, Outputs: outputs, Softcap: softcap,
				}
				if outputs == "stats" {
					e.Threads, e.Shared, e.Grid = 256, 0, gridRowsHeadsBatch
				}
				return e
			}
			const all = "dQ dK dV"
			m.entries = []entry{
				of("stats", "stats", b.main, false, ""), of("main", all, b.main, false, "no"), of("main_softcap", all, b.main, false, "yes"),
				of("stats_any", "stats", b.any, true, ""), of("main_any", all, b.any, true, ""),
			}
			list = append(list, m)
		}
	}
	return list
}
