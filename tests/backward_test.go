package tests

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// TestBackwardConformance runs the tables of cases that have gradients, as
// TestBackwardConformance/<dtype>/<tier>/<case>: forward, then backward from its O and LSE.
// It computes each case twice, and only outputs may be written:
//
//   - unchanged: the rules for gradients judge it against float64;
//   - with everything spoiled that must not matter, dO and dLSE of rows that attend to
//     nothing included. The gradients must have the same bits.
func TestBackwardConformance(t *testing.T) {
	s := openTiers(t)
	for _, dtype := range attention.DTypes() {
		t.Run(dtype.String(), func(t *testing.T) {
			t.Parallel()
			for _, tt := range s.available() {
				if tt.DType != dtype || !computesGradients(tt.Tier) {
					continue
				}
				t.Run(tt.Tier.String(), func(t *testing.T) {
					t.Parallel()
					runBackward(t, s, tt, backwardCasesOf(t, s, tt))
				})
			}
		})
	}
}

// runBackward judges cases on a tier.
func runBackward(t *testing.T, s *session, tt cases.Target, list []cases.Case) {
	runBackwardOn(t, s.newEngine(tt), tt, list)
}

// runBackwardOn is runBackward on an engine, which it closes.
func runBackwardOn(t *testing.T, e *engine, tt cases.Target, list []cases.Case) {
	defer func() { require.NoError(t, e.close()) }()
	for _, c := range list {
		t.Run(c.String(), func(t *testing.T) {
			slots <- struct{}{}
			defer func() { <-slots }()
			b, err := cases.NewBackward(c, tt.DType)
			require.NoError(t, err)
			if err := conformBackward(e, b, attention.Config(c.Config(tt))); err != nil {
				t.Errorf("seed %d: %v", c.SeedValue(), err)
			}
		})
	}
}

// backwardLengths are the pairs of Sq and Sk of FlashAttention-3's tests that a CPU can
// compute: lengths of tiles, one less and one more, and few keys for many rows.
var backwardLengths = [][2]int{
	{1, 1}, {3, 3}, {64, 128}, {128, 128}, {256, 256}, {113, 203}, {128, 217}, {113, 211}, {108, 256}, {256, 512}, {384, 256},
	{640, 128}, {512, 256}, {1024, 1024}, {1023, 1024}, {1024, 1023}, {239, 1}, {799, 3},
}

// Lengths of many kinds, with and without a causal mask, and with numbers that overflow
// float16 where they are multiplied carelessly: Q times 5, K and V times 3.
func TestBackwardOfLengths(t *testing.T) {
	s := openTiers(t)
	for _, tt := range s.available() {
		if !computesGradients(tt.Tier) || slowToCompile(tt) && tt.DType != attention.F16 || leftToGPUs(tt) {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			var list []cases.Case
			for i, n := range backwardLengths {
				for j, causal := range []attention.Causal{attention.CausalNone, attention.BottomRight} {
					c := cases.Case{Name: "lengths", D: 32, Dv: 32, Shape: attention.Shape{Hq: 1, Hkv: 1}, Causal: causal,
						Seqs: []cases.Seq{{ID: i, Rows: n[0], Keys: n[1]}}, LSE: true}
					if i%2 == 1 {
						c.Name, c.Extremes = "overflow", cases.Extremes{Q: 5, K: 3, V: 3}
					}
					long := n[0]*n[1] > 1<<18 // of these the masked one: the reference takes long
					if s.backwardTurn(tt, 2*i+j) && testlevel.Share(i%2 == 0 && (s.dev == nil || s.open)) && (!long || causal != attention.CausalNone) {
						list = append(list, c)
					}
				}
			}
			runBackward(t, s, tt, list)
		})
	}
}

// Gradients in one memory, as training stacks have them: rows of dQ, dK, dV and dO of a
// token follow one another, and so do Q, K, V and O. No tier writes between the rows of an
// output. Head dims that are odd put two tensors into one 32-bit word.
func TestBackwardOfFusedTensors(t *testing.T) {
	s := openTiers(t)
	for _, tt := range s.available() {
		if !computesGradients(tt.Tier) || slowToCompile(tt) && tt.DType != attention.F16 || leftToGPUs(tt) {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			var list []cases.Case
			for i, d := range [][2]int{{33, 15}, {9, 9}, {64, 64}, {7, 7}, {20, 36}} {
				c := cases.Case{Name: "fused", D: d[0], Dv: d[1], Layout: cases.Fused, LSE: true,
					Shape:  attention.Shape{B: 2, Hq: 4, Hkv: 4 - 2*(i%2), Sq: []int{67, 0, 70, 3, 40}[i], Sk: []int{67, 0, 70, 77, 31}[i]},
					Causal: []attention.Causal{attention.BottomRight, attention.CausalNone}[i%2]}
				if c.Shape.Sq == 0 {
					c.Shape, c.PackedQ, c.PackedK = attention.Shape{Hq: 3, Hkv: 3}, true, true
					c.Seqs = []cases.Seq{{ID: 1, Rows: 20, Keys: 20}, {ID: 2}, {ID: 3, Rows: 37, Keys: 37}}
				}
				// A driver on the CPU compiles for seconds: storage types take turns, and SwiftShader,
				// which compiles longest, has none.
				if tt.Tier == attention.TierCPU || s.open || s.turn < 2 && i%3 == int(tt.DType) {
					list = append(list, c)
				}
			}
			runBackward(t, s, tt, list)
		})
	}
}

// Dropout of packed rows of grouped heads on the coopmat tiers. In the table of cases, the
// cases with dropout fall to storage types for which drivers on the CPU have no
// cooperative matrices.
func TestBackwardDropoutOfMatrices(t *testing.T) {
	s := openTiers(t)
	for _, tt := range s.available() {
		if !onMatrices(tt) || tt.DType != attention.F16 || leftToGPUs(tt) {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			var list []cases.Case
			for _, c := range cases.CompactOptions() {
				if c.Dropout != 0 && c.HasGradients() && hasBackwardKernels(c, tt) {
					list = append(list, c)
				}
			}
			require.NotEmpty(t, list)
			runBackward(t, s, tt, list)
		})
	}
}

// computesGradients reports whether a tier has backward kernels of its own.
func computesGradients(tier attention.Tier) bool {
	return tier != attention.TierCUDA && tier != attention.TierCubin
}

// hasBackwardKernels reports whether a tier that computes gradients can compute a case.
// The coopmat tiers take no sparse tokens, and with fragments of 8x8, which drivers on the
// CPU have, no head dims above 128. Their error names what they refuse.
func hasBackwardKernels(c cases.Case, tt cases.Target) bool {
	if tt.Tier != attention.TierCoopMat && tt.Tier != attention.TierCoopMat2 {
		return true
	}
	return c.SparseRatio == 0 && (!strings.HasPrefix(driverUnderTest().name, "lavapipe") || max(c.D, c.Dv) <= 128)
}

// A tier that is asked for and cannot compute a call is refused by name; TierAuto takes the
// next one.
func TestBackwardRefusesByName(t *testing.T) {
	s := openTiers(t)
	for _, tt := range s.available() {
		all := cases.BriefOptions()
		i := slices.IndexFunc(all, func(c cases.Case) bool { return c.HasGradients() && !hasBackwardKernels(c, tt) && c.SparseRatio > 0 })
		if !computesGradients(tt.Tier) || i < 0 {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			e := s.newEngine(tt)
			defer func() { require.NoError(t, e.close()) }()
			err := e.prepareBackward(all[i], tt)
			require.ErrorIs(t, err, attention.ErrUnsupported)
			require.ErrorContains(t, err, fmt.Sprintf("%v: it computes no gradients with sparse tokens", tt.Tier))
			require.NotContains(t, err.Error(), attention.TierScalar.String()+": ")
		})
	}
}

// backwardCasesOf returns the cases of the tables that a tier computes in a storage type.
// VKATTN_TEST_CASES may select some of them.
func backwardCasesOf(t *testing.T, s *session, tt cases.Target) (some []cases.Case) {
	wanted, err := regexp.Compile(os.Getenv("VKATTN_TEST_CASES"))
	require.NoError(t, err)
	which := 0
	for i, dtype := range attention.DTypes() {
		if dtype == tt.DType {
			which = i
		}
	}
	for _, table := range [][]cases.Case{cases.Brief(which), backwardOptionTable(tt)} {
		var all []cases.Case
		for _, c := range table {
			c = s.withAccess(c)
			if c.HasGradients() && hasBackwardKernels(c, tt) && wanted.MatchString(c.String()) && c.Flops() <= backwardFlops(tt) {
				all = append(all, c)
			}
		}
		some = append(some, s.backwardShareOf(tt, all, 3*which+s.turn)...)
	}
	return some
}

// withAccess is a case with descriptors where the push constants have no room for addresses.
func (s *session) withAccess(c cases.Case) cases.Case {
	if s.dev != nil && s.dev.Caps().Limits.MaxPushConstantBytes < backwardPushBytes && c.Access == attention.AccessAddresses {
		c.Access = attention.AccessDescriptors
	}
	return c
}

// backwardShareOf is levelShareOf for gradients. A CPU driver compiles seconds for each case,
// so make test-full adds to the first share one case in backwardShare of the others. The
// coopmat tiers compute their turns of the first share and of the others in make test-full
// alone: a case takes 20 s. SwiftShader compiles a case for 10 s and has one in backwardShare of all, there too.
func (s *session) backwardShareOf(tt cases.Target, all []cases.Case, n int) []cases.Case {
	level := testlevel.Get()
	if tt.Tier == attention.TierCPU || level != testlevel.Full && level != testlevel.Default {
		return s.levelShareOf(tt, all)
	}
	which, of := s.firstShare(tt)
	turn := map[string]bool{} // the pipelines of the first share: whether it is the target's turn
	for i, p := range firstPipelines(optionTable(tt), optionFacets) {
		turn[p] = i%of == which
	}
	deep := onMatrices(tt)
	rest := s.name == "lavapipe" && !deep // make test-full computes the rest of the first share
	var first, left, others []cases.Case
	for _, c := range all {
		switch mine, isFirst := turn[c.Pipeline()]; {
		case mine && s.name != "swiftshader":
			first = append(first, c)
		case isFirst && rest:
			left = append(left, c)
		default:
			others = append(others, c)
		}
	}
	switch {
	case s.compileOnly:
		first = everyNth(first, 3, s.turn)
	case s.name == "lavapipe-old": // half in make test, half in make test-full
		if level == testlevel.Full {
			left = everyNth(first, 2, 1)
		}
		first = everyNth(first, 2, 0)
	}
	switch {
	case level == testlevel.Default && deep:
		return nil
	case level == testlevel.Default:
		return first
	case deep:
		left = first
	}
	stride := backwardShare
	if deep && len(others) > stride { // the tiers take turns: at head dim 128 a case takes over a minute
		tier, tiers := s.matrixTier(tt)
		n += stride * ((tier + 1) % tiers)
		stride *= tiers
	}
	return append(left, everyNth(others, stride, n)...)
}

// backwardPushBytes are the push constants of backward kernels with addresses.
const backwardPushBytes = 256

// backwardShare divides the cases that make test-full gives to each driver and storage
// type: a case has up to six pipelines, and a driver on the CPU compiles for seconds. The
// CPU tier has all cases there, and a GPU at level all.
const backwardShare = 90

// backwardTurn reports whether a target computes the n-th case of a list. Of two drivers on
// the CPU one computes a case on tier scalar, in one type: each kernel is one module for three
// types. The third, SwiftShader, compiles each case for ten seconds and computes none.
func (s *session) backwardTurn(tt cases.Target, n int) bool {
	switch {
	case tt.Tier == attention.TierCPU || s.open || s.dev == nil:
		return true
	case onMatrices(tt):
		which, tiers := s.matrixTier(tt)
		return n%tiers == which
	}
	return n%2 == s.turn && n/2%3 == int(tt.DType)
}

// leftToGPUs reports whether tests other than the conformance table skip a tier at this
// level. They leave the coopmat tiers to level all, which GPUs run.
func leftToGPUs(tt cases.Target) bool {
	return onMatrices(tt) && testlevel.Get() != testlevel.All && testlevel.Get() != testlevel.Exhaustive
}

func everyNth[T any](all []T, n, first int) (some []T) {
	for i := first; i < len(all); i += n {
		some = append(some, all[i])
	}
	return some
}

// backwardOptionTable is the share of a storage type in the table of options.
func backwardOptionTable(tt cases.Target) []cases.Case {
	table := cases.BriefOptions()
	switch {
	case full():
		return cases.AllOptions()
	case slowToCompile(tt):
		table = append(cases.CompactOptions(), cases.CompactGradients()...)
	}
	return cases.DealOptions(table, len(attention.DTypes()))[int(tt.DType)]
}

// backwardFlops bounds a case: the reference in float64 runs on the CPU.
func backwardFlops(cases.Target) int64 { return 1 << 28 }

// TestBackwardCompile compiles the pipelines of the table on devices that execute nothing:
// make test-platforms those of the coopmat tiers too.
func TestBackwardCompile(t *testing.T) {
	compileTable(t, (*engine).prepareBackward, func(s *session, tt cases.Target) []cases.Case {
		if tt.DType != attention.F16 && tt.Tier == attention.TierScalar {
			return nil // one module for all three storage types
		}
		if f32OnMatrices(tt) || leftToGPUs(tt) {
			return nil
		}
		list := backwardCasesOf(t, s, tt)
		if onMatrices(tt) && s.turns > 1 {
			list = everyNth(list, s.turns, s.turn)
		}
		return list
	})
}

func (e *engine) prepareBackward(c cases.Case, tt cases.Target) (err error) {
	op, err := e.op(attention.Config(c.Config(tt)))
	if err != nil {
		return err
	}
	b, err := cases.NewBackward(c, tt.DType)
	if err != nil {
		return err
	}
	buffers, err := e.wrapped(b.Image)
	defer closing(buffers, &err)
	if err != nil {
		return err
	}
	return op.PrepareBackwardFor(b.BackwardDeviceArgs(buffers))
}

// conformBackward computes a case twice and judges it.
func conformBackward(e *engine, b *cases.Backward, cfg attention.Config) error {
	befores := [2][][]byte{b.Image, b.BackwardSpoiled()}
	var afters [2][][]byte
	for i, before := range befores {
		var err error
		if afters[i], err = e.runBackward(b, cfg, before); err != nil {
			return err
		}
		if err := b.BackwardTrespass(before, afters[i]); err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
	}
	if err := b.BackwardJudge(afters[0]); err != nil {
		return err
	}
	if err := b.BackwardSame(afters[0], afters[1]); err != nil {
		return fmt.Errorf("spoiled memory changes bits: %w", err)
	}
	return nil
}

// BackwardProblem is a call with gradients that can be made in host memory and on a device.
type BackwardProblem interface {
	BackwardHostArgs(images [][]byte) attention.BackwardArgs
	BackwardDeviceArgs(buffers []*vk.Buffer) attention.BackwardArgs
}

// runBackward computes forward and backward of a case and returns the memory behind it.
func (e *engine) runBackward(b BackwardProblem, cfg attention.Config, before [][]byte) (after [][]byte, err error) {
	op, err := e.op(cfg)
	if err != nil {
		return nil, err
	}
	return onImages(e.dev, before, func(m *callMemory) error {
		a := b.BackwardHostArgs(m.host)
		if m.stream != nil {
			a = b.BackwardDeviceArgs(m.buffers)
		}
		if err := op.Forward(attention.OnStream(m.stream), a.Args); err != nil {
			return err
		}
		if err := m.barrier(); err != nil {
			return err
		}
		return op.Backward(attention.OnStream(m.stream), a)
	})
}
