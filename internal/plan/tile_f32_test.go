package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
)

// Above head dim 192 pairs of subgroups split the head dim, and above 128 where shared memory is
// short for a tile that is not divided. The tiles on an H200's numbers keep eight subgroups and a
// loop with pairs of float16 on both tiers; where shared memory is short V overlays K.
func TestF32TilesOnAnH200(t *testing.T) {
	caps := f32Caps()
	for _, x := range []struct {
		d, dv             int
		coopmat2, coopmat string // behind rows and fragments
	}{
		{128, 128, "128x16/16 16x16 8sg1 g4 f u p32g2f", "128x16/16 16x16 8sg1 g4 f u p32g2f"},
		{160, 160, "128x16/16 16x16 8sg1 g2 f u p16g2f", "128x16/16 16x16 8sg1 g2 f u p16g2f"},
		{192, 192, "128x16/16 16x16 8sg1 g2 f u p16g2f", "64x16/16 16x16 8sg1 g2 f u p16g2f d2 a1"},
		{192, 128, "128x16/16 16x16 8sg1 g2 f u p16g2f", "128x16/16 16x16 8sg1 g2 f u p16g2f"},
		{224, 224, "64x16/16 16x16 8sg1 g2 f u p16g2f d2 a1", "64x16/16 16x16 8sg1 g2 f u p16g2f d2 a3"},
		{256, 256, "64x16/16 16x16 8sg1 g2 f u p16g2f d2 a1", "64x16/16 16x16 8sg1 g2 f u p16g2f d2 a3"},
		{1, 256, "64x16/16 16x16 8sg1 g2 f u p16g2f d2", "64x16/16 16x16 8sg1 g2 f u p16g2f d2 a1"},
	} {
		for tier, want := range map[problem.Tier]string{problem.TierCoopMat2: x.coopmat2, problem.TierCoopMat: x.coopmat} {
			r := Request{Shape: problem.Shape{B: 1, Hq: 1, Sq: 4096, Sk: 4096}, Access: problem.AccessAddresses, Align: [4]uint32{4, 4, 4, 4}}
			v, shared, reason := chooseVariant(caps, f32Config(x.d, x.dv), tier, r)
			require.Empty(t, reason, "%v %d/%d", tier, x.d, x.dv)
			require.Equal(t, want, v.Tile.String(), "%v %d/%d", tier, x.d, x.dv)
			require.LessOrEqual(t, shared, uint64(48<<10))
			require.GreaterOrEqual(t, shared, uint64(v.Tile.(f32Tile).leastShared(&v)))
			r.Shape.Sq = 20
			v, _, reason = chooseVariant(caps, f32Config(x.d, x.dv), tier, r)
			require.Empty(t, reason)
			require.Less(t, v.Tile.Rows(), uint32(64), "few rows take few subgroups")
		}
	}
}

// Tiles that split the head dim are refused where the kernel cannot compute them.
func TestF32SplitHeadDimNeeds(t *testing.T) {
	good := f32Tile{fragment: fragment{M: 16, N: 16, K: 16, SumN: 8, Subgroup: 32}, Subgroups: 8, MFrags: 1, KVTile: 16, KVStep: 16,
		Group: 2, PairTile: 16, PairGroup: 2, DvSlice: 256, DimSplit: 2, AliasKV: 3}
	require.True(t, good.computes(256, 256))
	for name, spoil := range map[string]func(*f32Tile){
		"an odd number of subgroups": func(t *f32Tile) { t.Subgroups = 7 },
		"two steps":                  func(t *f32Tile) { t.KVTile, t.PairTile = 32, 32 },
		"a longer tile of pairs":     func(t *f32Tile) { t.PairTile = 32 },
		"two elements of a lane":     func(t *f32Tile) { t.Subgroup = 128 },
		"four subgroups of a row":    func(t *f32Tile) { t.DimSplit = 4 },
		"none":                       func(t *f32Tile) { t.DimSplit = 0 },
		"V over K without it":        func(t *f32Tile) { t.DimSplit = 1 },
		"V over K in a third loop":   func(t *f32Tile) { t.AliasKV = 4 },
	} {
		bad := good
		spoil(&bad)
		require.False(t, bad.computes(256, 256), name)
		require.NotPanics(t, func() { _ = bad.String() }, name)
	}
}
