package tests

import (
	"testing"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testlevel"
)

// f32Gradients are the cases of TestBackwardF32OnMatrices. Each row has its own pipelines, which
// drivers on the CPU compile for up to a minute: below level all each tier has one of the cases.
func f32Gradients() []cases.Case {
	shape := func(b, hq, hkv, sq, sk int) attention.Shape {
		return attention.Shape{B: b, Hq: hq, Hkv: hkv, Sq: sq, Sk: sk}
	}
	return []cases.Case{
		{D: 16, Dv: 16, Shape: shape(2, 2, 2, 70, 90)},
		{D: 16, Dv: 16, Shape: shape(1, 4, 2, 75, 75), Causal: attention.TopLeft, Layout: cases.BSHD},
		{D: 24, Dv: 10, Shape: shape(1, 6, 2, 40, 131), Causal: attention.BottomRight, Layout: cases.Odd},
		{D: 16, Dv: 16, Shape: shape(1, 1, 1, 131, 40), Causal: attention.BottomRight},
		{D: 16, Dv: 16, Shape: shape(1, 2, 1, 90, 70), Causal: attention.TopLeft, Data: cases.Large},
		{D: 16, Dv: 16, Shape: shape(1, 2, 1, 33, 129), Data: cases.Large},
		{D: 64, Dv: 64, Shape: shape(1, 2, 1, 50, 70), Causal: attention.TopLeft},
		// Rows of dK that are not aligned as those of dV are.
		{D: 33, Dv: 128, Shape: shape(1, 1, 1, 20, 70)},
		{D: 33, Dv: 36, Shape: shape(1, 1, 1, 20, 70)},
		{D: 65, Dv: 128, Shape: shape(1, 2, 1, 20, 70)},
		{D: 33, Dv: 64, Shape: shape(1, 2, 1, 20, 70), Layout: cases.Padded},
		// Above head dim 128. What spoils the memory of the first two is not finite: finite numbers over float16's range would be Inf as
		// terms of float16.
		{D: 160, Dv: 160, Shape: shape(1, 2, 1, 51, 70), Causal: attention.TopLeft},
		{D: 192, Dv: 128, Shape: shape(1, 1, 1, 133, 40), Causal: attention.BottomRight, Layout: cases.Odd},
		{D: 256, Dv: 256, Shape: shape(2, 4, 2, 75, 290)},
		{D: 7, Dv: 200, Shape: shape(1, 2, 1, 33, 129), Data: cases.Large},
		{D: 129, Dv: 256, Shape: shape(1, 2, 1, 300, 270), Causal: attention.TopLeft, Data: cases.Large},
	}
}

// f32StageGradients are cases for the kernels of head dims above 128, at head dims that a driver on the CPU compiles in less
// time.
func f32StageGradients() []cases.Case {
	shape := func(b, hq, hkv, sq, sk int) attention.Shape {
		return attention.Shape{B: b, Hq: hq, Hkv: hkv, Sq: sq, Sk: sk}
	}
	return []cases.Case{
		{D: 16, Dv: 24, Shape: shape(1, 4, 2, 75, 75), Causal: attention.TopLeft, Layout: cases.BSHD, Data: cases.Large},
		{D: 24, Dv: 40, Shape: shape(1, 2, 1, 33, 129), Layout: cases.Odd},
		{D: 40, Dv: 40, Shape: shape(1, 4, 2, 40, 131), Causal: attention.BottomRight},
		{D: 16, Dv: 16, Shape: shape(2, 4, 1, 260, 300), Causal: attention.BottomRight, Data: cases.Large},
	}
}

// TestBackwardF32OnMatrices judges gradients of float32 on cooperative matrices as
// TestBackwardConformance does the others. Devices without matrices of bfloat16 run them with
// terms of float16.
func TestBackwardF32OnMatrices(t *testing.T) {
	s := openTiers(t)
	for _, tt := range s.dense() {
		if !f32OnMatrices(tt) {
			continue
		}
		t.Run(tt.Tier.String(), func(t *testing.T) {
			list, stages := f32Gradients(), f32StageGradients()
			if s.experiment(tt).HalfTerms { // a driver on the CPU: each tier has its turn
				which, tiers := s.matrixTier(tt)
				if l := testlevel.Get(); l != testlevel.All && l != testlevel.Exhaustive {
					list, stages = list[1:2], stages[:1] // 40 s a case: one tier has the kernels of head dims up to 128, the other those above
					if tiers > 1 && which == 0 {
						stages = nil
					} else if tiers > 1 {
						list = nil
					}
				} else {
					list, stages = everyNth(list, tiers, which), everyNth(stages, tiers, which)
				}
			}
			runBackward(t, s, tt, list)
			e := s.newEngine(tt)
			e.experiment.BackwardTiles = "scores.group=1"
			runBackwardOn(t, e, tt, stages)
		})
	}
}
