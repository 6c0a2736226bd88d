package cudapath

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The parameter structures in Go equal the ones in kernels/attn.h, member by member.
func TestParametersAreThoseOfTheKernels(t *testing.T) {
	var v invocation
	members := []struct {
		name   string
		offset uintptr
	}{
		{"q", unsafe.Offsetof(v.call.params.q)}, {"k", unsafe.Offsetof(v.call.params.k)}, {"v", unsafe.Offsetof(v.call.params.v)}, {"o", unsafe.Offsetof(v.call.params.o)},
		{"q.batch", unsafe.Offsetof(v.call.params.q) + unsafe.Offsetof(v.call.params.q.batch)}, {"q.head", unsafe.Offsetof(v.call.params.q) + unsafe.Offsetof(v.call.params.q.head)},
		{"q.row", unsafe.Offsetof(v.call.params.q) + unsafe.Offsetof(v.call.params.q.row)},
		{"lse", unsafe.Offsetof(v.call.params.lse)}, {"B", unsafe.Offsetof(v.call.params.b)}, {"Hq", unsafe.Offsetof(v.call.params.hq)}, {"Hkv", unsafe.Offsetof(v.call.params.hkv)},
		{"Sq", unsafe.Offsetof(v.call.params.sq)}, {"Sk", unsafe.Offsetof(v.call.params.sk)}, {"D", unsafe.Offsetof(v.call.params.d)}, {"Dv", unsafe.Offsetof(v.call.params.dv)},
		{"causal_offset", unsafe.Offsetof(v.call.params.causalOffset)}, {"scale", unsafe.Offsetof(v.call.params.scale)},
		{"scale_log2", unsafe.Offsetof(v.call.params.scaleLog2)}, {"unit_high", unsafe.Offsetof(v.call.params.unitHigh)}, {"unit_low", unsafe.Offsetof(v.call.params.unitLow)},
	}
	var c strings.Builder
	header, err := filepath.Abs("kernels/attn.h")
	require.NoError(t, err)
	// C++: the header is the kernels'. Its checks are C++'s own.
	fmt.Fprintf(&c, "#include <stddef.h>\n#include %q\n", header)
	fmt.Fprintf(&c, "static_assert(sizeof(AttnParams) == %d && sizeof(AttnTensor) == %d, \"size\");\n", unsafe.Sizeof(v.call.params), unsafe.Sizeof(v.call.params.q))
	for _, m := range members {
		fmt.Fprintf(&c, "static_assert(offsetof(AttnParams, %s) == %d, \"%s\");\n", m.name, m.offset, m.name)
	}
	compile(t, "c++", "parameters.cc", c.String())
}

// The backward parameters in Go equal the ones in kernels/attn_backward.h.
func TestBackwardParametersAreThoseOfTheKernels(t *testing.T) {
	var p backwardParams
	header, err := filepath.Abs("kernels/attn_backward.h")
	require.NoError(t, err)
	var c strings.Builder
	fmt.Fprintf(&c, "#include <stddef.h>\n#include %q\n", header)
	fmt.Fprintf(&c, "static_assert(sizeof(AttnBackwardParams) == %d, \"size\");\n", unsafe.Sizeof(p))
	for _, m := range []struct {
		name   string
		offset uintptr
	}{
		{"q", unsafe.Offsetof(p.q)}, {"k", unsafe.Offsetof(p.k)}, {"v", unsafe.Offsetof(p.v)}, {"o", unsafe.Offsetof(p.o)}, {"dO", unsafe.Offsetof(p.dO)},
		{"dQ", unsafe.Offsetof(p.dQ)}, {"dK", unsafe.Offsetof(p.dK)}, {"dV", unsafe.Offsetof(p.dV)}, {"q.batch", unsafe.Offsetof(p.q) + unsafe.Offsetof(p.q.batch)},
		{"q.head", unsafe.Offsetof(p.q) + unsafe.Offsetof(p.q.head)}, {"q.row", unsafe.Offsetof(p.q) + unsafe.Offsetof(p.q.row)},
		{"lse", unsafe.Offsetof(p.lse)}, {"dLSE", unsafe.Offsetof(p.dLSE)}, {"stats", unsafe.Offsetof(p.stats)}, {"cu_q", unsafe.Offsetof(p.cuQ)},
		{"cu_k", unsafe.Offsetof(p.cuK)}, {"used_q", unsafe.Offsetof(p.usedQ)}, {"used_k", unsafe.Offsetof(p.usedK)}, {"first", unsafe.Offsetof(p.first)},
		{"Hq", unsafe.Offsetof(p.hq)}, {"Hkv", unsafe.Offsetof(p.hkv)}, {"Sq", unsafe.Offsetof(p.sq)}, {"Sk", unsafe.Offsetof(p.sk)}, {"D", unsafe.Offsetof(p.d)},
		{"Dv", unsafe.Offsetof(p.dv)}, {"total_q", unsafe.Offsetof(p.totalQ)}, {"total_k", unsafe.Offsetof(p.totalK)}, {"bottom_right", unsafe.Offsetof(p.bottomRight)},
		{"left", unsafe.Offsetof(p.left)}, {"right", unsafe.Offsetof(p.right)}, {"accumulate", unsafe.Offsetof(p.accumulate)}, {"scale", unsafe.Offsetof(p.scale)},
		{"softcap", unsafe.Offsetof(p.softcap)}, {"B", unsafe.Offsetof(p.b)},
	} {
		fmt.Fprintf(&c, "static_assert(offsetof(AttnBackwardParams, %s) == %d, \"%s\");\n", m.name, m.offset, m.name)
	}
	compile(t, "c++", "backward.cc", c.String())
}

// compile has a compiler look at a source; it skips where there is none.
func compile(t *testing.T, compiler, name, source string) {
	t.Helper()
	path, err := exec.LookPath(compiler)
	if err != nil {
		t.Skipf("no compiler: %v", err)
	}
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(source), 0o644))
	out, err := exec.Command(path, "-fsyntax-only", "-Wno-invalid-offsetof", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// The driver's structures have the sizes and offsets that cuda.h gives them.
func TestDriverStructures(t *testing.T) {
	header, err := filepath.Abs("driver.h")
	require.NoError(t, err)
	var c strings.Builder
	fmt.Fprintf(&c, "#include %q\n", header)
	for name, bytes := range map[string]int{
		"CUDA_EXTERNAL_MEMORY_HANDLE_DESC": 104, "CUDA_EXTERNAL_MEMORY_BUFFER_DESC": 88, "CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC": 96,
		"CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS": 144, "CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS": 144, "CUmemAllocationProp": 32,
		"CUmemAccessDesc": 12, "CUtensorMap": 128, "CUuuid": 16, "CUlaunchAttribute": 72, "CUlaunchConfig": 56,
	} {
		fmt.Fprintf(&c, "_Static_assert(sizeof(%s) == %d, \"%s\");\n", name, bytes, name)
	}
	for _, m := range []string{
		"CUDA_EXTERNAL_MEMORY_HANDLE_DESC, handle) == 8", "CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size) == 24", "CUDA_EXTERNAL_MEMORY_HANDLE_DESC, flags) == 32",
		"CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC, flags) == 24", "CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, flags) == 72",
		"CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, flags) == 72", "CUmemAllocationProp, location) == 8", "CUmemAllocationProp, flags) == 24",
		"CUlaunchAttribute, value) == 8", "CUlaunchConfig, block) == 12", "CUlaunchConfig, shared) == 24", "CUlaunchConfig, stream) == 32",
		"CUlaunchConfig, attributes) == 40", "CUlaunchConfig, count) == 48",
	} {
		fmt.Fprintf(&c, "_Static_assert(offsetof(%s, \"\");\n", m)
	}
	compile(t, "cc", "driver.c", c.String())
}
