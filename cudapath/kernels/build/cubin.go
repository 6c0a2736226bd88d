package main

import "fmt"

// cubinModules lists the kernels that a Vulkan command buffer launches: full and causal, a
// module per storage type and head dim. cubin.cu checks the bytes of shared memory.
func cubinModules() []module {
	var list []module
	for _, dtype := range []string{"f16", "bf16"} {
		for _, t := range []struct{ d, warpgroups, cols, shared int }{
			{64, 3, 80, 41032}, {96, 3, 32, 32840}, {128, 3, 32, 32840},
		} {
			name := fmt.Sprintf("cubin_%s_d%d", dtype, t.d)
			m := module{name: name, source: "cubin.cu", defines: []string{
				fmt.Sprintf("ATTN_BF16=%d", map[bool]int{true: 1}[dtype == "bf16"]), fmt.Sprintf("ATTN_D=%d", t.d),
				fmt.Sprintf("CUBIN_SHARED_FULL=%d", t.shared), fmt.Sprintf("CUBIN_SHARED_CAUSAL=%d", t.shared),
			}}
			for _, causal := range []bool{false, true} {
				kind := map[bool]string{false: "full", true: "causal"}[causal]
				m.entries = append(m.entries, entry{
					Entry: "attn_" + name + "_" + kind, Family: "cubin", DType: dtype, D: t.d, Dv: t.d, Causal: causal, Module: name,
					Threads: 128 * (t.warpgroups + 1), Shared: t.shared, Rows: 64 * t.warpgroups, Cols: t.cols, Grid: "persistent",
				})
			}
			list = append(list, m)
		}
	}
	return list
}
