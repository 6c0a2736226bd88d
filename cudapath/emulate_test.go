//go:build !windows

package cudapath

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// emulator runs the backward kernels of a storage type on the CPU: testdata/emulate has
// the kernels' source compiled by the host's compiler.
type emulator struct {
	lib uintptr
	run func(entry uintptr, p *backwardParams, grid *uint32, threads, reversed int32) int32
}

// emulators has one for each source and storage type. A kernel's shared memory is static, so one runs
// at a time.
var emulators struct {
	sync.Mutex
	byType map[string]*emulator
}

// newEmulator compiles the backward kernels of a storage type once. It skips without a C++ compiler.
func newEmulator(t testing.TB, dtype string) *emulator {
	return newEmulatorOf(t, "reference_backward.cu", "AttnBackwardParams", "TYPE="+dtype, dtype)
}

// newEmulatorOf is newEmulator for a source of kernels, their parameters and a macro.
func newEmulatorOf(t testing.TB, source, params, macro, dtype string) *emulator {
	t.Helper()
	compiler, err := exec.LookPath("c++")
	if err != nil {
		t.Skipf("no compiler for the kernels: %v", err)
	}
	emulators.Lock()
	defer emulators.Unlock()
	if e := emulators.byType[source+dtype]; e != nil {
		return e
	}
	element := map[string]string{"f16": "__half", "bf16": "__nv_bfloat16", "f32": "float"}[dtype]
	file := filepath.Join(t.TempDir(), "kernels_"+dtype+".so")
	text, err := exec.Command(compiler, "-std=c++17", "-O2", "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-shared", "-fPIC", "-Itestdata/emulate", "-Ikernels",
		"-DELEMENT="+element, "-D"+macro, "-DPARAMS="+params, fmt.Sprintf("-DSOURCE=%q", source), "-o", file, "testdata/emulate/emulate.cc").CombinedOutput()
	require.NoError(t, err, "%s", text)
	e := &emulator{}
	e.lib, err = purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	require.NoError(t, os.Remove(file))
	purego.RegisterLibFunc(&e.run, e.lib, "emulate")
	if emulators.byType == nil {
		emulators.byType = map[string]*emulator{}
	}
	emulators.byType[source+dtype] = e
	return e
}

// emulationSources copies the sources of a kernel to a folder, with those of its emulation, a
// folder of testdata/emulate, in place of the headers that they stand in for.
func emulationSources(t testing.TB, kernel, emulation string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, pattern := range []string{"kernels/*.h", "kernels/" + kernel, "testdata/emulate/*.h", "testdata/emulate/" + emulation + "/*"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, name := range files {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			// Dynamic shared memory of fa2 is an array of warp/emulate.cc.
			own := bytes.ReplaceAll(text, []byte("extern __shared__ __align__(128) char memory[];"), nil)
			require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), own, 0o600))
		}
	}
	return dir
}

// launch runs a kernel. reversed is the order of threads and CTAs.
func (e *emulator) launch(entry string, p *backwardParams, grid [3]uint32, threads int, reversed bool) error {
	function, err := purego.Dlsym(e.lib, entry)
	if err != nil {
		return err
	}
	order := int32(0)
	if reversed {
		order = 1
	}
	emulators.Lock()
	defer emulators.Unlock()
	if line := e.run(function, p, &grid[0], int32(threads), order); line != 0 {
		return fmt.Errorf("%s: not all threads reach the barrier of line %d", entry, line)
	}
	return nil
}

// hostTensor is a tensor in host memory as a kernel takes it.
func hostTensor(x attention.Tensor, size int, heads, seq, dim int) (p tensorParams) {
	if !x.Given() {
		return p
	}
	s := x.Strides.Resolve(heads, seq, dim)
	return tensorParams{hostAddress(x.Host, x.Offset, size), s.Batch, s.Head, s.Seq}
}

func hostAddress(host []byte, offset int64, size int) uint64 {
	if host == nil {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(host)))) + uint64(offset)*uint64(size)
}
