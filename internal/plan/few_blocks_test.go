package plan

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
)

// Calls whose row blocks leave cores of an H200 idle take smaller blocks, and split long rows.
func TestFewRowBlocksOccupyMoreCores(t *testing.T) {
	caps := h200Caps()
	caps.ShaderCores, caps.Limits.MaxPushConstantBytes, caps.BufferDeviceAddress = 132, 256, true
	for _, c := range []struct {
		name   string
		shape  problem.Shape
		cfg    problem.Config
		want   string
		splits int
		cores  uint32
	}{
		{name: "64 rows, many keys", shape: problem.Shape{B: 1, Hq: 8, Hkv: 8, Sq: 64, Sk: 8192}, want: "64x64/32 16x16 4sg1", splits: 16},
		{name: "grouped heads", shape: problem.Shape{B: 1, Hq: 32, Hkv: 8, Sq: 64, Sk: 8192}, want: "128x64/32 16x16 8sg1", splits: 8},
		{name: "enough blocks", shape: problem.Shape{B: 4, Hq: 32, Hkv: 32, Sq: 64, Sk: 8192}, want: "64x64/32 16x16 4sg1", splits: 1},
		{name: "two splits would fit", shape: problem.Shape{B: 1, Hq: 8, Hkv: 8, Sq: 1024, Sk: 1024}, want: "128x64/32 16x16 8sg1", splits: 1},
		{name: "few keys", shape: problem.Shape{B: 1, Hq: 8, Hkv: 8, Sq: 64, Sk: 512}, want: "64x64/32 16x16 4sg1", splits: 1},
		{name: "few keys under the mask", shape: problem.Shape{B: 1, Hq: 8, Hkv: 8, Sq: 64, Sk: 8192}, cfg: problem.Config{Causal: problem.TopLeft},
			want: "64x64/32 16x16 4sg1", splits: 1},
		{name: "one block a core", shape: problem.Shape{B: 1, Hq: 8, Hkv: 8, Sq: 2048, Sk: 2048}, want: "128x64/32 16x16 8sg1", splits: 1},
		{name: "more blocks than cores", shape: problem.Shape{B: 1, Hq: 32, Hkv: 32, Sq: 2048, Sk: 2048}, want: "256x32/16 16x16 8sg2 q2", splits: 1},
		{name: "unknown cores", shape: problem.Shape{B: 1, Hq: 8, Hkv: 8, Sq: 64, Sk: 8192}, want: "64x32/16 16x16 2sg2 q2", splits: 1, cores: 1},
	} {
		caps := *caps
		if c.cores != 0 {
			caps.ShaderCores = 0
		}
		cfg := c.cfg
		cfg.HeadDim = 128
		r := Request{Shape: c.shape, Access: problem.AccessAddresses, Align: [4]uint32{8, 8, 8, 8}}
		v, shared, reason := chooseVariant(&caps, cfg, problem.TierCoopMat2, r)
		require.Empty(t, reason, c.name)
		splits := 1
		if v.Options.Any() {
			s := splittingOf(&caps, &cfg, &v, &r, shared)
			splits = s.Of(&r)
		}
		assert.Equal(t, c.want, v.Tile.String(), c.name)
		assert.Equal(t, c.splits, splits, c.name)
	}
}

// The blocks of packed sequences hold every block that a sequence has, and no more where one sequence has whole blocks.
func TestPackedBlocks(t *testing.T) {
	for _, lengths := range [][]int{{256}, {255}, {257}, {64, 64}, {1, 255, 1}, {0, 256, 0}, {100, 28, 300, 84}} {
		const block = 128
		rows, last := 0, 0
		for b, n := range lengths {
			if n > 0 {
				last = rows/block + b + (n+block-1)/block
			}
			rows += n
		}
		blocks := int(packedBlocks(uint64(rows), block, len(lengths)))
		require.GreaterOrEqual(t, blocks, last, lengths)
		if len(lengths) == 1 {
			require.Equal(t, last, blocks, lengths)
		}
	}
	require.Zero(t, packedBlocks(0, 128, 0))
}
