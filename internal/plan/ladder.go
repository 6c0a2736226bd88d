package plan

import (
	"vkattn/internal/dispatch"
	"vkattn/internal/problem"
	"vkattn/shaders"
)

// Steps of the ladder.
const (
	stepCut = 2 + iota
	stepSplit
	stepExp2
	stepTiles
	StepTuner
	stepBlocks
	stepAligned
)

// Includes reports whether the kernel includes a step of the ladder.
func Includes(l problem.Experiment, step int) bool { return l.Variant == 0 || l.Variant >= step }

// changeConstants turns the specialization constants of the kernel as shipped into the
// constants of l. All variants and ablations compile from the same source.
func changeConstants(l problem.Experiment, c map[uint32]uint32) {
	if l == (problem.Experiment{}) {
		return
	}
	c[shaders.ConstCausalSkip] = dispatch.BoolConstant(Includes(l, stepCut))
	c[shaders.ConstUnmaskedLoop] = dispatch.BoolConstant(Includes(l, stepSplit))
	c[shaders.ConstExp2] = dispatch.BoolConstant(Includes(l, stepExp2))
	c[shaders.ConstTileAddressing] = dispatch.BoolConstant(Includes(l, stepBlocks))
	if !Includes(l, stepAligned) {
		// Assume no more than what all kernels rely on: elements lie in whole 32-bit words.
		for _, id := range []uint32{shaders.ConstAlignQ, shaders.ConstAlignK, shaders.ConstAlignV, shaders.ConstAlignO} {
			c[id] = min(c[id], 2)
		}
	}
	c[shaders.ConstAblate] = uint32(l.Ablate)
}
