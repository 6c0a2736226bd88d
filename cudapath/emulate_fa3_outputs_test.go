//go:build !windows

package cudapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testlevel"
)

// launchCases are problems that take several launches above head dim 128 if dS of one has emulatedDS bytes: whole heads of which the last launch has
// fewer, parts of a head that begin in the middle of another launch, units that need more than a launch has, and groups of one to eight query heads.
func launchCases(d, dv int) []cases.Case {
	var list []cases.Case
	for i, c := range []cases.Case{
		{Name: "whole heads", Shape: attention.Shape{B: 2, Hq: 5, Sq: 33, Sk: 130}, Causal: attention.BottomRight},
		{Name: "whole heads", Shape: attention.Shape{B: 1, Hq: 10, Sq: 64, Sk: 129}},
		{Name: "more keys than rows", Shape: attention.Shape{B: 2, Hq: 2, Hkv: 1, Sq: 1, Sk: 700}, Causal: attention.BottomRight},
		{Name: "more keys than rows", Shape: attention.Shape{B: 1, Hq: 8, Hkv: 1, Sq: 65, Sk: 450}},
		{Name: "more rows than keys", Shape: attention.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 400, Sk: 3}, Causal: attention.BottomRight},
		{Name: "more rows than keys", Shape: attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 700, Sk: 66}, Causal: attention.TopLeft},
		{Name: "parts of a head", Shape: attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 150, Sk: 390}, Causal: attention.TopLeft},
		{Name: "parts of a head", Shape: attention.Shape{B: 1, Hq: 3, Hkv: 1, Sq: 129, Sk: 257}},
	} {
		c.D, c.Dv, c.LSE, c.Seed = d, dv, true, uint64(300+i)
		list = append(list, c)
	}
	return list
}

// fa3Variants are modules of fa3 and whether a brief run has them.
var fa3Variants = []struct {
	dtype   attention.DType
	d, dv   int
	options bool
	brief   bool
}{
	{attention.F16, 192, 128, false, true}, {attention.BF16, 192, 128, true, true}, {attention.BF16, 256, 256, false, false}, {attention.F16, 192, 192, true, false},
	{attention.F16, 64, 64, false, false}, {attention.BF16, 128, 128, false, false}, {attention.F16, 128, 128, true, false},
}

// The kernels of fa3 with options and without, run by the CPU in the launches and in the workspace that Launch gives them.
func TestFA3CallsOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	for _, v := range fa3Variants {
		if !v.brief && !testlevel.IsExhaustive() {
			continue
		}
		t.Run(fmt.Sprintf("%v d%dv%d options %v", v.dtype, v.d, v.dv, v.options), func(t *testing.T) {
			e := newTMAEmulator(t, v.dtype, v.d, v.dv, v.options)
			t.Run("launches", func(t *testing.T) {
				for i, c := range launchCases(v.d, v.dv) {
					if testlevel.IsExhaustive() || (i%2 == 0) == v.options {
						testLaunches(t, c, v.dtype, v.options, e)
					}
				}
			})
			t.Run("outputs", func(t *testing.T) {
				for i, c := range outputCases(v.d, v.dv, v.options) {
					if testlevel.IsExhaustive() || i == 0 {
						b, err := cases.NewBackward(c, v.dtype)
						require.NoError(t, err)
						cfg := c.Config(cases.On(attention.TierCPU, v.dtype))
						k := fa3KernelOf(t, b, attention.Config(cfg), v.options)
						testOutputs(t, b, attention.Config(cfg), func(a attention.BackwardArgs, reversed bool) error {
							return emulateFA3(e, k, attention.Config(cfg), a, reversed)
						})
					}
				}
			})
			if v.options {
				t.Run("longest", func(t *testing.T) { testLongest(t, v.dtype, v.d, v.dv, e) })
			}
		})
	}
}

// A problem of launchCases is right.
func testLaunches(t *testing.T, c cases.Case, dtype attention.DType, options bool, e *tmaEmulator) {
	b, err := cases.NewBackward(c, dtype)
	require.NoError(t, err)
	cfg := c.Config(cases.On(attention.TierCPU, dtype))
	k := fa3KernelOf(t, b, attention.Config(cfg), options)
	require.NoError(t, conformEmulated(b, attention.Config(cfg), func(a attention.BackwardArgs, reversed bool) error {
		return emulateFA3(e, k, attention.Config(cfg), a, reversed)
	}), c.String())
}

// outputCases are a problem with options or without, and one whose dims fill no tile.
func outputCases(d, dv int, options bool) []cases.Case {
	fewer := d / 64 * 8
	list := []cases.Case{
		{Name: "outputs", D: d, Dv: dv, Shape: attention.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 140, Sk: 200}, Causal: attention.BottomRight},
		{Name: "rows without keys", D: d - fewer, Dv: dv - fewer, Shape: attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 280, Sk: 70}, Causal: attention.BottomRight},
	}
	if options {
		list[0].Shape, list[0].Seqs = attention.Shape{Hq: 4, Hkv: 2}, []cases.Seq{{ID: 1, Rows: 70, Keys: 90}, {ID: 2}, {ID: 3, Rows: 9, Keys: 266}, {ID: 4, Rows: 130}}
		list[0].PackedQ, list[0].PackedK, list[0].LooseQ, list[0].LooseK = true, true, true, true
	}
	for i := range list {
		list[i].LSE, list[i].Seed = true, 11
	}
	return list
}

// Gradients alone have the bits that they have among the others, and with Accumulate they are added to what the outputs
// hold, once, also in calls of several launches.
func testOutputs(t *testing.T, b *cases.Backward, cfg attention.Config, compute func(a attention.BackwardArgs, reversed bool) error) {
	call := func() attention.BackwardArgs {
		a, _, err := callOf(b, cfg, b.Image)
		require.NoError(t, err)
		return a
	}
	outputs := func(a *attention.BackwardArgs) []*attention.Tensor { return []*attention.Tensor{&a.DQ, &a.DK, &a.DV} }
	all, added := call(), call()
	require.NoError(t, compute(all, false))
	for only := range 3 {
		for _, alone := range []bool{true, false} { // without the others, or without it
			a := call()
			for i, x := range outputs(&a) {
				if alone != (i == only) {
					*x = attention.Tensor{}
				}
			}
			require.NoError(t, compute(a, true))
			for i, x := range outputs(&a) {
				if x.Given() {
					require.True(t, bytes.Equal(outputs(&all)[i].Host, x.Host), "output %d, output %d alone %v", i, only, alone)
				}
			}
		}
	}
	// What the outputs hold: numbers of the size of the gradients, other than 0.
	held := make([][]float32, 3)
	for i, x := range outputs(&added) {
		held[i] = make([]float32, len(x.Host)/2)
		for j := range held[i] {
			held[i][j] = float32(j%5)/4 + 0.25
		}
		cfg.DType.Encode(x.Host, held[i])
	}
	added.Accumulate = true
	require.NoError(t, compute(added, false))
	for i, x := range outputs(&all) {
		gradient, after := make([]float32, len(held[i])), make([]float32, len(held[i]))
		cfg.DType.Decode(gradient, x.Host)
		cfg.DType.Decode(after, outputs(&added)[i].Host)
		changed := 0
		for j, g := range gradient {
			if g != g || g == 0 { // outside of the tensor, or a row that takes part in nothing
				require.Equal(t, held[i][j], after[j], "output %d, element %d", i, j)
				continue
			}
			sum := held[i][j] + g
			require.InDelta(t, sum, after[j], 0.01*float64(max(sum, -sum, 1)), "output %d, element %d", i, j)
			changed++
		}
		require.NotZero(t, changed)
	}
}

// Packed sequences that are longer than the call says the longest is have the gradients of the shorter ones, and zeros
// behind them.
func testLongest(t *testing.T, dtype attention.DType, d, dv int, e *tmaEmulator) {
	const longest = 70
	c := cases.Case{Name: "longest", D: d, Dv: dv, Shape: attention.Shape{Hq: 1, Hkv: 1}, PackedQ: true, PackedK: true, LooseQ: true, LooseK: true, LSE: true, Seed: 12,
		Seqs: []cases.Seq{{ID: 1, Rows: 200, Keys: 210}, {ID: 2, Rows: 9, Keys: 140}, {ID: 3, Rows: 129, Keys: 30}}}
	b, err := cases.NewBackward(c, dtype)
	require.NoError(t, err)
	cfg := b.Config(cases.On(attention.TierCPU, dtype))
	k := fa3KernelOf(t, b, attention.Config(cfg), true)
	call := func(change func(a *attention.BackwardArgs)) attention.BackwardArgs {
		a, _, err := callOf(b, attention.Config(cfg), b.Image)
		require.NoError(t, err)
		change(&a)
		require.NoError(t, emulateFA3(e, k, attention.Config(cfg), a, false))
		return a
	}
	said := call(func(a *attention.BackwardArgs) { a.Sq, a.Sk = longest, longest })
	used := call(func(a *attention.BackwardArgs) {
		for _, v := range []*attention.Vector{&a.Varlen.UsedQ, &a.Varlen.UsedK} {
			for i := range c.Seqs {
				length := v.Host[4*(int(v.Offset)+i):]
				binary.LittleEndian.PutUint32(length, min(binary.LittleEndian.Uint32(length), longest))
			}
		}
	})
	require.Equal(t, used.DQ.Host, said.DQ.Host)
	require.Equal(t, used.DK.Host, said.DK.Host)
	require.Equal(t, used.DV.Host, said.DV.Host)
}
