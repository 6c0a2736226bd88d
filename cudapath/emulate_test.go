//go:build !windows

package cudapath

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// emulators are locked while kernels run: shared memory is static, so one runs at a time.
var emulators sync.Mutex

// newEmulator loads the backward kernels of a storage type.
func newEmulator(t testing.TB, dtype string) *emulator {
	return newEmulatorOf(t, "reference_backward.cu", "AttnBackwardParams", "TYPE="+dtype, dtype)
}

// newEmulatorOf is newEmulator for a source of kernels, their parameters and a macro.
func newEmulatorOf(t testing.TB, source, params, macro, dtype string) *emulator {
	t.Helper()
	element := map[string]string{"f16": "__half", "bf16": "__nv_bfloat16", "f32": "float"}[dtype]
	e := &emulator{lib: emulation{kernel: source}.load(t, "-DELEMENT="+element, "-D"+macro, "-DPARAMS="+params)}
	purego.RegisterLibFunc(&e.run, e.lib, "emulate")
	return e
}

// emulation is kernels as a library of the CPU.
type emulation struct {
	kernel string           // in folder kernels
	folder string           // of testdata/emulate: what stands in for instructions of the GPU
	file   string           // in folder, emulate.cc if it is empty
	change func(dir string) // may alter the text of the sources
}

// emulations are loaded, by what they are compiled of.
var emulations sync.Map

// load compiles the library, once for each list of flags if nothing is changed, and loads it. It skips without a C++ compiler.
func (e emulation) load(t testing.TB, flags ...string) uintptr {
	t.Helper()
	key := strings.Join(append([]string{e.kernel, e.folder, e.file}, flags...), " ")
	if lib, ok := emulations.Load(key); ok && e.change == nil {
		return lib.(uintptr)
	}
	dir := e.sources(t)
	file := filepath.Join(dir, "kernels.so")
	e.compile(t, dir, file, append(flags, "-shared", "-fPIC")...)
	lib, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	if e.change == nil {
		emulations.Store(key, lib)
	}
	return lib
}

// compile compiles sources to a file.
func (e emulation) compile(t testing.TB, dir, file string, flags ...string) {
	t.Helper()
	compiler, err := exec.LookPath("c++")
	if err != nil {
		t.Skipf("no compiler for the kernels: %v", err)
	}
	flags = append(flags, "-std=c++17", "-O1", "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-I"+dir,
		fmt.Sprintf("-DSOURCE=%q", e.kernel), "-o", file, filepath.Join(dir, cmp.Or(e.file, "emulate.cc")))
	text, err := exec.Command(compiler, flags...).CombinedOutput()
	require.NoError(t, err, "%s", text)
}

// sources copies the sources of a kernel to a folder, with those of its emulation in place of the headers that they stand in for.
func (e emulation) sources(t testing.TB) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, pattern := range []string{"kernels/*.h", "kernels/" + e.kernel, "testdata/emulate/*.[hc]*", filepath.Join("testdata/emulate", e.folder, "*.*")} {
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
	if e.change != nil {
		e.change(dir)
	}
	return dir
}

// planting plants a fault in a file of the sources.
func planting(t testing.TB, file, right, planted string) func(dir string) {
	return func(dir string) {
		path := filepath.Join(dir, file)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), right, planted, 1)), 0o600))
	}
}

// A planted fault that its case shows ends the process with this code.
const faultFound = 3

// requireFault requires that a kernel with a planted fault does not conform. It computes in a process of its own, since such a kernel
// may write anywhere; a process that crashes has shown the fault.
func requireFault(t *testing.T, name string, conform func(t *testing.T) error) {
	t.Helper()
	const variable = "VKATTN_PLANTED_FAULT"
	t.Run(name, func(t *testing.T) {
		switch os.Getenv(variable) {
		case t.Name():
			if err := conform(t); err != nil {
				fmt.Println(err)
				os.Exit(faultFound)
			}
			return
		case "":
		default:
			return // the process is there for another fault
		}
		if _, err := exec.LookPath("c++"); err != nil {
			t.Skipf("no compiler for the kernels: %v", err)
		}
		top, _, _ := strings.Cut(t.Name(), "/")
		cmd := exec.Command(os.Args[0], "-test.run=^"+top+"$")
		cmd.Env = append(os.Environ(), variable+"="+t.Name())
		text, err := cmd.CombinedOutput()
		require.Error(t, err, "the case does not show the fault")
		// A test that fails ends with 1, as where the kernel does not compile.
		require.NotEqual(t, 1, cmd.ProcessState.ExitCode(), "%s", text)
	})
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
