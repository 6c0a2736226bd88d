//go:build !windows

package cudapath

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
)

// warpEmulator runs the backward kernels of family fa2 on the CPU, those of a module:
// testdata/emulate/warp stands in for the instructions of a warp.
type warpEmulator struct {
	lib uintptr
	run func(entry uintptr, p *backwardParams, grid *uint32, threads, reversed int32) string

	planDiffers func(p *backwardParams, ticket uint32, seed uint64) int32
}

// newWarpEmulator loads a module of fa2_backward.cu.
func newWarpEmulator(t testing.TB, dtype string, d, dv int) *warpEmulator {
	t.Helper()
	e := &warpEmulator{lib: emulation{kernel: "fa2_backward.cu", folder: "warp"}.load(t,
		"-DFA2_ELEMENT="+map[string]string{"f16": "Half", "bf16": "Bfloat"}[dtype], "-DFA2_NAME=attn", fmt.Sprintf("-DFA2_D=%d", d), fmt.Sprintf("-DFA2_DV=%d", dv),
		fmt.Sprintf("-DSTORES_MATRICES=%t", dtype == "f16"), "-DPLANS")} // both forms of the stores of P and dS
	purego.RegisterLibFunc(&e.run, e.lib, "emulate")
	purego.RegisterLibFunc(&e.planDiffers, e.lib, "planDiffers")
	return e
}

func (e *warpEmulator) launch(entry string, p *backwardParams, grid [3]uint64, threads int, reversed bool) error {
	function, err := purego.Dlsym(e.lib, entry)
	if err != nil {
		return err
	}
	order := int32(0)
	if reversed {
		order = 1
	}
	g := [3]uint32{uint32(grid[0]), uint32(grid[1]), uint32(grid[2])}
	emulators.Lock()
	defer emulators.Unlock()
	if failure := e.run(function, p, &g[0], int32(threads), order); failure != "" {
		return errors.New(entry + ": " + failure)
	}
	return nil
}

// emulateFA2 computes the gradients of a call in host memory by kernels of fa2.
func emulateFA2(e *warpEmulator, kernels []*Kernel, cfg attention.Config, a attention.BackwardArgs, reversed bool) error {
	p := hostParams(cfg, a)
	var check func() error
	p.stats, check = guardedWorkspace(fa2Workspace(&a.Shape, int(p.totalQ), kernels[0]))
	for _, k := range kernels {
		grid, err := k.grid(k.tiles(&a.Shape, a.B))
		if err != nil {
			return err
		}
		if err := e.launch("attn"+strings.TrimPrefix(k.Entry, "attn_"+k.Module), &p, grid, k.Threads, reversed); err != nil {
			return err
		}
	}
	runtime.KeepAlive(a)
	return check()
}

// The kernels of fa2, run by the CPU, give the gradients of the tables of cases by the rules
// of TestBackwardKernelsOnTheCPU.
func TestFA2BackwardOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	for which, dtype := range []attention.DType{attention.F16, attention.BF16} {
		t.Run(dtype.String(), func(t *testing.T) {
			emulators := map[string]*warpEmulator{}
			n := 0
			for _, c := range append(cases.Brief(which), cases.DealOptions(cases.BriefOptions(), 3)[which]...) {
				if !computesBackward(&c) || emulatedTiles(&c) > 16 {
					continue
				}
				if n++; !testlevel.IsExhaustive() && n%16 != which {
					continue
				}
				t.Run(c.String(), func(t *testing.T) {
					b, err := cases.NewBackward(c, dtype)
					require.NoError(t, err)
					cfg := c.Config(cases.On(attention.TierCPU, dtype))
					kernels, err := fa2Of(table, b, attention.Config(cfg))
					require.NoError(t, err)
					e := emulators[kernels[0].Module]
					if e == nil {
						e = newWarpEmulator(t, dtype.String(), kernels[0].D, kernels[0].DV)
						emulators[kernels[0].Module] = e
					}
					require.NoError(t, conformEmulated(b, attention.Config(cfg), func(a attention.BackwardArgs, reversed bool) error {
						return emulateFA2(e, kernels, attention.Config(cfg), a, reversed)
					}))
				})
			}
			t.Logf("%d cases", n)
		})
	}
}

// The outputs of fa2 alone, and with Accumulate, by the rules of TestFA3CallsOnTheCPU.
func TestFA2OutputsOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	for _, x := range []struct {
		dtype attention.DType
		d, dv int
		brief bool
	}{{attention.F16, 64, 64, true}, {attention.BF16, 192, 128, false}, {attention.BF16, 59, 43, false}} {
		if !x.brief && !testlevel.IsExhaustive() {
			continue
		}
		t.Run(fmt.Sprintf("%v d%dv%d", x.dtype, x.d, x.dv), func(t *testing.T) {
			var e *warpEmulator
			for _, c := range append(outputCases(x.d, x.dv, false), outputCases(x.d, x.dv, true)[0]) {
				b, err := cases.NewBackward(c, x.dtype)
				require.NoError(t, err)
				cfg := c.Config(cases.On(attention.TierCPU, x.dtype))
				kernels, err := fa2Of(table, b, attention.Config(cfg))
				require.NoError(t, err)
				if e == nil {
					e = newWarpEmulator(t, x.dtype.String(), kernels[0].D, kernels[0].DV)
				}
				testOutputs(t, b, attention.Config(cfg), func(a attention.BackwardArgs, reversed bool) error {
					return emulateFA2(e, kernels, attention.Config(cfg), a, reversed)
				})
			}
		})
	}
}

// Rows of the tables that fa2 once computed wrongly on a GPU, or with too large an error, have gradients by the rules of
// TestBackwardKernelsOnTheCPU.
func TestFA2BackwardOfKnownCases(t *testing.T) {
	testlevel.HostOnly(t)
	named := map[string]cases.Case{}
	for _, c := range append(cases.All(), cases.AllOptions()...) {
		c.LSE = true // as calls for gradients have it
		named[c.String()] = c
	}
	d1 := cases.Case{D: 1, Dv: 1, Shape: attention.Shape{B: 1, Hq: 4, Hkv: 1, Sq: 511, Sk: 255}, Data: cases.Falling, LSE: true, Seed: 1}
	named[d1.String()] = d1
	random127 := cases.RandomOptions(127)
	random127.LSE, random127.Mods = true, 0
	named[random127.String()] = random127
	for _, row := range []struct {
		dtype attention.DType
		name  string
	}{
		// Keys past the end of a sequence get dK = 0, not -0.
		{attention.F16, "random-127.d128v64.H10k2.none.align-bottom-right.0x77+63x127+84x84.scale-0.1.lse"},
		// Blocks of dK and dQ with few slots exceed their limit if dS is of P rounded to bfloat16,
		// or at any alignment if dS is rounded at all.
		{attention.BF16, "varlen.d64.H4k2.top-left.1x235+0x17+33x0+65x65+7x129+130x64.packedq.packedk.bshd.lse"},
		{attention.BF16, "d40.bottom-right.B2.H32k8.64x1.odd.falling.lse.addresses"},
		{attention.BF16, "d8.bottom-right.B2.H32k8.512x129.odd.large.scale-0.31.lse.descriptors"},
		{attention.BF16, "d1.none.B1.H4k1.511x255.tight.falling.lse"}, // as d1.none.B3.H32k8.1023x1023.padded.falling of the table
		{attention.BF16, "crowd.d64.H4k2.none.144seqs.packedq.packedk.looseq.loosek.packed.lse"},
	} {
		t.Run(row.dtype.String()+" "+row.name, func(t *testing.T) {
			c, ok := named[row.name]
			require.True(t, ok, "not in the tables")
			if emulatedTiles(&c) > 64 && !testlevel.IsExhaustive() {
				t.Skip("in make test-full")
			}
			conformFA2(t, c, row.dtype, func(compute func(attention.BackwardArgs, bool) error) func(attention.BackwardArgs, bool) error {
				return compute
			})
		})
	}
}

// conformFA2 judges the gradients that fa2 computes of a case. with may change the call.
func conformFA2(t *testing.T, c cases.Case, dtype attention.DType, with func(func(attention.BackwardArgs, bool) error) func(attention.BackwardArgs, bool) error) {
	t.Helper()
	table, err := embedded()
	require.NoError(t, err)
	b, err := cases.NewBackward(c, dtype)
	require.NoError(t, err)
	cfg := c.Config(cases.On(attention.TierCPU, dtype))
	kernels, err := fa2Of(table, b, attention.Config(cfg))
	require.NoError(t, err)
	e := newWarpEmulator(t, dtype.String(), kernels[0].D, kernels[0].DV)
	require.NoError(t, conformEmulated(b, attention.Config(cfg), with(func(a attention.BackwardArgs, reversed bool) error {
		return emulateFA2(e, kernels, attention.Config(cfg), a, reversed)
	})))
}

// cancelling is a call in which terms of up to a thousand add up to a small score in the second row, whose LSE is small, but
// not in the first.
var cancelling = cases.Case{D: 128, Dv: 128, Causal: attention.TopLeft, Shape: attention.Shape{B: 1, Hq: 1, Sq: 2, Sk: 2}, Scale: attention.ScaleOf(0.7), Data: cases.Large, LSE: true, Seed: 6}

// withOtherLSE computes from an LSE that is off by as much as the order of additions matters to such scores.
func withOtherLSE(t *testing.T) func(compute func(attention.BackwardArgs, bool) error) func(attention.BackwardArgs, bool) error {
	return func(compute func(attention.BackwardArgs, bool) error) func(attention.BackwardArgs, bool) error {
		return func(a attention.BackwardArgs, reversed bool) error {
			held, lse := bytes.Clone(a.LSE.Host), floatsOf(a.LSE.Host)[a.LSE.Offset:][:2]
			defer copy(a.LSE.Host, held)
			require.Greater(t, math.Abs(float64(lse[0])), 256.0)
			require.Less(t, math.Abs(float64(lse[1])), 256.0)
			lse[0], lse[1] = lse[0]-0x1p-10, lse[1]-0x1p-10
			return compute(a, reversed)
		}
	}
}

// P of all rows of a block adds up to 1 if any of them has a large LSE: where terms cancel, the score of a row is small but no
// more exact than those of its neighbors.
func TestFA2BackwardNormalizesBlocks(t *testing.T) {
	testlevel.HostOnly(t)
	conformFA2(t, cancelling, attention.F16, withOtherLSE(t))
}

// fa2Of are the kernels of fa2 for a case.
func fa2Of(t *table, b *cases.Backward, cfg attention.Config) ([]*Kernel, error) {
	align := uint32(alignment)
	switch b.Layout {
	case cases.Odd:
		align = 1
	case cases.Even:
		align = 2
	}
	if cfg.HeadDim%alignment != 0 || cfg.ValueDim()%alignment != 0 {
		align = 1
	}
	p := &problem.CUDABackwardProblem{
		CUDAProblem: problem.CUDAProblem{Shape: b.Shape, DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.ValueDim()}, Softcap: cfg.Softcap != 0,
	}
	var list []*Kernel
	for _, outputs := range []string{"stats", "dQ dK dV"} {
		k, _ := t.backwardKernel(group{"fa2", align < alignment}, "", outputs, p)
		if k == nil {
			return nil, fmt.Errorf("no kernel for %v/%v", cfg.HeadDim, cfg.ValueDim())
		}
		list = append(list, k)
	}
	return list, nil
}

// The score of a masked slot is NaN if the row has a NaN. Softcap multiplies P by a derivative, which is then NaN too. The slot
// still takes no part: the keys that the row does not attend to, and the other rows, keep their gradients.
func TestFA2BackwardOfNaNBehindSoftcap(t *testing.T) {
	testlevel.HostOnly(t)
	const rows, odd = 8, 2
	c := cases.Case{D: 64, Dv: 64, Causal: attention.TopLeft, Shape: attention.Shape{B: 1, Hq: 1, Sq: rows, Sk: rows}, Softcap: 5, LSE: true, Seed: 3}
	b, err := cases.NewBackward(c, attention.F16)
	require.NoError(t, err)
	cfg := c.Config(cases.On(attention.TierCPU, attention.F16))
	table, err := embedded()
	require.NoError(t, err)
	kernels, err := fa2Of(table, b, attention.Config(cfg))
	require.NoError(t, err)
	e := newWarpEmulator(t, "f16", kernels[0].D, kernels[0].DV)
	at := func(x *attention.Tensor, row int) []byte {
		return x.Host[2*(x.Offset+int64(row)*x.Strides.Resolve(1, rows, c.D).Seq):][:2*c.D]
	}
	calls := [2]attention.BackwardArgs{}
	for i := range calls {
		a, _, err := callOf(b, attention.Config(cfg), b.Image)
		require.NoError(t, err)
		if i == 1 {
			copy(at(&a.Q, odd)[6:], []byte{0, 0x7e})
		}
		require.NoError(t, emulateFA2(e, kernels, attention.Config(cfg), a, false))
		calls[i] = a
	}
	for i := range rows {
		if i > odd {
			require.Equal(t, at(&calls[0].DK, i), at(&calls[1].DK, i), "dK of key %d", i)
			require.Equal(t, at(&calls[0].DV, i), at(&calls[1].DV, i), "dV of key %d", i)
		}
		if i != odd {
			require.Equal(t, at(&calls[0].DQ, i), at(&calls[1].DQ, i), "dQ of row %d", i)
		}
	}
	require.NotEqual(t, at(&calls[0].DK, odd), at(&calls[1].DK, odd))
}

// The plan of a unit of fa2 has limits for its steps in 32 bits. For every block of rows they say what the lengths, the mask and
// the window say, whatever the lengths.
func TestFA2PlanFollowsTheLengths(t *testing.T) {
	testlevel.HostOnly(t)
	e := newWarpEmulator(t, "f16", 128, 128)
	check := func(t *rapid.T) {
		length := func(name string) int32 {
			if rapid.Bool().Draw(t, name+" is large") {
				return rapid.Int32Range(1, 2_000_000_000).Draw(t, name)
			}
			return rapid.Int32Range(1, 2000).Draw(t, name)
		}
		limit := func(name string) int32 {
			ofBlocks := rapid.Map(rapid.Int32Range(1, 20), func(n int32) int32 { return 64*n - 1 })
			return rapid.OneOf(rapid.Just[int32](math.MaxInt32), rapid.Just[int32](0), rapid.Int32Range(0, 700), ofBlocks, rapid.Int32Range(0, math.MaxInt32)).Draw(t, name)
		}
		p := backwardParams{hq: 2, hkv: 1, b: 1, d: 128, dv: 128, scale: 1, sq: length("Sq"), sk: length("Sk"), left: limit("left"), right: limit("right"),
			bottomRight: rapid.Int32Range(0, 1).Draw(t, "bottom-right")}
		if rapid.Bool().Draw(t, "dQ") {
			p.dQ.base = 1 << 20 // not read
		}
		const keys = 128
		blocks := uint32((int64(p.sk) + keys - 1) / keys)
		last := rapid.Bool().Draw(t, "near the last")
		ticket := rapid.Uint32Range(0, min(blocks-1, 40)).Draw(t, "ticket")
		if last {
			ticket = blocks - 1 - ticket
		} else if rapid.Bool().Draw(t, "anywhere") {
			ticket = rapid.Uint32Range(0, blocks-1).Draw(t, "unit")
		}
		require.Zero(t, e.planDiffers(&p, ticket, rapid.Uint64().Draw(t, "seed")), "1: later_blocks, 2: ends_at, 3: least and most")
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 50 { // one takes a microsecond
			check(t)
		}
	})
}
