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
			list := f32Gradients()
			if s.experiment(tt).HalfTerms { // a driver on the CPU: each tier has its turn
				which, tiers := s.matrixTier(tt)
				if l := testlevel.Get(); l != testlevel.All && l != testlevel.Exhaustive {
					list = []cases.Case{list[1], list[5]} // a mask and none, two layouts, large numbers: 40 s a case
				}
				list = everyNth(list, tiers, which)
			}
			runBackward(t, s, tt, list)
		})
	}
}
