package main

import (
	"fmt"

	"vkattn/cudapath"
)

// latentShared is LatentTile::SHARED_BYTES of latent_tile.h; latent.cu checks that they agree.
const latentShared = 230024

// latentCombineShared is CombineTile::SHARED_BYTES of latent_combine.h. Package cudapath has it too.
const latentCombineShared = 68608

// latentModules are the kernels of latent attention: one of K and V, and one that combines splits. Calls with token lists have a module of
// their own, and those of lists with offsets, which are never split, another.
func latentModules() []module {
	var list []module
	for _, dtype := range []string{"f16", "bf16"} {
		for lists, suffix := range []string{"", "_tokens", "_offsets"} { // LATENT_TOKENS
			name, maps := "fa3_"+dtype+"_latent"+suffix, []cudapath.Map{panels("k", 64)}
			if lists > 0 {
				maps = nil
			}
			defines, combine := append(numbers("", "ATTN_BF16", isBF16(dtype), "LATENT_TOKENS", lists), "LATENT_NAME=attn_"+name, fmt.Sprintf("LATENT_SHARED=%d", latentShared)), ""
			if lists < 2 {
				combine = "attn_" + name + "_combine"
				defines = append(defines, "LATENT_COMBINE="+combine, fmt.Sprintf("LATENT_COMBINE_SHARED=%d", latentCombineShared))
			}
			list = append(list, module{name: name, source: "latent.cu", defines: defines,
				entries: []entry{{
					Entry: "attn_" + name, Family: "fa3", DType: dtype, D: 576, DV: 512, Module: name, Latent: true, Tokens: lists > 0, Offsets: lists > 1, Combine: combine,
					Threads: 512, Shared: latentShared, Rows: 64, Cols: 64, Grid: "persistent", Maps: maps,
				}}})
		}
	}
	return list
}
