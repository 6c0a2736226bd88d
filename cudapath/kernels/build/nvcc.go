package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// output is one file that a module compiles to, and the options that make it so.
type output struct {
	name    string
	options []string
}

var common = []string{"-std=c++17", "-O3", "-Werror", "all-warnings"}

func (m *module) outputs() []output {
	arch := cmp.Or(m.arch, "sm_90a")
	list := []output{{m.name + "." + arch + ".cubin", append([]string{"-cubin", "-gencode=arch=" + strings.Replace(arch, "sm", "compute", 1) + ",code=" + arch}, common...)}}
	if m.ptx {
		list = append(list, output{m.name + ".ptx", append([]string{"-ptx", "-arch=compute_80"}, common...)})
	}
	return list
}

type compiler struct{ nvcc, dir string }

// findNVCC returns the compiler named by -nvcc or $NVCC, or else the one in $CUDA_HOME or
// in PATH.
func findNVCC(named string) (string, error) {
	candidates := []string{named, "nvcc"}
	if home := os.Getenv("CUDA_HOME"); home != "" {
		candidates = []string{named, filepath.Join(home, "bin", "nvcc"), "nvcc"}
	}
	for _, c := range candidates {
		if c == "" {
			continue
		}
		if path, err := exec.LookPath(c); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no nvcc: name one by NVCC or CUDA_HOME, or let scripts/deps.sh nvcc fetch it")
}

var release = regexp.MustCompile(`release [0-9.]+, V([0-9.]+)`)

func (c compiler) version() (string, error) {
	out, err := exec.Command(c.nvcc, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", c.nvcc, err)
	}
	m := release.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s --version names no release", c.nvcc)
	}
	return "nvcc " + string(m[1]), nil
}

// compile gives the files of a module, by name.
func (c compiler) compile(m module) (map[string][]byte, error) {
	folder, err := os.MkdirTemp("", "kernels")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	files := map[string][]byte{}
	for _, f := range m.outputs() {
		out := filepath.Join(folder, f.name)
		args := append([]string{}, f.options...)
		for _, d := range m.defines {
			args = append(args, "-D"+strings.ReplaceAll(d, ",", `\,`)) // nvcc takes a comma as the end of a definition
		}
		cmd := exec.Command(c.nvcc, append(args, "-o", out, m.source)...)
		// Relative, so that no path of this machine can get into a file.
		cmd.Dir = c.dir
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", f.name, err, bytes.TrimSpace(text))
		}
		if files[f.name], err = os.ReadFile(out); err != nil {
			return nil, err
		}
		for _, e := range m.entries {
			if !bytes.Contains(files[f.name], []byte(e.Entry)) {
				return nil, fmt.Errorf("%s: has no kernel %s", f.name, e.Entry)
			}
		}
	}
	return files, nil
}

// pack is gzip without a name or a time, so that equal contents give equal files.
func pack(content []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func unpack(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	content, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return content, nil
}
