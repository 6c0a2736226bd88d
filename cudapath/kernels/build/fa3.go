package main

import (
	"fmt"
	"strings"

	"vkattn/cudapath"
)

// fa3Tile is a tile of fa3.cu: 64 rows a warpgroup, by cols keys.
type fa3Tile struct {
	warpgroups, cols int
	speed            float64 // see entry.Speed
}

// fa3Buckets are the tiles of fa3.cu by head dims, chosen on an H200 (docs/log/cuda-fa3.md). The first of a list is the
// fastest where all multiprocessors are busy. The smaller ones are for calls with few rows: more of the multiprocessors
// get some.
var fa3Buckets = []struct {
	d, dv        int
	full, causal []fa3Tile
}{
	{64, 64, []fa3Tile{{3, 128, 0}, {2, 128, 0.82}, {1, 128, 0.6}}, []fa3Tile{{3, 128, 0}, {2, 128, 0.92}, {1, 128, 0.68}}},
	{96, 96, []fa3Tile{{3, 96, 0}}, []fa3Tile{{3, 96, 0}}},
	{128, 128, []fa3Tile{{3, 80, 0}, {2, 128, 0.93}, {1, 128, 0.68}}, []fa3Tile{{2, 128, 0}, {1, 128, 0.68}}},
	{192, 192, []fa3Tile{{2, 112, 0}}, []fa3Tile{{2, 112, 0}}},
	{192, 128, []fa3Tile{{2, 128, 0}}, []fa3Tile{{2, 128, 0}}},
	{256, 256, []fa3Tile{{2, 64, 0}}, []fa3Tile{{2, 64, 0}}},
}

// shared is SHARED_BYTES of fa3_tile.h; fa3.cu checks that they agree.
func (t fa3Tile) shared(d, dv int) int {
	const stages, row, barrier, mark, most = 2, 128, 8, 4, 227 << 10
	panels := func(dim int) int { return (dim + 63) / 64 }
	q, keys := panels(d)*64*t.warpgroups*row, stages*(panels(d)+panels(dv))*t.cols*row
	buffers := 1 // of Q
	if 2*q+keys+256 <= most {
		buffers = 2
	}
	return buffers*(q+2*barrier) + keys + stages*(5*barrier+mark)
}

// fa3Sequences are the tiles for calls with lengths or a window: the causal ones of fa3Buckets.
var fa3Sequences = []struct {
	d, dv int
	tiles []fa3Tile
}{
	{64, 64, []fa3Tile{{3, 128, 0}, {2, 128, 0.92}, {1, 128, 0.68}}},
	{128, 128, []fa3Tile{{2, 128, 0}, {1, 128, 0.68}}},
}

// sharedWithBlocks is SHARED_BYTES of WithOptions in fa3_options.h: the ring of row blocks follows the rest of a tile.
func sharedWithBlocks(tile int) int {
	const blocks, block, barriers = 4, 64, 2 * 8
	return (tile+15)/16*16 + blocks*(block+barriers)
}

func fa3Modules() []module {
	var list []module
	for _, dtype := range []string{"f16", "bf16"} {
		for _, b := range fa3Buckets {
			name := headDims("fa3_"+dtype, b.d, b.dv)
			m := module{name: name, source: "fa3.cu"}
			var kernels []string
			for i, tiles := range [][]fa3Tile{b.full, b.causal} {
				kind, causal := [...]string{"full", "causal"}[i], i == 1
				for j, t := range tiles {
					kernel, rows, shared := "attn_"+name+"_"+kind, 64*t.warpgroups, t.shared(b.d, b.dv)
					if j > 0 {
						kernel += fmt.Sprintf("_%d", rows)
					}
					kernels = append(kernels, fmt.Sprintf("KERNEL(%s,%d,%d,%t,%d)", kernel, t.warpgroups, t.cols, causal, shared))
					m.entries = append(m.entries, entry{
						Entry: kernel, Family: "fa3", DType: dtype, D: b.d, DV: b.dv, Causal: causal, Module: name,
						Threads: 128 * (t.warpgroups + 1), Shared: shared, Rows: rows, Cols: t.cols, Grid: "persistent",
						Maps: []cudapath.Map{panels("q", rows), panels("k", t.cols), panels("v", t.cols)}, Speed: t.speed,
					})
				}
			}
			m.defines = append(numbers("ATTN_", "BF16", isBF16(dtype), "D", b.d, "DV", b.dv), "FA3_KERNELS="+strings.Join(kernels, " "))
			list = append(list, m)
		}
	}
	return append(list, fa3SequenceModules()...)
}

func fa3SequenceModules() []module {
	var list []module
	for _, dtype := range []string{"f16", "bf16"} {
		for _, b := range fa3Sequences {
			name := headDims("fa3_"+dtype, b.d, b.dv) + "_general"
			m := module{name: name, source: "fa3.cu"}
			var kernels []string
			for i, t := range b.tiles {
				kernel, rows, shared := "attn_"+name, 64*t.warpgroups, sharedWithBlocks(t.shared(b.d, b.dv))
				if i > 0 {
					kernel += fmt.Sprintf("_%d", rows)
				}
				kernels = append(kernels, fmt.Sprintf("KERNEL(%s,%d,%d,true,%d)", kernel, t.warpgroups, t.cols, shared))
				m.entries = append(m.entries, entry{
					Entry: kernel, Family: "fa3", DType: dtype, D: b.d, DV: b.dv, General: true, Sequences: true, Module: name,
					Threads: 128 * (t.warpgroups + 1), Shared: shared, Rows: rows, Cols: t.cols, Grid: "persistent",
					Maps: []cudapath.Map{panels("q", rows), panels("k", t.cols), panels("v", t.cols)}, Speed: t.speed,
				})
			}
			m.defines = append(numbers("", "ATTN_BF16", isBF16(dtype), "ATTN_D", b.d, "ATTN_DV", b.dv, "FA3_OPTIONS", 1), "FA3_KERNELS="+strings.Join(kernels, " "))
			list = append(list, m)
		}
	}
	return list
}
