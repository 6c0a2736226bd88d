package cudapath

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync"
	"sync/atomic"
)

// module is a loaded cubin, or PTX compiled for the device.
type module struct {
	mu     sync.Mutex
	handle uint64 // 0: not loaded
}

// kernel is a kernel of the table on a device.
type kernel struct {
	*Kernel
	c       *Context
	ready   atomic.Bool
	mu      sync.Mutex // loads
	handle  uint64
	combine uint64 // of Kernel.Combine
	blocks  int    // CTAs that run on a multiprocessor at once
}

// kernelOf returns the kernel of a table entry. Load makes it ready to be launched.
func (c *Context) kernelOf(e *Kernel) *kernel {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.kernels[e]
	if k == nil {
		k = &kernel{Kernel: e, c: c}
		if c.kernels != nil { // nil at the context's end
			c.kernels[e] = k
		}
	}
	return k
}

// Load makes the kernel ready: it loads, and for PTX compiles, the module once for all its
// kernels. After a failure the next call tries again.
func (k *kernel) Load() error {
	if k.ready.Load() {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ready.Load() {
		return nil
	}
	err := k.load()
	k.ready.Store(err == nil)
	return err
}

func (k *kernel) load() error {
	c := k.c
	if err := c.enter("Load"); err != nil {
		return err
	}
	defer c.leave()
	m, err := c.module(k.Module)
	if err != nil {
		return err
	}
	var fixed, blocks int32
	r := c.lib.api.function(c.handle, m.handle, k.Entry, k.Threads, k.Shared, &k.handle, &fixed, &blocks)
	if err := c.check("load "+k.Entry, r); err != nil {
		return err
	}
	// The driver would refuse the launch without telling why.
	switch {
	case int(fixed)+k.Shared > c.info.MaxShared:
		return unsupported("load "+k.Entry, "%d + %d bytes of shared memory, the device has %d", int(fixed), k.Shared, c.info.MaxShared)
	case blocks < 1:
		return unsupported("load "+k.Entry, "no block of %d threads and %d bytes of shared memory fits a multiprocessor", k.Threads, k.Shared)
	}
	k.blocks = int(blocks)
	if k.Combine != "" {
		r := c.lib.api.function(c.handle, m.handle, k.Combine, combineThreads*combineGroups, combineShared, &k.combine, &fixed, &blocks)
		return c.check("load "+k.Combine, r)
	}
	return nil
}

// module loads a module once. The context is entered.
func (c *Context) module(name string) (*module, error) {
	c.mu.Lock()
	m := c.modules[name]
	if m == nil {
		m = &module{}
		c.modules[name] = m
	}
	c.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.handle == 0 {
		if err := m.load(c, name); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *module) load(c *Context, name string) error {
	image, err := c.table.image(name, &c.info)
	if err != nil {
		return err
	}
	log, handle, r := c.lib.api.loadModule(c.handle, image)
	if err := c.check("load module "+name, r); err != nil {
		e := err.(*Error)
		// In one line, as it is part of an error message.
		e.Detail = strings.ToValidUTF8(strings.Join(strings.Fields(log), " "), "\uFFFD")
		return e
	}
	m.handle = handle
	return nil
}

func (m *module) unload(c *Context) {
	if m.handle != 0 {
		c.lib.api.in(c.handle, c.lib.api.cuModuleUnload, uintptr(m.handle))
	}
}

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
