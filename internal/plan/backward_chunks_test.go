package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Chunks of dS are of as many heads as keep the cores of an H200 busy to the end, and no
// larger.
func TestChunksFillRoundsOfWorkgroups(t *testing.T) {
	caps := backwardCaps()
	caps.ShaderCores = 132
	for _, x := range []struct {
		b, length int
		causal    problem.Causal
		want      int // heads of a chunk
	}{
		{16, 16384, problem.CausalNone, 4}, // 512 workgroups: 3.9 and 1.9 rounds; with 3 heads 2.9 and 1.5
		{16, 16384, problem.TopLeft, 4},    // most that fit in the memory
		{16, 4096, problem.CausalNone, 32}, // 1024 workgroups: 7.8 and 3.9 rounds
		{16, 4096, problem.TopLeft, 26},
		{16, 1024, problem.CausalNone, 128}, // all heads
	} {
		r := BackwardRequest{Shape: problem.Shape{B: x.b, Hq: 8, Hkv: 8, Sq: x.length, Sk: x.length}, Access: problem.AccessDescriptors,
			Want: tensors.GradientSet{Q: true, K: true, V: true}}
		on := backwardDevice{caps: caps, accumulatorIsOperandA: func(problem.DType, fragment) bool { return true }}
		var plan chosenBackward
		cfg := problem.Config{HeadDim: 128, Causal: x.causal}
		require.Empty(t, plan.chooseKernels(&on, &cfg, problem.TierCoopMat2, &r, nil))
		require.Equal(t, x.want, plan.Chunks.Heads, "length %d, %v", x.length, x.causal)
		rows := uint64(x.length+rowUnit-1) / rowUnit * rowUnit
		require.Equal(t, uint64(x.want)*rows*uint64(x.length)*2, plan.Chunks.DSBytes)
		workgroups := x.length / 128 * x.want
		if x.causal != problem.CausalNone { // masked tiles are not rare
			workgroups = 0
		}
		require.EqualValues(t, 16*workgroups, plan.Chunks.MarkBytes)
		require.Equal(t, r.DSOffset()+plan.Chunks.DSBytes+plan.Chunks.MarkBytes, plan.ScratchBytes)
		require.LessOrEqual(t, plan.Chunks.DSBytes, uint64(maxDSBytes))
	}
}
