package merge

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/shaders"
	"vkattn/vk"
)

// mergeOf is a checked merge of states in memory that nothing reads.
func mergeOf(a MergeArgs, access problem.Access) *mergeLaunch {
	w := &mergeLaunch{access: access, sq: uint32(a.Sq), hq: uint32(a.Hq)}
	if err := w.set(&MergeConfig{HeadDim: 64}, &a); err != nil {
		panic(err)
	}
	return w
}

func TestMergeBatchesAtOnce(t *testing.T) {
	limits := &vk.Limits{MaxWorkGroupCount: [3]uint32{100, 100, 7}, MaxStorageBufferRange: 1<<20 + 256}
	shape := problem.Shape{B: 1000, Hq: 2, Sq: 16} // 4096 bytes of O a batch
	state := States{O: problem.Tensor{Offset: 1}, LSE: problem.Tensor{Offset: 1}}
	far := state
	far.O.Strides = problem.Strides{Batch: 1 << 32, Head: 1024, Seq: 64}
	wide := state
	wide.O.Strides = problem.Strides{Batch: 1 << 17, Head: 1024, Seq: 64} // 256 KiB
	heads := state
	heads.O.Strides = problem.Strides{Batch: 64, Head: 64, Seq: 64}
	stacked := state
	stacked.Count, stacked.StepO = 4, 1<<17
	for name, c := range map[string]struct {
		access problem.Access
		first  States
		shape  problem.Shape
		want   int
	}{
		"the grid's z":               {problem.AccessAddresses, state, shape, 7},
		"fewer":                      {problem.AccessAddresses, state, problem.Shape{B: 3, Hq: 2, Sq: 16}, 3},
		"a stride of 2^32":           {problem.AccessAddresses, far, shape, 1},
		"the range of a descriptor":  {problem.AccessDescriptors, wide, shape, 4},
		"is none of addresses":       {problem.AccessAddresses, wide, shape, 7},
		"states within a descriptor": {problem.AccessDescriptors, stacked, shape, 7},
		"row numbers of 32 bits":     {problem.AccessAddresses, heads, problem.Shape{B: 1000, Hq: math.MaxInt32, Sq: 1}, 2},
	} {
		got, err := mergeOf(MergeArgs{Shape: c.shape, First: c.first, O: problem.Tensor{Strides: c.first.O.Strides}}, c.access).batchesAtOnce(limits, c.shape.B)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
	stacked.Count = 5
	_, err := mergeOf(MergeArgs{Shape: shape, First: stacked}, problem.AccessDescriptors).batchesAtOnce(limits, shape.B)
	require.ErrorIs(t, err, problem.ErrUnsupported)
}

func TestMergeRefusesStridesBeyond32Bits(t *testing.T) {
	for name, change := range map[string]func(*MergeArgs){
		"rows": func(a *MergeArgs) { a.Hq, a.Sq = 1<<16, 1<<15 },
		"head": func(a *MergeArgs) { a.O.Strides = problem.Strides{Head: 1 << 32, Seq: 64} },
		"row":  func(a *MergeArgs) { a.First.O.Strides = problem.Strides{Head: 1, Seq: 1 << 32} },
		"step": func(a *MergeArgs) { a.First.Count, a.First.StepO = 2, 1<<32 },
	} {
		a := MergeArgs{Shape: problem.Shape{B: 1, Hq: 2, Sq: 16}}
		require.NoError(t, mergeOf(a, problem.AccessAddresses).fits32())
		change(&a)
		require.ErrorIs(t, mergeOf(a, problem.AccessAddresses).fits32(), problem.ErrUnsupported, name)
	}
}

// The constants of a merge are constants of its module, and so is the size of
// what is pushed.
func TestMergeFitsItsModule(t *testing.T) {
	for _, access := range []problem.Access{problem.AccessAddresses, problem.AccessDescriptors} {
		desc, err := mergeVariant{access: access, align: 1}.Pipeline(&MergeConfig{HeadDim: 512})
		require.NoError(t, err)
		r, err := shaders.Reflect(desc.Code)
		require.NoError(t, err)
		for _, c := range desc.Constants {
			require.Contains(t, r.SpecIDs(), c.ID)
		}
		require.Equal(t, mergePushBytes, r.PushConstantBytes())
		if access == problem.AccessDescriptors {
			require.EqualValues(t, mergeTensors, desc.StorageBuffers)
		}
	}
	for dim := 1; dim <= maxMergeHeadDim; dim++ {
		require.Positive(t, mergeRows(dim))
	}
}
