package vk

// #include "host.h"
import "C"

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"vkattn/vk/cachefile"
)

// cacheMagic starts a cache file; the digit is the version of what follows: the
// SHA-256 of the data, its length in 8 bytes, the data. Drivers check the header
// of their data only, and some crash on damage behind it.
const cacheMagic = "vkattn pipelines 1\n"

const cacheHead = len(cacheMagic) + sha256.Size + 8

// maxCacheBytes bounds what is read back. Drivers forget nothing, not even the
// pipelines of older kernels; past this it is quicker to begin again.
const maxCacheBytes = 64 << 20

// saveDelay is how long after compiling the file is written, with all that was
// compiled in between; Close writes the rest.
const saveDelay = 2 * time.Second

// cacheFile is a VkPipelineCache and where it is kept.
type cacheFile struct {
	handle uint64
	path   string // "": nowhere
	note   string // why the file was of no use, where something has to be done about it
	delay  time.Duration

	dirty atomic.Bool // something was compiled since the last save
	mu    sync.Mutex  // guards timer
	timer *time.Timer // nil: no save is due
	save  sync.Mutex  // guards head; one save at a time
	head  string      // of the file as last read or written
}

// loadPipelineCache makes the pipeline cache from its file. A file that is
// missing, damaged or of another driver counts as empty. What cannot be read is noted.
func (d *Device) loadPipelineCache(dir string) {
	f := &d.pipelines.cache
	f.delay = saveDelay
	var data []byte
	if dir = pipelineCacheDir(dir); dir != "" {
		f.path = filepath.Join(dir, fmt.Sprintf("%x-%08x-%x.bin", d.info.UUID, d.info.DriverVersion, d.info.pipelineCacheUUID))
		var err error
		if f.head, data, err = readCache(f.path); err != nil {
			f.note = fmt.Sprintf("pipeline cache %s ignored: %v", f.path, err)
		}
	}
	if d.createCache(data) != nil && data != nil {
		_ = d.createCache(nil) // refused by the driver; without any, handle is 0 and nothing is cached
	}
}

// pipelineCacheDir is the folder that Options.PipelineCache stands for, "" for none.
func pipelineCacheDir(option string) string {
	switch option {
	case "off":
		return ""
	case "":
		if dir := CacheDir(); dir != "" {
			return filepath.Join(dir, "pipelines")
		}
	}
	return option
}

func (d *Device) createCache(data []byte) error {
	var p *C.uint8_t
	if len(data) > 0 {
		p = (*C.uint8_t)(unsafe.Pointer(&data[0]))
	}
	return d.check("vkCreatePipelineCache", C.vka_create_cache(d.c, p, C.size_t(len(data)), u64(&d.pipelines.cache.handle)))
}

// PipelineCacheNote says why the pipeline cache of the device could not be read, ""
// where it could or where there was none. Pipelines are compiled again then.
func (d *Device) PipelineCacheNote() string {
	if d == nil {
		return ""
	}
	return d.pipelines.cache.note
}

// readCache reads a file. What is missing or damaged is of no use and no error: the
// next save mends it.
func readCache(path string) (head string, data []byte, err error) {
	file, err := cachefile.Read(path, maxCacheBytes)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil || file == nil {
		return "", nil, err
	}
	if data, err = parseCache(file); err != nil {
		return "", nil, nil
	}
	return string(file[:cacheHead]), data, nil
}

func parseCache(file []byte) ([]byte, error) {
	if len(file) < cacheHead || string(file[:len(cacheMagic)]) != cacheMagic {
		return nil, fmt.Errorf("no pipeline cache")
	}
	sum, n, data := file[len(cacheMagic):cacheHead-8], binary.LittleEndian.Uint64(file[cacheHead-8:]), file[cacheHead:]
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

// compiledOne notes a new pipeline and sees to it that it is saved soon: a
// process need not end well.
func (d *Device) compiledOne() {
	f := &d.pipelines.cache
	if f.path == "" || f.handle == 0 {
		return
	}
	f.dirty.Store(true)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		return
	}
	f.timer = time.AfterFunc(f.delay, func() {
		f.mu.Lock()
		f.timer = nil
		f.mu.Unlock()
		if d.enter("save the pipeline cache") != nil {
			return
		}
		defer d.leave()
		d.savePipelineCache()
	})
}

// stop drops a save that is due.
func (f *cacheFile) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
}

// savePipelineCache writes the file whole, by renaming: readers see the old or the
// new one. What is on disk already is not written again. Failing to write is no
// error, the next run compiles again.
func (d *Device) savePipelineCache() {
	f := &d.pipelines.cache
	f.save.Lock()
	defer f.save.Unlock()
	if !f.dirty.Swap(false) || d.lost.Load() {
		return
	}
	var n C.size_t
	if r := C.vka_cache_data(d.c, C.uint64_t(f.handle), &n, nil); r != C.VK_SUCCESS || n == 0 {
		return
	}
	data := make([]byte, n)
	// A pipeline compiled in between gives VK_INCOMPLETE and a valid shorter cache.
	if r := C.vka_cache_data(d.c, C.uint64_t(f.handle), &n, (*C.uint8_t)(unsafe.Pointer(&data[0]))); r < 0 {
		return
	}
	file := formatCache(data[:n])
	if head := string(file[:cacheHead]); head != f.head && cachefile.Write(f.path, file) == nil {
		f.head = head
	}
}
