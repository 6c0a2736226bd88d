package main

import (
	"fmt"

	"vkattn/cudapath"
)

// latentShared is LatentTile::SHARED_BYTES of latent_tile.h; latent.cu checks that they agree.
const latentShared = 230016

// latentCombineShared is CombineTile::SHARED_BYTES of latent_combine.h. Package cudapath has it too.
const latentCombineShared = 68608

// latentModules are the kernels of latent attention: one of K and V, and one that combines splits. Calls with token lists have a module of
// their own.
func latentModules() []module {
	var list []module
	for _, dtype := range []string{"f16", "bf16"} {
		for _, tokens := range []bool{false, true} {
			name, maps := "fa3_"+dtype+"_latent", []cudapath.Map{panels("k", 64)}
			if tokens {
				name, maps = name+"_tokens", nil
			}
			number := map[bool]int{true: 1}
			list = append(list, module{name: name, source: "latent.cu",
				defines: []string{fmt.Sprintf("ATTN_BF16=%d", number[dtype == "bf16"]), fmt.Sprintf("LATENT_TOKENS=%d", number[tokens]),
					"LATENT_NAME=attn_" + name, "LATENT_COMBINE=attn_" + name + "_combine", fmt.Sprintf("LATENT_SHARED=%d", latentShared), fmt.Sprintf("LATENT_COMBINE_SHARED=%d", latentCombineShared)},
				entries: []entry{{
					Entry: "attn_" + name, Family: "fa3", DType: dtype, D: 576, DV: 512, Module: name, Latent: true, Tokens: tokens, Combine: "attn_" + name + "_combine",
					Threads: 512, Shared: latentShared, Rows: 64, Cols: 64, Grid: "persistent", Maps: maps,
				}}})
		}
	}
	return list
}
