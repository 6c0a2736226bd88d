package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention/score"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// A kernel of gradients takes a map as far as the numbers of a map and of the grid of its own kernel go.
func TestMapsOfGradientsHaveLimits(t *testing.T) {
	tile := backwardTile{Invocations: 128, ThreadsX: 16, QTile: 32, KVTile: 64}
	for _, x := range []struct {
		kernel backwardKernel
		groups [3]uint32
		sq, sk int
		per    MapsPer
		want   problem.MapSize // the zero size: no map
	}{
		{KernelDQ, [3]uint32{3, 5, 7}, 96, 64*32 + 1, MapsPer{}, problem.MapSize{Words: 4, Owners: 3, Heads: 1, Sequences: 1}},
		{KernelDKDV, [3]uint32{3, 5, 7}, 2*32*32 + 1, 192, MapsPer{true, true}, problem.MapSize{Words: 18, Owners: 3, Heads: 5, Sequences: 7}}, // 8,196 packed rows of 1,024 a word
		{KernelLSE, [3]uint32{3, 5, 7}, 96, 2048, MapsPer{}, problem.MapSize{}},
		{KernelDQ, [3]uint32{1, 40000, 1}, 32, 64 * 64, MapsPer{true, false}, problem.MapSize{}},                                                          // 80000 workgroups along y
		{KernelDQ, [3]uint32{1, 40000, 1}, 32, 64 * 64, MapsPer{false, true}, problem.MapSize{Words: 4, Owners: 1, Heads: 1, Sequences: 1}},               // which share a map
		{KernelDQ, [3]uint32{1 << 20, 2, 40}, 1 << 25, 64 * 32, MapsPer{true, true}, problem.MapSize{}},                                                   // more than 2^26 words
		{KernelDQ, [3]uint32{1 << 20, 2, 16}, 1 << 25, 64 * 32, MapsPer{true, true}, problem.MapSize{Words: 2, Owners: 1 << 20, Heads: 2, Sequences: 16}}, // as many
	} {
		k := BackwardKernel{Variant: BackwardVariant{Kernel: x.kernel, Tile: tile}, Groups: x.groups}
		if x.kernel == KernelDKDV {
			k.Variant.Options.packRows = 4
		}
		k.chooseMap(&problem.Config{}, &BackwardRequest{Shape: problem.Shape{Sq: x.sq, Sk: x.sk}, Maps: x.per}, mapAtMask)
		require.Equal(t, x.want, k.MapSize)
		require.Equal(t, x.want != problem.MapSize{}, k.TakesMap())
		require.Equal(t, k.TakesMap(), k.MapBytes() > 0)
	}
}

// A map of one order of row tiles is none for kernels of the other.
func TestMapsHaveAnOrder(t *testing.T) {
	of := func(lastFirst bool) problem.MapTiles {
		m := mapVariantOf("tile_map", problem.AccessDescriptors, Options{lastRowsFirst: lastFirst}, false, 64, 32, score.Modifiers{})
		return m.Tiles()
	}
	require.Equal(t, problem.MapTiles{Rows: 64, Keys: 32}, of(false))
	m := problem.TileMap{Buffer: new(vk.Buffer), Of: of(true)}
	require.True(t, m.Is(problem.MapSize{}, of(true)))
	require.False(t, m.Is(problem.MapSize{}, of(false)))
}

// Row tiles start from the last one on where a mask leaves the first row no key of the second half.
func TestLastRowsStartFirst(t *testing.T) {
	for text, want := range map[string]bool{
		"j <= i || j < 20":                     true,
		"j <= i || doc[i] == doc[j] && j < 20": true,
		"j <= i || doc[i] == doc[j]":           false,
		"doc[i] == doc[j]":                     false,
		"j >= i":                               false,
		"j < 20 || i < 40":                     false,
		"j < 20 || i < 60":                     false,
	} {
		mask, err := score.Parse(text, score.IntTable("doc", 1))
		require.NoError(t, err)
		cfg := problem.Config{MaskMod: mask}
		require.Equal(t, want, leavesLaterRowsMore(&cfg, &problem.Shape{B: 1, Hq: 1, Sq: 100, Sk: 100}), text)
		require.False(t, leavesLaterRowsMore(&cfg, &problem.Shape{B: 1, Hq: 1, Sq: 1, Sk: 1}), text)
	}
}
