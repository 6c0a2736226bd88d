package cases

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/testlevel"
)

// faultsOfKernels are faults of a few rows or keys, and faults of all of them that are hardly larger than rounding.
var faultsOfKernels = []struct {
	name  string
	fault oneRounding
}{
	{"delta of one row is 0", inSlots(func(x *faultySlot) bool { return x.h == 0 && x.row == 63 }, func(x *faultySlot) { x.delta = 0 })},
	{"P of one row is not normalized", inSlots(func(x *faultySlot) bool { return x.h == 0 && x.row == 63 }, func(x *faultySlot) { x.p *= x.sum })},
	{"dK lacks a query head", inSlots(func(x *faultySlot) bool { return x.h == 0 }, func(x *faultySlot) { x.toDK = 0 })},
	{"dK of a block of keys is 0", inSlots(func(x *faultySlot) bool { return x.h < 2 && x.key < 64 }, func(x *faultySlot) { x.toDK = 0 })},
	{"dV lacks a block of rows", inSlots(func(x *faultySlot) bool { return x.h == 0 && x.row < 64 }, func(x *faultySlot) { x.toDV = 0 })},
	{"dQ of a block lacks a block of keys", inSlots(func(x *faultySlot) bool { return x.h == 0 && x.row < 64 && x.key < 64 }, func(x *faultySlot) { x.toDQ = 0 })},
	{"dQ of a group of heads is 0", inSlots(func(x *faultySlot) bool { return x.h < 2 }, func(x *faultySlot) { x.toDQ = 0 })},
	{"no gradient of LSE", oneRounding{noDLSE: true}},
	{"scale 1 % too large", oneRounding{wrongDS: 1.01}},
	{"P in dV 1 % too large", oneRounding{wrongP: 1.01}},
}

// inSlots is a kernel with a fault in some slots.
func inSlots(is func(*faultySlot) bool, fault func(*faultySlot)) oneRounding {
	return oneRounding{slot: func(x *faultySlot) {
		if is(x) {
			fault(x)
		}
	}}
}

// The rules find each of these faults in every storage type, in problems of which some have one key for all rows, and accept
// the kernel without a fault. Rounding dS twice, once with rounded P, is no fault: plain attention does so.
func TestRulesOfGradientsFindFaults(t *testing.T) {
	for _, x := range []struct {
		c     Case
		blind map[string]bool // faults that change nothing here, or hardly more than rounding does
	}{
		{c: Case{D: 64, Dv: 64, Shape: attention.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 100, Sk: 130}, Causal: attention.BottomRight}},
		{c: Case{D: 128, Dv: 64, Shape: attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 100, Sk: 64}, Causal: attention.TopLeft}},
		{c: Case{D: 64, Dv: 64, Shape: attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 64, Sk: 64}, Data: Equal}},
		{c: Case{D: 32, Dv: 32, Shape: attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 64, Sk: 1}}, blind: map[string]bool{
			"P of one row is not normalized": true, // the sum is 1
			"scale 1 % too large":            true, // 1.5 times the error of plain attention is more in bf16
		}},
	} {
		x.c.Name, x.c.LSE, x.c.Seed = "faults", true, 77
		for _, dtype := range attention.DTypes() {
			t.Run(x.c.String()+" "+dtype.String(), func(t *testing.T) {
				b, err := NewBackward(x.c, dtype)
				require.NoError(t, err)
				verify := func(after [][]byte, otherwise bool) bool {
					if !testlevel.IsExhaustive() {
						return otherwise // it computes the reference each time
					}
					v, err := accuracy.VerifyBackward(b.Config(Target{DType: dtype}), b.BackwardHostArgs(after), accuracy.Options{})
					require.NoError(t, err)
					return v.Pass()
				}
				for _, right := range []oneRounding{{factor: 1}, {factor: 1, twice: true}} {
					after := right.compute(t, b)
					require.NoError(t, b.BackwardJudge(after))
					require.True(t, verify(after, true))
				}
				for _, f := range faultsOfKernels {
					if x.blind[f.name] {
						continue
					}
					f.fault.factor = 1
					after := f.fault.compute(t, b)
					require.Error(t, b.BackwardJudge(after), f.name)
					require.False(t, verify(after, false), f.name)
				}
			})
		}
	}
}

// Where one key takes all of P, P is 1 and its rounding moves nothing, so that dV off by 1 % fails in bf16, also among the
// keys of a sample.
func TestRulesOfGradientsWherePIsOne(t *testing.T) {
	for _, rows := range []int{3, 64} {
		c := Case{Name: "one key", D: 32, Dv: 32, Shape: attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: rows, Sk: 1}, LSE: true, Seed: 77}
		b, err := NewBackward(c, attention.BF16)
		require.NoError(t, err)
		for _, wrong := range []float64{1, 1.01} {
			after := oneRounding{factor: 1, wrongP: wrong}.compute(t, b)
			right := b.BackwardJudge(after) == nil
			require.Equal(t, wrong == 1, right, "%d rows, P times %v: %v", rows, wrong, b.BackwardJudge(after))
			v, err := accuracy.VerifyBackward(b.Config(Target{DType: b.DType}), b.BackwardHostArgs(after), accuracy.Options{Rows: 2 * rows / 3})
			require.NoError(t, err)
			require.Equal(t, wrong == 1, v.Pass(), "%d rows, P times %v: %v", rows, wrong, v)
		}
	}
}
