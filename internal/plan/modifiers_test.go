package plan

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention/score"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// With addresses only the tables of modifiers and their sizes are bound. Their gradients take descriptors.
func TestBindingsOfTables(t *testing.T) {
	mask := func(tables int) (e score.Expr) {
		e = score.Causal()
		for i := range tables {
			e = score.And(e, score.Eq(score.IntTable(fmt.Sprint("t", i), 1).At(score.J), score.I))
		}
		return e
	}
	limits := vk.Limits{MaxPushConstantBytes: 256, MaxStorageBuffers: 4}
	for _, x := range []struct {
		tables            int
		access            problem.Access
		forward, backward string
	}{
		{0, problem.AccessAddresses, "", ""},
		{3, problem.AccessAddresses, "", ""},
		{4, problem.AccessAddresses, "the device binds 4 buffers, the general kernel takes 5", "the device binds 4 buffers, backward kernels take 5"},
		{1, problem.AccessDescriptors, "the device binds 4 buffers, the general kernel takes 19; buffers with device addresses need none",
			fmt.Sprintf("the device binds 4 buffers, backward kernels take %d", BackwardBindings+1)},
	} {
		cfg := problem.Config{HeadDim: 64, MaskMod: mask(x.tables)}
		require.Equal(t, x.forward, generalFits(&limits, &cfg, x.access))
		require.Equal(t, x.backward, backwardFits(&limits, &cfg, x.access))
	}

	bias := score.FloatTable("bias", 1)
	cfg := problem.Config{HeadDim: 64, ScoreMod: score.Add(score.S, bias.At(score.Head))}
	r := BackwardRequest{Shape: problem.Shape{B: 1, Hq: 4, Hkv: 4, Sq: 64, Sk: 64}, Access: problem.AccessAddresses,
		Want: tensors.GradientSet{Q: true, Tables: [score.MaxTables]bool{true}}}
	caps := backwardCaps()
	caps.Limits.MaxPushConstantBytes = 256
	on := backwardDevice{caps: caps, accumulatorIsOperandA: func(problem.DType, fragment) bool { return true }}
	var plan chosenBackward
	require.Equal(t, "gradients of tables take descriptors", plan.chooseKernels(&on, &cfg, problem.TierScalar, &r, nil))
}
