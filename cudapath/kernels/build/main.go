// Command build compiles the CUDA kernels to the modules committed in bin/, and
// writes the launch tables.
//
//	go run ./cudapath/kernels/build           compile what has changed, write bin/ and the tables
//	go run ./cudapath/kernels/build -check    prove that what is committed is current
//
// Each module becomes PTX for sm_80, which the driver compiles for any newer GPU,
// and a cubin for sm_90a. -check needs no nvcc: it compares hashes of the sources
// with those the modules were compiled from. With the nvcc that compiled them at
// hand it compiles again and compares bytes too.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"vkattn/internal/compiled"
)

func main() {
	check := flag.Bool("check", false, "write nothing; fail unless the committed files are current")
	dir := flag.String("dir", filepath.Join("cudapath", "kernels"), "folder of the kernels")
	nvcc := flag.String("nvcc", os.Getenv("NVCC"), "compiler (default: the one in $CUDA_HOME or in PATH)")
	jobs := flag.Int("j", runtime.NumCPU(), "modules compiled at a time")
	all := flag.Bool("a", false, "compile modules too that are current")
	flag.Parse()
	var err error
	if *check {
		err = checkAll(*dir, *nvcc, *jobs)
	} else {
		err = build(*dir, *nvcc, *jobs, *all)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func build(dir, nvcc string, jobs int, all bool) error {
	path, err := findNVCC(nvcc)
	if err != nil {
		return err
	}
	c := compiler{path, dir}
	version, err := c.version()
	if err != nil {
		return err
	}
	modules := catalog()
	old := &manifest{}
	if !all {
		if old, err = readManifest(dir); err != nil {
			old = &manifest{} // nothing to keep
		}
	}
	built, err := c.compileAll(modules, jobs, func(m module) map[string][]byte { return m.current(dir, version, old) })
	if err != nil {
		return err
	}
	m := manifest{Compiler: version}
	files := map[string][]byte{}
	size := 0
	for i, mod := range modules {
		line := manifestLine{Name: mod.name, Files: map[string]string{}}
		if line.Sources, err = compiled.Sources(os.DirFS(dir), mod.source); err != nil {
			return err
		}
		if line.Source, err = mod.sourceHash(os.DirFS(dir)); err != nil {
			return err
		}
		for name, content := range built[i] {
			line.Files[name] = compiled.Hash(content)
			packed, err := pack(content)
			if err != nil {
				return err
			}
			files[name+".gz"] = packed
			size += len(packed)
		}
		m.Modules = append(m.Modules, line)
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	files["manifest.json"] = append(text, '\n')
	if err := compiled.ReplaceFolder(filepath.Join(dir, "bin"), files); err != nil {
		return err
	}
	launch, err := tables(modules)
	if err != nil {
		return err
	}
	for name, content := range launch {
		if err := compiled.WriteFile(filepath.Join(dir, name), content); err != nil {
			return err
		}
	}
	fmt.Printf("%d modules compiled by %s, %d KiB\n", len(modules), version, size/1024)
	return nil
}

// compileAll compiles modules, some at a time, and gives their files in order. What
// have knows the files of is not compiled.
func (c compiler) compileAll(modules []module, jobs int, have func(module) map[string][]byte) ([]map[string][]byte, error) {
	built := make([]map[string][]byte, len(modules))
	failed := make([]error, len(modules))
	slots := make(chan struct{}, max(jobs, 1))
	var wait sync.WaitGroup
	for i, m := range modules {
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			built[i] = have(m)
			if built[i] == nil {
				built[i], failed[i] = c.compile(m)
			}
		})
	}
	wait.Wait()
	return built, errors.Join(failed...)
}
