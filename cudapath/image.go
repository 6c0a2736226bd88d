package cudapath

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// image reads a module for a device: the cubin for exactly this device, or else the PTX,
// with the NUL at its end that the driver needs.
func (t *table) image(module string, d *DeviceInfo) ([]byte, error) {
	name, ok := t.imageName(module, d)
	if !ok {
		return nil, unsupported("load a module", "there is neither a cubin nor PTX of %s for %s", module, d)
	}
	data, err := t.read(name)
	if err != nil {
		return nil, err
	}
	return append(data, 0), nil
}

// read reads a file of kernels/bin, decompressed.
func (t *table) read(name string) ([]byte, error) {
	data, err := fs.ReadFile(t.files, path.Join("bin", name))
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(name, ".gz") {
		r, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("cudapath: kernels/bin/%s: %w", name, err)
		}
		if data, err = io.ReadAll(r); err != nil {
			return nil, fmt.Errorf("cudapath: kernels/bin/%s: %w", name, err)
		}
	}
	return data, nil
}

// leastCompute is the compute capability of the PTX.
const leastCompute = 80

// imageName finds the file of a module that a device can run.
func (t *table) imageName(module string, d *DeviceInfo) (name string, ok bool) {
	compute := 10*d.Major + d.Minor
	var names []string
	if compute == 90 {
		names = append(names, module+".sm_90a.cubin")
	}
	if compute >= leastCompute {
		names = append(names, module+".ptx")
	}
	for _, name := range names {
		if file, ok := t.file(name); ok {
			return file, true
		}
	}
	return "", false
}

// file finds a file of kernels/bin, compressed or not.
func (t *table) file(name string) (file string, ok bool) {
	for _, suffix := range []string{"", ".gz"} {
		if t.modules[name+suffix] {
			return name + suffix, true
		}
	}
	return "", false
}
