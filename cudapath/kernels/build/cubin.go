package main

import "fmt"

// cubinTile is what a launch has to know of a tile in cubin.cu, which checks the bytes of
// shared memory.
type cubinTile struct{ warpgroups, cols, shared int }

// cubinModules lists the kernels that a Vulkan command buffer launches: full and causal, a
// module per storage type and head dim.
func cubinModules() []module {
	var list []module
	for _, dtype := range []string{"f16", "bf16"} {
		for _, t := range []struct {
			d            int
			full, causal cubinTile
		}{
			{64, cubinTile{3, 80, 41048}, cubinTile{4, 48, 43204}},
			{96, cubinTile{3, 48, 36948}, cubinTile{3, 48, 36948}},
			{128, cubinTile{3, 32, 32856}, cubinTile{3, 32, 32856}},
		} {
			name := fmt.Sprintf("cubin_%s_d%d", dtype, t.d)
			m := module{name: name, source: "cubin.cu", defines: []string{
				fmt.Sprintf("ATTN_BF16=%d", map[bool]int{true: 1}[dtype == "bf16"]), fmt.Sprintf("ATTN_D=%d", t.d),
				fmt.Sprintf("CUBIN_SHARED_FULL=%d", t.full.shared), fmt.Sprintf("CUBIN_SHARED_CAUSAL=%d", t.causal.shared),
			}}
			for _, kind := range []struct {
				name   string
				causal bool
				tile   cubinTile
			}{{"full", false, t.full}, {"causal", true, t.causal}} {
				box := []int{64, kind.tile.cols, 1, 1}
				m.entries = append(m.entries, entry{
					Entry: "attn_" + name + "_" + kind.name, Family: "cubin", DType: dtype, D: t.d, Dv: t.d, Causal: kind.causal, Module: name,
					Threads: 128 * (kind.tile.warpgroups + 1), Shared: kind.tile.shared, Rows: 64 * kind.tile.warpgroups, Cols: kind.tile.cols,
					Grid: "persistent", Maps: []tensorMap{{"k", box, 128}, {"v", box, 128}},
				})
			}
			list = append(list, m)
		}
	}
	return list
}
