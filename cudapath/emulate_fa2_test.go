package cudapath

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/cases"
	"vkattn/internal/testlevel"
)

// warpEmulator runs the backward kernels of family fa2 on the CPU, those of a module:
// testdata/emulate/warp stands in for the instructions of a warp.
type warpEmulator struct {
	lib uintptr
	run func(entry uintptr, p *backwardParams, grid *uint32, threads, reversed int32) string
}

// newWarpEmulator compiles a module of fa2_backward.cu once for a test.
func newWarpEmulator(t testing.TB, dtype string, d, dv int) *warpEmulator {
	t.Helper()
	compiler, err := exec.LookPath("c++")
	if err != nil {
		t.Skipf("no compiler for the kernels: %v", err)
	}
	dir := emulationSources(t, "fa2_backward.cu", "warp")
	element := map[string]string{"f16": "Half", "bf16": "Bfloat"}[dtype]
	file := filepath.Join(dir, "kernels.so")
	text, err := exec.Command(compiler, "-std=c++17", "-O1", "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-shared", "-fPIC", "-I"+dir,
		"-DFA2_ELEMENT="+element, "-DFA2_NAME=attn", fmt.Sprintf("-DFA2_D=%d", d), fmt.Sprintf("-DFA2_DV=%d", dv),
		`-DSOURCE="fa2_backward.cu"`, "-o", file, filepath.Join(dir, "emulate.cc")).CombinedOutput()
	require.NoError(t, err, "%s", text)
	e := &warpEmulator{}
	e.lib, err = purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	purego.RegisterLibFunc(&e.run, e.lib, "emulate")
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
	space := hostWorkspace(fa2Workspace(&a.Shape, int(p.totalQ), kernels[0]))
	p.stats = hostAddress(space, 0, 1)
	for _, k := range kernels {
		grid, err := k.grid(k.tiles(&a.Shape, a.B))
		if err != nil {
			return err
		}
		if err := e.launch("attn"+strings.TrimPrefix(k.Entry, "attn_"+k.Module), &p, grid, k.Threads, reversed); err != nil {
			return err
		}
	}
	runtime.KeepAlive(space)
	runtime.KeepAlive(a)
	return nil
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
					kernels, err := fa2Of(table, b, cfg)
					require.NoError(t, err)
					e := emulators[kernels[0].Module]
					if e == nil {
						e = newWarpEmulator(t, dtype.String(), kernels[0].D, kernels[0].DV)
						emulators[kernels[0].Module] = e
					}
					require.NoError(t, conformEmulated(b, cfg, func(a attention.BackwardArgs, reversed bool) error { return emulateFA2(e, kernels, cfg, a, reversed) }))
				})
			}
			t.Logf("%d cases", n)
		})
	}
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
	p := &attention.CUDABackwardProblem{
		CUDAProblem: attention.CUDAProblem{Shape: b.Shape, DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.ValueDim()}, Softcap: cfg.Softcap != 0,
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
