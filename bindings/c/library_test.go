//go:build cgo && linux

package main

import (
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cudapath"
	"vkattn/internal/testdevice"
	"vkattn/internal/testlevel"
)

// The library as programs of C and C++ have it: built by make c, with the header in C99 and in C++.

var updateABI = flag.Bool("update-abi", false, "write abi.txt")

const folder = "../../build/c"

// library builds the library. Several parts of a test run do so.
func library(t *testing.T) string {
	t.Helper()
	testlevel.Long(t)
	for _, tool := range []string{"go", "make", "cc", "c++"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	require.NoError(t, os.MkdirAll(folder, 0o755))
	lock, err := os.Create(filepath.Join(folder, ".lock"))
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	out, err := exec.Command("make", "-C", "../..", "c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	path, err := filepath.Abs(folder)
	require.NoError(t, err)
	return path
}

// compile compiles a program that is linked with the library at path.
func compile(t *testing.T, path, source string, more ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	compiler, standard := "cc", "-std=c99"
	if strings.HasSuffix(source, ".cpp") {
		compiler, standard = "c++", "-std=c++11"
	}
	args := append([]string{standard, "-pedantic", "-Wall", "-Wextra", "-Werror", "-I", path, "-I", "testdata", source, "-o", program,
		"-L", path, "-lvkattn", "-lm", "-lpthread", "-ldl", "-Wl,-rpath," + path}, more...)
	out, err := exec.Command(compiler, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// run runs a program on the driver under test and returns what it prints. It ends with the given code.
func run(t *testing.T, code int, program ...string) string {
	t.Helper()
	if with := os.Getenv("VKATTN_EXEC"); with != "" {
		program = append(strings.Fields(with), program...)
	}
	cmd := exec.Command(program[0], program[1:]...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if exit := new(exec.ExitError); code != 0 && errors.As(err, &exit) {
		require.Equal(t, code, exit.ExitCode(), "%s", out.String())
		return out.String()
	}
	require.NoError(t, err, "%s", out.String())
	return out.String()
}

// The symbols of the library and the sizes and offsets of its structs are those of abi.txt. A struct with a size may
// get more members at its end; all else takes another VKATTN_ABI.
func TestLibraryABI(t *testing.T) {
	testlevel.HostOnly(t)
	path := library(t)
	h := readHeader(t)
	file, err := elf.Open(filepath.Join(path, "libvkattn.so"))
	require.NoError(t, err)
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	require.NoError(t, err)
	var functions []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			functions = append(functions, s.Name)
		}
	}
	slices.Sort(functions)
	require.Equal(t, h.functions, functions, "the library and vkattn.h")

	var got, program strings.Builder
	for _, f := range functions {
		fmt.Fprintf(&got, "%s\n", f)
	}
	program.WriteString("#include <stdio.h>\n#include <vkattn.h>\nint main(void)\n{\n")
	for _, name := range h.order {
		fmt.Fprintf(&program, "printf(\"%s %%zu\\n\", sizeof(%s));\n", name, name)
		for _, m := range h.structs[name] {
			fmt.Fprintf(&program, "printf(\"\\t%s %%zu %%zu\\n\", offsetof(%s, %s), sizeof((%s *)0)->%s);\n", m, name, m, name, m)
		}
	}
	program.WriteString("return 0;\n}\n")
	source := filepath.Join(t.TempDir(), "abi.c")
	require.NoError(t, os.WriteFile(source, []byte(program.String()), 0o600))
	got.WriteString(run(t, 0, compile(t, path, source)))
	if *updateABI {
		require.NoError(t, os.WriteFile("abi.txt", []byte(got.String()), 0o644))
	}
	want, err := os.ReadFile("abi.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}

// The programs of a host in which the library lives.
var processes = []string{"handler-before", "handler-after", "other-signals", "timer", "forks", "closes", "exits", "exit-handlers"}

// Examples, misuse and the life in a process, on the CPU.
func TestLibraryOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	path := library(t)
	require.Contains(t, run(t, 0, compile(t, path, "examples/host.c")), "tier cpu")
	require.Contains(t, run(t, 0, compile(t, path, "examples/host.cpp")), "differs from 1")
	run(t, 0, compile(t, path, "testdata/misuse.c"))
	require.Contains(t, run(t, 0, compile(t, path, "examples/decode.c")), "differs by at most")
	run(t, 0, compile(t, path, "testdata/faces.c"), "cpu")
	run(t, 0, compile(t, path, "testdata/append.c"), "cpu")
	process := compile(t, path, "testdata/process.c")
	for _, name := range processes {
		t.Run(name, func(t *testing.T) { run(t, 0, process, filepath.Join(path, "libvkattn.so"), name) })
	}
}

// The CUDA face on a driver without a GPU.
func TestLibraryOnCUDA(t *testing.T) {
	testlevel.HostOnly(t)
	path := library(t)
	driver := filepath.Join(t.TempDir(), "libfakecuda.so")
	text, err := exec.Command("cc", "-shared", "-fPIC", "-pthread", "-o", driver, "../../cudapath/testdata/fakecuda.c", "-lm").CombinedOutput()
	require.NoError(t, err, "%s", text)
	t.Setenv(cudapath.LibraryEnv, driver)
	t.Setenv("FAKECUDA_ATTENTION", "1")
	run(t, 0, compile(t, path, "testdata/cuda.c"), driver)
	run(t, 0, compile(t, path, "testdata/call.c"), driver)
	require.Contains(t, run(t, 0, compile(t, path, "examples/cuda.c"), driver), "O differs by at most")
	kernels := filepath.Join(t.TempDir(), "append.so") // the append kernel, compiled for the CPU
	text, err = exec.Command("c++", "-std=c++17", "-O2", "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-shared", "-fPIC", "-I../../cudapath/testdata/emulate",
		"-I../../cudapath/kernels", "-DELEMENT=float", "-DENTRY=attn_append_f32", "-DPARAMS=AttnAppendParams", `-DSOURCE="append.cu"`, "-o", kernels,
		"../../cudapath/testdata/emulate/emulate.cc").CombinedOutput()
	require.NoError(t, err, "%s", text)
	run(t, 0, compile(t, path, "testdata/append.c"), driver, kernels)
}

// The same on the Vulkan device under test, and the Vulkan face under the validation layers.
func TestLibraryOnADevice(t *testing.T) {
	testdevice.Open(t)
	if os.Getenv("VKATTN_DRIVER") == "" {
		t.Skip("the programs need VKATTN_DRIVER and the loader of scripts/run-with")
	}
	path := library(t)
	// With VKATTN_VALIDATION=1 the layers print what they have to say.
	require.Empty(t, run(t, 0, compile(t, path, "testdata/misuse.c"), "0"))
	require.Empty(t, run(t, 0, compile(t, path, "testdata/faces.c"), "0"))
	require.Empty(t, run(t, 0, compile(t, path, "testdata/append.c"), "0"))
	process := compile(t, path, "testdata/process.c")
	for _, name := range processes {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, run(t, 0, process, filepath.Join(path, "libvkattn.so"), name, "0"))
		})
	}
	headers, err := exec.Command("../../scripts/deps.sh", "path", "headers").Output()
	if err != nil {
		t.Skip("no Vulkan headers; scripts/deps.sh headers fetches them")
	}
	vulkan := []string{"-isystem", filepath.Join("/", strings.TrimPrefix(strings.TrimSpace(string(headers)), "system"), "usr/include"),
		os.Getenv("VKATTN_LIBVULKAN"), "-Wl,--allow-shlib-undefined"}
	for name, runs := range map[string][][]string{"examples/vulkan.c": {{}, {"coopmat"}, {"scalar"}}, "testdata/vulkan.c": {{}}} {
		program := compile(t, path, name, vulkan...)
		for _, words := range runs {
			t.Run(fmt.Sprint(name, words), func(t *testing.T) {
				log := validated(t)
				code := 0
				if slices.Contains(words, "coopmat") { // float32 takes matrices of bfloat16, which drivers of the CPU lack
					code = 3
				}
				t.Log(run(t, code, append([]string{program}, words...)...))
				require.Empty(t, log())
			})
		}
	}
	run(t, 0, compile(t, path, "testdata/vulkan.c", vulkan...), "leave")
}

// validated loads the validation layers into instances to come, and returns what they have said by then.
func validated(t *testing.T) (log func() string) {
	t.Helper()
	if os.Getenv("VK_LAYER_PATH") == "" {
		return func() string { return "" }
	}
	file, settings := filepath.Join(t.TempDir(), "messages"), filepath.Join(t.TempDir(), "settings")
	require.NoError(t, os.WriteFile(settings, fmt.Appendf(nil, `khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.log_filename = %s
khronos_validation.report_flags = error,warn
khronos_validation.validate_sync = true
`, file), 0o600))
	t.Setenv("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
	t.Setenv("VK_LAYER_SETTINGS_PATH", settings)
	return func() string {
		text, err := os.ReadFile(file)
		require.NoError(t, err, "the layers were not there")
		return string(text)
	}
}
