package main

import "fmt"

// latentShared is LatentTile::SHARED_BYTES of latent_tile.h; latent.cu checks that they agree.
const latentShared = 230000

// latentCombineShared is CombineTile::SHARED_BYTES of latent_combine.h. Package cudapath has it too.
const latentCombineShared = 8704

// latentModules are the kernels of latent attention: one of K and V, and one that combines splits.
func latentModules() []module {
	var list []module
	for _, dtype := range []string{"f16", "bf16"} {
		name := "fa3_" + dtype + "_latent"
		list = append(list, module{name: name, source: "latent.cu",
			defines: []string{fmt.Sprintf("ATTN_BF16=%d", map[bool]int{true: 1}[dtype == "bf16"]),
				"LATENT_NAME=attn_" + name, "LATENT_COMBINE=attn_" + name + "_combine", fmt.Sprintf("LATENT_SHARED=%d", latentShared), fmt.Sprintf("LATENT_COMBINE_SHARED=%d", latentCombineShared)},
			entries: []entry{{
				Entry: "attn_" + name, Family: "fa3", DType: dtype, D: 576, Dv: 512, Module: name, Latent: true, Combine: "attn_" + name + "_combine",
				Threads: 512, Shared: latentShared, Rows: 64, Cols: 64, Grid: "persistent", Maps: []tensorMap{{"k", []int{64, 64, 1, 1}, 128}},
			}}})
	}
	return list
}
