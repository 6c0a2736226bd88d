package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/vk"
)

// With FixedSplit the tier is a function of the Config and the device: the tier that they give computes every call,
// whatever its shape, alignment and options.
func TestTheTierOfAFixedSplitComputesEveryCall(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	one := func(n int) int { return random.IntN(n) }
	tiers := map[problem.Tier]int{}
	for n := range 3000 {
		caps := raceCaps()
		caps.Limits.MaxSharedBytes = []uint32{48 << 10, 32 << 10, 16 << 10}[one(3)]
		caps.BufferDeviceAddress = one(4) > 0
		if one(4) == 0 {
			caps.CoopMat2 = vk.CoopMat2{}
		}
		dims := [][2]int{{16, 0}, {64, 0}, {100, 72}, {128, 0}, {192, 128}, {256, 0}, {576, 512}}[one(7)]
		cfg := problem.Config{DType: problem.DTypes()[one(3)], HeadDim: dims[0], HeadDimV: dims[1],
			Causal: problem.Causal(one(3)), FixedSplit: 1 + one(4), KeyType: problem.KVType(one(3))}
		cfg.ValueType = cfg.KeyType
		if one(4) == 0 {
			cfg.Softcap = 30
		}
		if one(8) == 0 {
			cfg.Scale = problem.ScaleOf(1 << 22)
		}
		tier, _ := fixedTier(caps, &cfg, deviceTiers)
		tiers[tier]++
		s := problem.Shape{B: 1 + one(5), Hq: 8, Hkv: []int{1, 2, 8}[one(3)], Sq: 1 + one(300), Sk: 1 + one(5000)}
		r := Request{Shape: s, LSE: one(2) == 0, Access: problem.AccessDescriptors, Options: OptionsOf(&problem.Args{}, &cfg)}
		if caps.BufferDeviceAddress && one(2) == 0 {
			r.Access = problem.AccessAddresses
		}
		for i := range r.Align {
			r.Align[i] = 1 << one(4)
		}
		o := &r.Options
		o.bias, o.mask, o.alibi, o.sinks, o.sparseTokens = uint32(one(4)), one(2) == 0, uint32(one(3)), one(2) == 0, []uint32{0, sparseLists, sparseLists | sparsePerRow, 7}[one(4)]
		o.Lengths, o.pageSize = uint32(one(16)), []uint32{0, 1, 7, 16, 256}[one(5)]
		class, _ := r.fixedClasses()
		if one(2) == 0 && cfg.DType != problem.F32 && cfg.Dropout == 0 && class.usesDecodeKernel(true) {
			class.operands = operandsInSmem
		}
		if generalFits(&caps.Limits, &cfg, r.Access) == "" {
			_, _, reason := chooseVariant(caps, cfg, tier, class)
			require.Empty(t, reason, fmt.Sprintf("%d: %v on %v: %+v", n, tier, cfg, r))
		}
	}
	require.Len(t, tiers, 3, "all tiers: %v", tiers)
}
