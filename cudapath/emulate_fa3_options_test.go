package cudapath

import (
	"errors"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/cases"
	"vkattn/internal/testlevel"
)

// emulatedMap is Mapped of testdata/emulate/sm90/emulate.cc.
type emulatedMap struct {
	base                                       uint64
	batch, head, row, dim, rows, heads, packed int64
}

// tmaEmulator runs the backward kernels of family fa3 that take options on the CPU.
type tmaEmulator struct {
	run func(p *backwardParams, maps *emulatedMap, steps, reversed int32) string
}

func newTMAEmulator(t testing.TB, dtype attention.DType, dim int) *tmaEmulator {
	t.Helper()
	compiler, err := exec.LookPath("c++")
	if err != nil {
		t.Skipf("no compiler for the kernels: %v", err)
	}
	dir := emulationSources(t, "fa3_backward.cu", "sm90")
	file := filepath.Join(dir, "kernels.so")
	bf16 := map[attention.DType]string{attention.F16: "0", attention.BF16: "1"}[dtype]
	text, err := exec.Command(compiler, "-std=c++17", "-O2", "-w", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-shared", "-fPIC", "-I"+dir,
		"-DATTN_OPTIONS=1", "-DATTN_D="+strconv.Itoa(dim), "-DATTN_BF16="+bf16, "-o", file, filepath.Join(dir, "emulate.cc")).CombinedOutput()
	require.NoError(t, err, "%s", text)
	e := &tmaEmulator{}
	lib, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	purego.RegisterLibFunc(&e.run, lib, "emulate")
	return e
}

// emulateFA3 computes the gradients of a call in host memory by the kernels of fa3 that take
// options.
func emulateFA3(e *tmaEmulator, k *Kernel, cfg attention.Config, a attention.BackwardArgs, reversed bool) error {
	v := &backwardInvocation{params: hostParams(cfg, a)}
	p := &v.params
	space := hostWorkspace(fa3Workspace(&a.Shape, int(p.totalQ), k) + 16)
	p.stats = hostAddress(space, 0, 1)
	p.stats += -p.stats % 16
	var maps [4]emulatedMap
	tensors := v.mapped(&a.Shape)
	for i, x := range []*mappedTensor{&tensors[0], &tensors[1], &tensors[2], &tensors[4]} {
		maps[i] = emulatedMap{base: x.base, batch: x.batch, head: x.head, row: x.row, dim: int64(x.dim), rows: int64(x.rows), heads: int64(x.heads)}
		if x.packed {
			maps[i].packed = 1
		}
	}
	steps, order := int32(3), int32(0)
	if a.DQ.Given() {
		steps |= 4
	}
	if reversed {
		order = 1
	}
	emulators.Lock()
	defer emulators.Unlock()
	if failure := e.run(p, &maps[0], steps, order); failure != "" {
		return errors.New(failure)
	}
	runtime.KeepAlive(space)
	runtime.KeepAlive(a)
	return nil
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
		{Name: "negative scale", D: 128, Dv: 64, Shape: one, Scale: attention.ScaleOf(-0.1), Seqs: []cases.Seq{{Keys: 77}, {Rows: 63, Keys: 127}, {Rows: 84, Keys: 84}}},
		{Name: "softcap and all", D: 64, Dv: 64, Shape: group, PackedQ: true, PackedK: true, Softcap: 3, Window: window(100, 50), Causal: attention.BottomRight,
			Seqs: []cases.Seq{{Rows: 300, Keys: 260}, {Rows: 0, Keys: 4}, {Rows: 129, Keys: 400}}},
	} {
		for j := range c.Seqs {
			c.Seqs[j].ID = 1 + j
		}
		c.LSE = true
		c.Seed = uint64(100 + i)
		list = append(list, c)
	}
	return list
}

// The kernels of fa3 that take options, run by the CPU, give the gradients of such problems
// and of the tables of cases by the rules of TestBackwardKernelsOnTheCPU. An addition to dQ
// out of turn fails.
func TestFA3OptionsOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	for which, dtype := range []attention.DType{attention.F16, attention.BF16} {
		t.Run(dtype.String(), func(t *testing.T) {
			emulators := map[int]*tmaEmulator{}
			own := fa3OptionCases()
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
					k, _ := table.backwardKernel(group{family: "fa3"}, "", "dQ dK dV", &attention.CUDABackwardProblem{
						CUDAProblem: attention.CUDAProblem{Shape: b.Shape, DType: dtype, HeadDim: cfg.HeadDim, HeadDimV: cfg.ValueDim()}, Lengths: true})
					require.NotNil(t, k)
					if emulators[k.D] == nil {
						emulators[k.D] = newTMAEmulator(t, dtype, k.D)
					}
					require.NoError(t, conformEmulated(b, cfg, func(a attention.BackwardArgs, reversed bool) error {
						return emulateFA3(emulators[k.D], k, cfg, a, reversed)
					}))
				})
			}
			t.Logf("%d cases", n)
		})
	}
}
