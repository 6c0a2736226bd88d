package vk

// #include "host.h"
import "C"

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
	"unsafe"

	"vkattn/vk/cachefile"
)

// cacheMagic starts a cache file; the digit is the version of what follows: the
// SHA-256 of the data, its length in 8 bytes, the data. Drivers check the header
// of their data only, and some crash on damage behind it.
const cacheMagic = "vkattn pipelines 1\n"

// saveInterval bounds how often compiling writes the file; Close writes the rest.
const saveInterval = 5 * time.Second

// cacheFile is a VkPipelineCache and where it is kept.
type cacheFile struct {
	handle uint64
	path   string // "": nowhere

	mu    sync.Mutex
	dirty bool
	saved time.Time
}

// loadPipelineCache makes the pipeline cache from its file. A file that is
// missing, damaged or of another driver counts as empty.
func (d *Device) loadPipelineCache(dir string) {
	f := &d.pipelines.cache
	f.saved = time.Now()
	var data []byte
	if dir != "off" {
		if dir == "" {
			dir, _ = cachefile.Dir("pipelines")
		}
		if dir != "" {
			f.path = filepath.Join(dir, fmt.Sprintf("%x-%08x-%x.bin", d.info.UUID, d.info.DriverVersion, d.info.pipelineCacheUUID))
			data = readCache(f.path)
		}
	}
	if d.createCache(data) != nil && data != nil {
		_ = d.createCache(nil) // refused by the driver; without any, handle is 0 and nothing is cached
	}
}

func (d *Device) createCache(data []byte) error {
	var p *C.uint8_t
	if len(data) > 0 {
		p = (*C.uint8_t)(unsafe.Pointer(&data[0]))
	}
	return d.check("vkCreatePipelineCache", C.vka_create_cache(d.c, p, C.size_t(len(data)), u64(&d.pipelines.cache.handle)))
}

func readCache(path string) []byte {
	file, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	data, err := parseCache(file)
	if err != nil {
		return nil
	}
	return data
}

func parseCache(file []byte) ([]byte, error) {
	const head = len(cacheMagic) + sha256.Size + 8
	if len(file) < head || string(file[:len(cacheMagic)]) != cacheMagic {
		return nil, fmt.Errorf("no pipeline cache")
	}
	sum, n, data := file[len(cacheMagic):head-8], binary.LittleEndian.Uint64(file[head-8:]), file[head:]
	if uint64(len(data)) != n {
		return nil, fmt.Errorf("%d bytes of %d", len(data), n)
	}
	if s := sha256.Sum256(data); !bytes.Equal(s[:], sum) {
		return nil, fmt.Errorf("damaged")
	}
	return data, nil
}

func formatCache(data []byte) []byte {
	sum := sha256.Sum256(data)
	file := append([]byte(cacheMagic), sum[:]...)
	file = binary.LittleEndian.AppendUint64(file, uint64(len(data)))
	return append(file, data...)
}

// compiledOne notes a new pipeline, and saves if the last time was a while ago.
func (d *Device) compiledOne() {
	f := &d.pipelines.cache
	f.mu.Lock()
	f.dirty = true
	due := time.Since(f.saved) > saveInterval
	f.mu.Unlock()
	if due {
		d.savePipelineCache()
	}
}

// savePipelineCache writes the file whole, by renaming: readers see the old or the
// new one. Failing to is no error, the next run compiles again.
func (d *Device) savePipelineCache() {
	f := &d.pipelines.cache
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.dirty || f.path == "" || f.handle == 0 || d.lost.Load() {
		return
	}
	f.dirty, f.saved = false, time.Now()
	var n C.size_t
	if r := C.vka_cache_data(d.c, C.uint64_t(f.handle), &n, nil); r != C.VK_SUCCESS || n == 0 {
		return
	}
	data := make([]byte, n)
	// A pipeline compiled in between gives VK_INCOMPLETE and a valid shorter cache.
	if r := C.vka_cache_data(d.c, C.uint64_t(f.handle), &n, (*C.uint8_t)(unsafe.Pointer(&data[0]))); r < 0 {
		return
	}
	_ = cachefile.Write(f.path, formatCache(data[:n]))
}
