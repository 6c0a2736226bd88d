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

// The parameter structures in Go equal the ones in kernels/attn.h, kernels/attn_general.h and kernels/attn_latent.h, member by member.
func TestParametersAreThoseOfTheKernels(t *testing.T) {
	var v invocation
	members := []struct {
		name   string
		offset uintptr
	}{
		{"q", unsafe.Offsetof(v.params.q)}, {"k", unsafe.Offsetof(v.params.k)}, {"v", unsafe.Offsetof(v.params.v)}, {"o", unsafe.Offsetof(v.params.o)},
		{"q.batch", unsafe.Offsetof(v.params.q) + unsafe.Offsetof(v.params.q.batch)}, {"q.head", unsafe.Offsetof(v.params.q) + unsafe.Offsetof(v.params.q.head)},
		{"q.row", unsafe.Offsetof(v.params.q) + unsafe.Offsetof(v.params.q.row)},
		{"lse", unsafe.Offsetof(v.params.lse)}, {"B", unsafe.Offsetof(v.params.b)}, {"Hq", unsafe.Offsetof(v.params.hq)}, {"Hkv", unsafe.Offsetof(v.params.hkv)},
		{"Sq", unsafe.Offsetof(v.params.sq)}, {"Sk", unsafe.Offsetof(v.params.sk)}, {"D", unsafe.Offsetof(v.params.d)}, {"Dv", unsafe.Offsetof(v.params.dv)},
		{"causal_offset", unsafe.Offsetof(v.params.causalOffset)}, {"scale", unsafe.Offsetof(v.params.scale)},
		{"scale_log2", unsafe.Offsetof(v.params.scaleLog2)}, {"unit_high", unsafe.Offsetof(v.params.unitHigh)}, {"unit_low", unsafe.Offsetof(v.params.unitLow)},
		{"cu_q", unsafe.Offsetof(v.params.cuQ)}, {"cu_k", unsafe.Offsetof(v.params.cuK)}, {"used_q", unsafe.Offsetof(v.params.usedQ)},
		{"used_k", unsafe.Offsetof(v.params.usedK)}, {"table", unsafe.Offsetof(v.params.table)}, {"alibi", unsafe.Offsetof(v.params.alibi)},
		{"sinks", unsafe.Offsetof(v.params.sinks)}, {"total_q", unsafe.Offsetof(v.params.totalQ)}, {"total_k", unsafe.Offsetof(v.params.totalK)},
		{"left", unsafe.Offsetof(v.params.left)}, {"right", unsafe.Offsetof(v.params.right)}, {"bottom_right", unsafe.Offsetof(v.params.bottomRight)},
		{"page_size", unsafe.Offsetof(v.params.pageSize)}, {"pages", unsafe.Offsetof(v.params.pages)}, {"table_stride", unsafe.Offsetof(v.params.tableStride)},
		{"first_batch", unsafe.Offsetof(v.params.firstBatch)}, {"first_head", unsafe.Offsetof(v.params.firstHead)},
		{"unaligned", unsafe.Offsetof(v.params.unaligned)}, {"changes", unsafe.Offsetof(v.params.changes)},
		{"score_scale", unsafe.Offsetof(v.params.scoreScale)}, {"softcap", unsafe.Offsetof(v.params.softcap)},
		{"bias", unsafe.Offsetof(v.params.bias)}, {"mask", unsafe.Offsetof(v.params.mask)}, {"bias_batch", unsafe.Offsetof(v.params.biasSteps)},
		{"mask_batch", unsafe.Offsetof(v.params.maskSteps)}, {"bias_type", unsafe.Offsetof(v.params.biasType)}, {"drop_offset", unsafe.Offsetof(v.params.dropOffset)},
		{"drop_seed", unsafe.Offsetof(v.params.dropSeed)}, {"drop_threshold", unsafe.Offsetof(v.params.dropThreshold)}, {"drop_scale", unsafe.Offsetof(v.params.dropScale)},
		{"drop_state", unsafe.Offsetof(v.params.dropState)}, {"max_logits", unsafe.Offsetof(v.params.maxLogits)}, {"alibi_batch", unsafe.Offsetof(v.params.alibiBatch)},
	}
	var c strings.Builder
	header, err := filepath.Abs("kernels/attn_latent.h")
	require.NoError(t, err)
	// C++: the header is the kernels'. Its checks are C++'s own.
	fmt.Fprintf(&c, "#include <stddef.h>\n#include %q\n", header)
	fmt.Fprintf(&c, "static_assert(sizeof(AttnParams) == %d && sizeof(AttnTensor) == %d, \"size\");\n", unsafe.Sizeof(v.params.callParams), unsafe.Sizeof(v.params.q))
	fmt.Fprintf(&c, "static_assert(sizeof(AttnGeneralParams) == %d, \"size\");\n", unsafe.Sizeof(v.params.generalParams))
	fmt.Fprintf(&c, "static_assert(sizeof(AttnLatentParams) == %d && offsetof(AttnLatentParams, partial) == %d && offsetof(AttnLatentParams, parts) == %d && offsetof(AttnLatentParams, tokens) == %d && "+
		"offsetof(AttnLatentParams, topk) == %d && offsetof(AttnLatentParams, whole) == %d && offsetof(AttnLatentParams, entries) == %d && offsetof(AttnLatentParams, offsets) == %d, \"size\");\n", unsafe.Sizeof(v.params), unsafe.Offsetof(v.params.partial), unsafe.Offsetof(v.params.parts),
		unsafe.Offsetof(v.params.tokens), unsafe.Offsetof(v.params.topK), unsafe.Offsetof(v.params.whole), unsafe.Offsetof(v.params.entries), unsafe.Offsetof(v.params.offsets))
	for _, m := range members {
		fmt.Fprintf(&c, "static_assert(offsetof(AttnGeneralParams, %s) == %d, \"%s\");\n", m.name, m.offset, m.name)
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

// The driver's structures have the sizes and offsets that cuda.h gives them, in Go and in the C that the fake driver is
// made of.
func TestDriverStructures(t *testing.T) {
	var (
		memory    externalMemory
		semaphore externalSemaphore
		kind      allocationKind
		attribute launchAttribute
		config    launchConfig
	)
	header, err := filepath.Abs("testdata/driver.h")
	require.NoError(t, err)
	var c strings.Builder
	fmt.Fprintf(&c, "#include %q\n", header)
	for _, s := range []struct {
		name        string
		bytes, ours uintptr
	}{
		{"CUDA_EXTERNAL_MEMORY_HANDLE_DESC", 104, unsafe.Sizeof(memory)}, {"CUDA_EXTERNAL_MEMORY_BUFFER_DESC", 88, unsafe.Sizeof(externalBuffer{})},
		{"CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC", 96, unsafe.Sizeof(semaphore)}, {"CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS", 144, 8 * semaphoreWords},
		{"CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS", 144, 8 * semaphoreWords}, {"CUmemAllocationProp", 32, unsafe.Sizeof(kind)},
		{"CUmemAccessDesc", 12, unsafe.Sizeof(memoryAccess{})}, {"CUtensorMap", 128, mapBytes}, {"CUuuid", 16, unsafe.Sizeof(DeviceInfo{}.UUID)},
		{"CUlaunchAttribute", 72, unsafe.Sizeof(attribute)}, {"CUlaunchConfig", 56, unsafe.Sizeof(config)},
	} {
		require.Equal(t, s.bytes, s.ours, s.name)
		fmt.Fprintf(&c, "_Static_assert(sizeof(%s) == %d, \"%s\");\n", s.name, s.bytes, s.name)
	}
	for _, m := range []struct {
		member       string
		offset, ours uintptr
	}{
		{"CUDA_EXTERNAL_MEMORY_HANDLE_DESC, handle", 8, unsafe.Offsetof(memory.fd)}, {"CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size", 24, unsafe.Offsetof(memory.size)},
		{"CUDA_EXTERNAL_MEMORY_HANDLE_DESC, flags", 32, unsafe.Offsetof(memory.flags)}, {"CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC, handle", 8, unsafe.Offsetof(semaphore.fd)},
		{"CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC, flags", 24, unsafe.Offsetof(semaphore.flags)}, {"CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, params", 0, 0},
		{"CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, flags", 72, 72}, {"CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, flags", 72, 72},
		{"CUmemAllocationProp, location", 8, unsafe.Offsetof(kind.location)}, {"CUmemAllocationProp, flags", 24, unsafe.Offsetof(kind.flags)},
		{"CUlaunchAttribute, value", 8, unsafe.Offsetof(attribute.value)}, {"CUlaunchConfig, block", 12, unsafe.Offsetof(config.block)},
		{"CUlaunchConfig, shared", 24, unsafe.Offsetof(config.shared)}, {"CUlaunchConfig, stream", 32, unsafe.Offsetof(config.stream)},
		{"CUlaunchConfig, attributes", 40, unsafe.Offsetof(config.attributes)}, {"CUlaunchConfig, count", 48, unsafe.Offsetof(config.count)},
	} {
		require.Equal(t, m.offset, m.ours, m.member)
		fmt.Fprintf(&c, "_Static_assert(offsetof(%s) == %d, \"\");\n", m.member, m.offset)
	}
	compile(t, "cc", "driver.c", c.String())
	require.LessOrEqual(t, int(max(unsafe.Sizeof(latentParams{}), unsafe.Sizeof(backwardParams{}))), maxParams)
}
