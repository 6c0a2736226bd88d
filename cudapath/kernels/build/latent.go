package main

import (
	"fmt"

	"vkattn/attention"
	"vkattn/cudapath"
)

// latentShared is LatentTile::SHARED_BYTES of latent_tile.h; latent.cu checks that they agree.
const latentShared = 230024

// latentRowsShared is that of the kernels for rows of fp8_ds_mla.
const latentRowsShared = 232152

// latentCombineShared is CombineTile::SHARED_BYTES of latent_combine.h. Package cudapath has it too.
const latentCombineShared = 68608

// latentModules are the kernels of latent attention: one of K and V, and one that combines splits. Calls with token lists have a module of
// their own, and those of lists with offsets, which are never split, another. So do calls whose K has rows of fp8_ds_mla.
func latentModules() []module {
	var list []module
	for _, dtype := range []string{"f16", "bf16"} {
		for _, kv := range []string{"", attention.KVFP8DSMLA.String()} {
			for lists, suffix := range []string{"", "_tokens", "_offsets"} { // LATENT_TOKENS
				list = append(list, latentModule(dtype, kv, lists, suffix))
			}
		}
	}
	return list
}

func latentModule(dtype, kv string, lists int, suffix string) module {
	name, maps, shared, rows := "fa3_"+dtype+"_latent"+suffix, []cudapath.Map{panels("k", 64)}, latentShared, 0
	if kv != "" {
		name, shared, rows = name+"_"+kv, latentRowsShared, 1
	}
	if lists > 0 || kv != "" {
		maps = nil
	}
	defines, combine := append(numbers("", "ATTN_BF16", isBF16(dtype), "LATENT_TOKENS", lists, "LATENT_FP8", rows), "LATENT_NAME=attn_"+name, fmt.Sprintf("LATENT_SHARED=%d", shared)), ""
	if lists < 2 {
		combine = "attn_" + name + "_combine"
		defines = append(defines, "LATENT_COMBINE="+combine, fmt.Sprintf("LATENT_COMBINE_SHARED=%d", latentCombineShared))
	}
	return module{name: name, source: "latent.cu", defines: defines, entries: []entry{{
		Entry: "attn_" + name, Family: "fa3", DType: dtype, D: 576, DV: 512, Module: name, Latent: true, Tokens: lists > 0, Offsets: lists > 1, KV: kv, Combine: combine,
		Threads: 512, Shared: shared, Rows: 64, Cols: 64, Grid: "persistent", Maps: maps,
	}}}
}
