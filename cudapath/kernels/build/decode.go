package main

import "strings"

// decodeTile is a tile of decode.cu: the warps of a CTA, the KV tiles of a warp's ring, their keys, and the CTAs that a
// multiprocessor is asked to hold, which bounds registers. warps of 0: none.
type decodeTile struct{ warps, stages, keys, blocks int }

// decodeTiles are the tiles of a head dim by storage of K and V. None spills.
type decodeTiles struct {
	d                       int
	same, int8, fp8, q8, q4 decodeTile
}

// cubinDecodeTiles are the fastest of those that were timed (docs/log/cubin.md, 10). CTAs of a multiprocessor have 48 KiB of shared
// memory together, so small ones hold more warps.
var cubinDecodeTiles = []decodeTiles{
	{d: 64, int8: decodeTile{8, 1, 16, 3}, fp8: decodeTile{8, 1, 16, 3}, q8: decodeTile{8, 1, 16, 3}, q4: decodeTile{8, 2, 16, 3}},
	{d: 128, int8: decodeTile{4, 2, 16, 4}, fp8: decodeTile{4, 2, 16, 4}, q8: decodeTile{4, 2, 16, 4}, q4: decodeTile{4, 2, 16, 3}},
	{d: 256, int8: decodeTile{2, 1, 16, 3}, fp8: decodeTile{2, 1, 16, 3}, q8: decodeTile{2, 1, 16, 3}, q4: decodeTile{4, 2, 16, 2}},
}

// cudaDecodeTiles are those of tier cuda, whose CTAs have 227 KiB of a multiprocessor: deeper rings (docs/log/cuda-fa2.md, 14).
var cudaDecodeTiles = []decodeTiles{
	{64, decodeTile{4, 4, 16, 3}, decodeTile{6, 4, 16, 3}, decodeTile{6, 4, 16, 3}, decodeTile{6, 4, 16, 3}, decodeTile{6, 4, 16, 3}},
	{128, decodeTile{4, 3, 16, 2}, decodeTile{4, 3, 16, 4}, decodeTile{4, 3, 16, 4}, decodeTile{4, 3, 16, 4}, decodeTile{4, 4, 16, 3}},
	{256, decodeTile{6, 2, 16, 1}, decodeTile{4, 3, 16, 2}, decodeTile{4, 3, 16, 2}, decodeTile{4, 3, 16, 2}, decodeTile{4, 3, 16, 2}},
}

// shared is SHARED of decode_tile.h; unitBytes are those of 32 elements, and scaled types have a scale per key.
func (t decodeTile) shared(d, unitBytes int, scaled bool) int {
	stage, numbers := 2*t.keys*(d/32)*unitBytes, 0
	if scaled {
		stage, numbers = stage+2*4*t.keys, 16*16
	}
	return t.warps * max(t.stages*stage+numbers, 8*(4*(d+4)+8))
}

// decodeModules are the modules of a tier, whose names have a prefix.
func decodeModules(family, prefix string, tiles []decodeTiles, mostShared int) []module {
	var list []module
	for _, dtype := range []string{"f16", "bf16"} {
		for _, b := range tiles {
			name := headDims(prefix+"decode_"+dtype, b.d, b.d)
			m := module{name: name, source: "decode.cu",
				defines: append([]string{"DECODE_NAME=attn_" + name}, numbers("DECODE_", "BF16", isBF16(dtype), "D", b.d, "MOST_SHARED", mostShared)...)}
			for _, k := range []struct {
				kv string
				decodeTile
				unitBytes int
				scaled    bool
			}{{"same", b.same, 64, false}, {"int8", b.int8, 32, true}, {"fp8", b.fp8, 32, true}, {"q8_0", b.q8, 34, false}, {"q4_0", b.q4, 18, false}} {
				if k.warps == 0 {
					continue
				}
				shared := k.shared(b.d, k.unitBytes, k.scaled)
				m.defines = append(m.defines, numbers("DECODE_"+strings.ToUpper(k.kv)+"_", "WARPS", k.warps, "STAGES", k.stages,
					"KEYS", k.keys, "BLOCKS", k.blocks, "SHARED", shared)...)
				m.entries = append(m.entries, entry{
					Entry: "attn_" + name + "_" + k.kv, Family: family, DType: dtype, D: b.d, DV: b.d, Module: name,
					Threads: 32 * k.warps, Shared: shared, Rows: 8, Cols: k.keys, Grid: gridDecode, KV: k.kv, Blocks: k.blocks, Stages: k.stages,
				})
			}
			list = append(list, m)
		}
	}
	return list
}
