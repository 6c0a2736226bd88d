//go:build cgo && linux

// Package python tests the Python package vkattn as a user has it: packed by make python and unpacked in another folder.
package python

import (
	"archive/zip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/testlevel"
)

// python is the first Python that has NumPy, else one without.
func python(t *testing.T) (path string, numpy bool) {
	t.Helper()
	for _, name := range []string{os.Getenv("PYTHON"), "/usr/bin/python3", "python3"} {
		found, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if exec.Command(found, "-c", "import numpy").Run() == nil {
			return found, true
		}
		path = found
	}
	if path == "" {
		t.Skip("no python3")
	}
	return path, false
}

// unpack makes the wheel and installs it in an empty folder, as pip does; without pip it unpacks it there.
func unpack(t *testing.T, program string) (folder string) {
	t.Helper()
	for _, tool := range []string{"go", "make", "cc", "python3"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	const built = "../../build/c"
	require.NoError(t, os.MkdirAll(built, 0o755))
	lock, err := os.Create(filepath.Join(built, ".lock")) // as the tests of the C library
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	out, err := exec.Command("make", "-C", "../..", "python").CombinedOutput()
	require.NoError(t, err, "%s", out)
	wheel := regexp.MustCompile(`(?m)^build/python/vkattn-.*-py3-none-manylinux_2_\d+_\w+\.whl$`).FindString(string(out))
	require.NotEmpty(t, wheel, "%s", out)
	archive, err := zip.OpenReader(filepath.Join("../..", wheel))
	require.NoError(t, err)
	defer archive.Close()
	folder = t.TempDir()
	names := map[string]bool{}
	for _, f := range archive.File {
		names[filepath.Base(f.Name)] = true
		path := filepath.Join(folder, f.Name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		from, err := f.Open()
		require.NoError(t, err)
		data, err := io.ReadAll(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, data, 0o644))
	}
	for _, name := range []string{"__init__.py", "_library.py", "_torch.py", "flash_attn.py", "transformers.py", "py.typed", "libvkattn.so", "libvkattn_torch.so", "METADATA", "WHEEL", "RECORD", "LICENSE", "LICENSES.txt", "NOTICE"} {
		require.True(t, names[name], name)
	}
	if exec.Command(program, "-m", "pip", "--version").Run() == nil {
		folder = t.TempDir()
		out, err := exec.Command(program, "-m", "pip", "install", "--no-index", "--no-deps", "--no-cache-dir", "--disable-pip-version-check",
			"--target", folder, filepath.Join("../..", wheel)).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return folder
}

// The package computes what the formula says and refuses wrong uses, on the CPU. Without NumPy its structs are compared
// with the library's.
func TestPythonPackage(t *testing.T) {
	testlevel.OnceOnly(t)
	program, numpy := python(t)
	folder := unpack(t, program)
	run := func(words ...string) {
		cmd := exec.Command(program, words...)
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), "PYTHONPATH="+strings.Trim(folder+":"+os.Getenv("PYTHONPATH"), ":"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Logf("%s", out)
	}
	tests, err := filepath.Abs("tests")
	require.NoError(t, err)
	t.Setenv("VKATTN_LIBRARY", filepath.Join(folder, "vkattn/libvkattn.so"))
	run(filepath.Join(tests, "test_structs.py"))
	require.NoError(t, os.Unsetenv("VKATTN_LIBRARY"))
	if !numpy {
		t.Skip("no NumPy (Debian: python3-numpy): the package was packed, and its structs compared")
	}
	run(filepath.Join(tests, "test_vkattn.py"))
	torch := exec.Command(program, "-c", "import torch").Run() == nil // Debian: python3-torch
	if torch {
		run(filepath.Join(tests, "test_torch.py"))
	}
	page, err := os.ReadFile("../../docs/python.md")
	require.NoError(t, err)
	var text strings.Builder // the examples of the page, one after another
	for _, m := range regexp.MustCompile("(?s)```python\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if torch || !strings.Contains(m[1], "import torch") {
			text.WriteString(m[1])
		}
	}
	run("-c", text.String())
	driver := filepath.Join(t.TempDir(), "libfakecuda.so")
	made, err := exec.Command("cc", "-shared", "-fPIC", "-pthread", "-o", driver, "../../cudapath/testdata/fakecuda.c", "-lm").CombinedOutput()
	require.NoError(t, err, "%s", made)
	t.Setenv("VKATTN_LIBCUDA", driver)
	t.Setenv("VKATTN_LIBVULKAN", filepath.Join(folder, "libvulkan.so.1"))
	t.Setenv("FAKECUDA_ATTENTION", "1")
	run(filepath.Join(tests, "test_cuda.py"))
}
