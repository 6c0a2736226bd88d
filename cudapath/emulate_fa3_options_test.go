//go:build !windows

package cudapath

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
)

// emulatedMap is Mapped of testdata/emulate/sm90/emulate.cc.
type emulatedMap struct {
	base                                       uint64
	batch, head, row, dim, rows, heads, packed int64
}

// tmaEmulator runs the backward kernels of family fa3 of a module on the CPU.
type tmaEmulator struct {
	run func(p *backwardParams, maps *emulatedMap, steps, reversed int32) string
}

// emulatedDS are the bytes of dS of a launch: so few that calls take several.
const emulatedDS = 100_000

// newTMAEmulator loads the kernels that take options, or those that do not.
func newTMAEmulator(t testing.TB, dtype attention.DType, dim, valueDim int, options bool) *tmaEmulator {
	t.Helper()
	e, number := &tmaEmulator{}, map[bool]int{true: 1}
	lib := emulation{kernel: "fa3_backward.cu", folder: "sm90"}.load(t, "-DEMULATE_LIBRARY", fmt.Sprintf("-DATTN_OPTIONS=%d", number[options]),
		fmt.Sprintf("-DFA3_BACKWARD_DS=%d", emulatedDS), fmt.Sprintf("-DATTN_D=%d", dim), fmt.Sprintf("-DATTN_DV=%d", valueDim),
		fmt.Sprintf("-DATTN_BF16=%d", number[dtype == attention.BF16]))
	purego.RegisterLibFunc(&e.run, lib, "emulate")
	return e
}

// fa3KernelOf is the main kernel of a problem, with options or without.
func fa3KernelOf(t testing.TB, b *cases.Backward, cfg attention.Config, options bool) *Kernel {
	t.Helper()
	table, err := embedded()
	require.NoError(t, err)
	k, _ := table.backwardKernel(group{family: "fa3"}, "", "dQ dK dV", &problem.CUDABackwardProblem{
		CUDAProblem: problem.CUDAProblem{Shape: b.Shape, DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.ValueDim(), Causal: cfg.Causal != attention.CausalNone}, Lengths: options, Softcap: cfg.Softcap != 0})
	require.NotNil(t, k)
	return k
}

// emulateFA3 computes the gradients of a call in host memory by the kernels of fa3, in the launches in which Launch makes
// it. A write past the end of the workspace fails.
func emulateFA3(e *tmaEmulator, k *Kernel, cfg attention.Config, a attention.BackwardArgs, reversed bool) error {
	v := &backwardInvocation{params: hostParams(cfg, a)}
	p := &v.params
	if k.DSBytes > 0 {
		few := *k
		few.DSBytes = emulatedDS
		k = &few
	}
	var check func() error
	p.stats, check = guardedWorkspace(fa3Workspace(&a.Shape, int(p.totalQ), k, a.DQ.Given()))
	var maps [4]emulatedMap
	tensors := v.mapped(&a.Shape)
	for i, x := range []*mappedTensor{&tensors[0], &tensors[1], &tensors[2], &tensors[4]} {
		maps[i] = emulatedMap{base: x.base, batch: x.batch, head: x.head, row: x.row, dim: int64(x.dim), rows: int64(x.rows), heads: int64(x.heads)}
		if x.packed {
			maps[i].packed = 1
		}
	}
	order := int32(0)
	if reversed {
		order = 1
	}
	emulators.Lock()
	defer emulators.Unlock()
	run := func(first, steps int32) error {
		p.first = first
		if failure := e.run(p, &maps[0], steps, order); failure != "" {
			return errors.New(failure)
		}
		return nil
	}
	if err := run(0, 1); err != nil {
		return err
	}
	steps := int32(2)
	if a.DQ.Given() {
		steps |= 4
	}
	u := units{call: 1, launch: 1}
	if k.DSBytes > 0 {
		u = unitsOf(&a.Shape, k, a.DQ.Given())
	}
	if err := u.each(func(first int32) error { return run(first, steps) }); err != nil {
		return err
	}
	runtime.KeepAlive(a)
	return check()
}

// fa3OptionCases are problems in which the order of the additions to dQ depends on lengths and
// windows: lengths of 0, lengths that fill no tile, windows that leave tiles out.
func fa3OptionCases() []cases.Case {
	window := func(left, right int) attention.Window { return attention.WindowOf(left, right) }
	group := attention.Shape{Hq: 4, Hkv: 2}
	one := attention.Shape{Hq: 1, Hkv: 1}
	var list []cases.Case
	for i, c := range []cases.Case{
		{Name: "packed", D: 64, Dv: 64, Shape: one, PackedQ: true, PackedK: true, Causal: attention.BottomRight,
			Seqs: []cases.Seq{{Rows: 130, Keys: 200}, {}, {Rows: 70}, {Keys: 300}, {Rows: 1, Keys: 129}, {Rows: 257, Keys: 3}}},
		{Name: "packed with gaps", D: 128, Dv: 128, Shape: group, PackedQ: true, PackedK: true, LooseQ: true, LooseK: true, Causal: attention.TopLeft,
			Seqs: []cases.Seq{{Rows: 65, Keys: 63}, {Keys: 10}, {Rows: 140, Keys: 150}, {Rows: 3, Keys: 260}}},
		{Name: "rows packed, keys padded", D: 64, Dv: 64, Shape: group, PackedQ: true, LooseK: true, Causal: attention.BottomRight,
			Seqs: []cases.Seq{{Rows: 30, Keys: 140}, {Rows: 129, Keys: 129}}},
		{Name: "narrow window", D: 64, Dv: 64, Shape: attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 700, Sk: 700}, Window: window(30, 10), Align: attention.TopLeft},
		{Name: "padded", D: 40, Dv: 56, Shape: one, LooseQ: true, LooseK: true, Seqs: []cases.Seq{{Rows: 150, Keys: 140}, {Rows: 20, Keys: 300}, {}, {Rows: 300, Keys: 30}}},
		{Name: "window on the left", D: 128, Dv: 128, Shape: attention.Shape{B: 1, Hq: 1, Sq: 300, Sk: 500}, Window: window(140, 0), Causal: attention.BottomRight},
		{Name: "window on the right", D: 128, Dv: 120, Shape: attention.Shape{B: 2, Hq: 1, Sq: 200, Sk: 450}, Window: window(-1, 20), Align: attention.BottomRight},
		{Name: "window that rows leave", D: 64, Dv: 64, Shape: attention.Shape{B: 1, Hq: 1, Sq: 600, Sk: 130}, Window: window(40, 40), Align: attention.TopLeft},
		{Name: "softcap", D: 128, Dv: 128, Shape: attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 190, Sk: 260}, Softcap: 2},
		{Name: "softcap, odd ends and gaps", D: 64, Dv: 64, Shape: group, LooseQ: true, LooseK: true, Softcap: 50, Causal: attention.TopLeft,
			Seqs: []cases.Seq{{Rows: 10, Keys: 106}, {Rows: 47, Keys: 63}, {Rows: 51, Keys: 79}}},
		// In bf16 the error of a block of dK is too large if dS takes rounded P.
		{Name: "few rows of a key", D: 64, Dv: 64, Shape: group, PackedQ: true, PackedK: true, Causal: attention.TopLeft, Seed: 17402206190162881507,
			Seqs: []cases.Seq{{ID: 0, Rows: 1, Keys: 235}, {ID: 1, Keys: 17}, {ID: 2, Rows: 33}, {ID: 3, Rows: 65, Keys: 65}, {ID: 4, Rows: 7, Keys: 129}, {ID: 5, Rows: 130, Keys: 64}}},
		{Name: "softcap and all", D: 64, Dv: 64, Shape: group, PackedQ: true, PackedK: true, Softcap: 3, Window: window(100, 50), Causal: attention.BottomRight,
			Seqs: []cases.Seq{{Rows: 300, Keys: 260}, {Rows: 0, Keys: 4}, {Rows: 129, Keys: 400}}},
		{Name: "negative scale", D: 128, Dv: 64, Shape: one, Scale: attention.ScaleOf(-0.1), Seqs: []cases.Seq{{Keys: 77}, {Rows: 63, Keys: 127}, {Rows: 84, Keys: 84}}},
	} {
		if c.Seed == 0 {
			c.Seed = uint64(100 + i)
			for j := range c.Seqs {
				c.Seqs[j].ID = 1 + j
			}
		}
		c.LSE = true
		list = append(list, c)
	}
	// The same problems at wide head dims, of which some fill no tile. Each fifth problem has the
	// same, as a share of the problems should not need all kernels.
	for i, c := range slices.Clone(list) {
		wide := [...][2]int{{176, 184}, {256, 256}, {192, 128}, {192, 192}, {136, 120}}[i%5]
		c.Name, c.D, c.Dv = "wide "+c.Name, wide[0], wide[1]
		list = append(list, c)
	}
	return list
}

// randomFA3Options is the n-th random problem with options, the same on every run: lengths of
// 0, of 1 and around the sizes of tiles, packed or padded, with or without gaps.
func randomFA3Options(n int) cases.Case {
	r := rand.New(rand.NewPCG(uint64(n), 0xfa3))
	chance := func(of int) bool { return r.IntN(of) == 0 }
	c := cases.Case{Name: fmt.Sprintf("random-%d", n), LSE: true, Seed: uint64(n)<<1 | 1<<41}
	dims := [...][2]int{{64, 64}, {128, 128}, {192, 128}, {192, 192}, {256, 256}}[r.IntN(5)]
	c.D, c.Dv = dims[0], dims[1]
	if chance(4) {
		c.D, c.Dv = c.D-8*r.IntN(7), c.Dv-8*r.IntN(7)
	}
	heads := [...][2]int{{1, 1}, {2, 1}, {4, 2}, {3, 3}}[r.IntN(4)]
	c.Hq, c.Hkv = heads[0], heads[1]
	c.Causal = [...]attention.Causal{attention.CausalNone, attention.TopLeft, attention.BottomRight}[r.IntN(3)]
	length := func() int { return [...]int{0, 1, r.IntN(20), 63 + r.IntN(3), 127 + r.IntN(3), r.IntN(300)}[r.IntN(6)] }
	for i := range 1 + r.IntN(4) {
		c.Seqs = append(c.Seqs, cases.Seq{ID: i, Rows: length(), Keys: length()})
	}
	c.PackedQ, c.PackedK, c.LooseQ, c.LooseK = chance(2), chance(2), chance(2), chance(2)
	if chance(2) {
		side := func() int { return [...]int{-1, 0, r.IntN(40), r.IntN(200)}[r.IntN(4)] }
		c.Window = attention.WindowOf(side(), side())
		if c.Causal == attention.CausalNone && c.Window.Given() {
			c.Align = [...]attention.Causal{attention.TopLeft, attention.BottomRight}[r.IntN(2)]
		}
	}
	if chance(3) {
		c.Softcap = [...]float32{0.7, 3, 50}[r.IntN(3)]
	}
	return c
}

// The kernels of fa3 that take options, run by the CPU, give the gradients of such problems
// and of the tables of cases by the rules of TestBackwardKernelsOnTheCPU. An addition to dQ
// out of turn fails.
func TestFA3OptionsOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	for which, dtype := range []attention.DType{attention.F16, attention.BF16} {
		t.Run(dtype.String(), func(t *testing.T) {
			emulators := map[[2]int]*tmaEmulator{}
			own := fa3OptionCases()
			for n := 0; testlevel.IsExhaustive() && n < 60; n++ {
				own = append(own, randomFA3Options(n))
			}
			list := append(own, append(cases.Brief(which), cases.DealOptions(cases.BriefOptions(), 3)[which]...)...)
			n := 0
			for i, c := range list {
				dense := len(c.Seqs) == 0 && !c.Window.Given() && c.Softcap == 0
				if dense || !computesBackward(&c) || !takenByFA3(&c, dtype) || i >= len(own) && emulatedTiles(&c) > 16 {
					continue
				}
				if n++; !testlevel.IsExhaustive() && n%5 != which {
					continue
				}
				t.Run(c.String(), func(t *testing.T) {
					b, err := cases.NewBackward(c, dtype)
					require.NoError(t, err)
					cfg := c.Config(cases.On(attention.TierCPU, dtype))
					k := fa3KernelOf(t, b, attention.Config(cfg), true)
					dims := [2]int{k.D, k.DV}
					if emulators[dims] == nil {
						emulators[dims] = newTMAEmulator(t, dtype, k.D, k.DV, true)
					}
					require.NoError(t, conformEmulated(b, attention.Config(cfg), func(a attention.BackwardArgs, reversed bool) error {
						return emulateFA3(emulators[dims], k, attention.Config(cfg), a, reversed)
					}))
				})
			}
			t.Logf("%d cases", n)
		})
	}
}

// A key with Inf in K, which tiles with masked slots replace by 0, gives NaN in dQ of every row
// that attends to it, in its own dK and dV, and changes no bit elsewhere.
func TestFA3OptionsKeepNaN(t *testing.T) {
	testlevel.HostOnly(t)
	for _, x := range []struct {
		dtype attention.DType
		dim   int
		brief bool
	}{{attention.BF16, 64, true}, {attention.F16, 64, false}, {attention.F16, 128, false}, {attention.F16, 192, false}, {attention.BF16, 256, true}} {
		if !x.brief && !testlevel.IsExhaustive() {
			continue
		}
		e := newTMAEmulator(t, x.dtype, x.dim, x.dim, true)
		for i := range 4 { // with and without a softcap; the first tile of the key has masked slots or none
			c := cases.Case{Name: "NaN", D: x.dim, Dv: x.dim, Window: attention.WindowOf(170, -1), LSE: true, Seed: 7}
			first := 0
			c.Align = attention.TopLeft
			if i%2 == 0 {
				c.Align, c.Causal, first = attention.CausalNone, attention.TopLeft, 70
			}
			if i/2 == 1 {
				c.Softcap = 3
			}
			t.Run(fmt.Sprintf("%v d%d %v softcap%v", x.dtype, x.dim, c.Causal, c.Softcap), func(t *testing.T) {
				const rows, keys, spoiled = 300, 280, 70
				c.Shape = attention.Shape{B: 1, Hq: 1, Hkv: 1, Sq: rows, Sk: keys}
				b, err := cases.NewBackward(c, x.dtype)
				require.NoError(t, err)
				cfg := b.Config(cases.On(attention.TierCPU, x.dtype))
				k := fa3KernelOf(t, b, attention.Config(cfg), true)
				run := func(spoil bool) attention.BackwardArgs {
					a, _, err := callOf(b, attention.Config(cfg), b.Image)
					require.NoError(t, err)
					if spoil {
						row := a.K.Strides.Resolve(1, keys, x.dim).Seq
						x.dtype.Encode(a.K.Host[2*(a.K.Offset+spoiled*row+3):][:2], []float32{float32(math.Inf(-1))})
					}
					require.NoError(t, emulateFA3(e, k, attention.Config(cfg), a, false))
					return a
				}
				clean, after := run(false), run(true)
				for i, n := range []int{rows, keys, keys} {
					before, now := []attention.Tensor{clean.DQ, clean.DK, clean.DV}[i], []attention.Tensor{after.DQ, after.DK, after.DV}[i]
					stride := now.Strides.Resolve(1, n, x.dim).Seq
					for r := range n {
						at := func(t attention.Tensor) []byte { return t.Host[2*(t.Offset+int64(r)*stride):][:2*x.dim] }
						if affected := i == 0 && r >= first && r <= spoiled+170 || i > 0 && r == spoiled; !affected {
							require.Equal(t, at(before), at(now), "output %d, row %d", i, r)
							continue
						}
						values := make([]float32, x.dim)
						x.dtype.Decode(values, at(now))
						for d, v := range values {
							require.True(t, v != v, "output %d, row %d, dim %d: %v", i, r, d, v)
						}
					}
				}
			})
		}
	}
}

// The stats kernel of fa3 normalizes blocks as that of fa2 does (TestFA2BackwardNormalizesBlocks).
func TestFA3BackwardNormalizesBlocks(t *testing.T) {
	testlevel.HostOnly(t)
	b, err := cases.NewBackward(cancelling, attention.F16)
	require.NoError(t, err)
	cfg := cancelling.Config(cases.On(attention.TierCPU, attention.F16))
	k := fa3KernelOf(t, b, attention.Config(cfg), true)
	e := newTMAEmulator(t, attention.F16, k.D, k.DV, true)
	require.NoError(t, conformEmulated(b, attention.Config(cfg), withOtherLSE(t)(func(a attention.BackwardArgs, reversed bool) error {
		return emulateFA3(e, k, attention.Config(cfg), a, reversed)
	})))
}
