package plan

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// extremeShapes are shapes at the ends of what Validate allows.
func extremeShapes() (list []problem.Shape) {
	const most = problem.MaxLength
	for _, s := range []problem.Shape{
		{B: 1, Hq: 2, Hkv: 1, Sq: most, Sk: most},
		{B: 1, Hq: 8, Hkv: 1, Sq: 3 << 29, Sk: most}, // 2 and 4 bytes for each row and key of a group are multiples of 2^64
		{B: 1, Hq: 1 << 20, Hkv: 1, Sq: 1 << 30, Sk: most},
		{B: most, Hq: 1, Hkv: 1, Sq: most, Sk: most},
		{B: most, Hq: most, Hkv: most, Sq: 1, Sk: most},
		{B: most, Hq: most, Hkv: 1, Sq: 1, Sk: 1},
		{B: 1, Hq: most, Hkv: 1, Sq: most, Sk: 1},
		{B: most, Hq: 1, Hkv: 1, Sq: 1, Sk: most},
	} {
		if s.Validate() == nil {
			list = append(list, s)
		}
	}
	return list
}

// least fails if n is below an amount computed in floating point: sizes saturate, they do not wrap.
func least(t *testing.T, n uint64, want float64, what string) {
	t.Helper()
	if want < math.MaxUint64 {
		require.InEpsilon(t, want, float64(n), 1e-6, what)
	} else {
		require.Equal(t, uint64(math.MaxUint64), n, what)
	}
}

// A plan of a shape that no memory holds has sizes that fit nowhere, and no panic.
func TestPlansOfExtremeShapes(t *testing.T) {
	shapes := extremeShapes()
	require.Len(t, shapes, 8)
	for _, dtype := range problem.DTypes() {
		for _, s := range shapes {
			cfg := problem.Config{DType: dtype, HeadDim: 128}
			rows, keys := float64(s.B)*float64(s.Hq)*float64(s.Sq), float64(s.B)*float64(s.KVHeads())*float64(s.Sk)
			name := fmt.Sprintf("%v %+v", dtype, s)
			least(t, Flops(cfg, s), 512*rows*float64(s.Sk), name)
			least(t, tensorBytes(cfg, s, true), (256*(rows+keys))*float64(dtype.Size())+4*rows, name)
			backward := BackwardRequest{Shape: s, Access: problem.AccessDescriptors, Want: tensors.GradientSet{Q: true, K: true, V: true}}
			least(t, backwardBytesOf(&cfg, &backward), 512*(rows+keys)*float64(dtype.Size())+4*rows, name)
			least(t, backward.StatsBytes(), 16*rows, name)
			for _, tier := range deviceTiers {
				caps := backwardCaps()
				caps.Int16, caps.BFloat16CoopMat = true, true
				caps.Limits.MaxWorkGroupCount = [3]uint32{math.MaxUint32, math.MaxUint32, math.MaxUint32}
				r := Request{Shape: s, Access: problem.AccessDescriptors, LSE: true}
				v, shared, reason := chooseVariant(caps, cfg, tier, r)
				if reason == "" {
					plan := chosen{Variant: v, Plan: problem.Plan{Splits: problem.MaxStates}}
					splitting := splittingOf(caps, &cfg, &v, &r, shared)
					splitting.Of(&r)
					least(t, plan.workspace(&cfg, &r, problem.MaxStates), rows*problem.MaxStates*130*4, name)
				}
				on := backwardDevice{caps: caps, accumulatorIsOperandA: func(problem.DType, fragment) bool { return true }}
				var plan chosenBackward
				if plan.chooseKernels(&on, &cfg, tier, &backward, nil) == "" {
					require.GreaterOrEqual(t, plan.ScratchBytes, backward.StatsBytes(), name)
				}
			}
		}
	}
}
