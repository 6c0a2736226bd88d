package vk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"vkattn/internal/cachefile"
)

// cacheMagic begins a cache file; the digit is the version of the format. The SHA-256 of
// the data, its length in 8 bytes and the data follow. The hash is needed because drivers
// check only the header of their data, and some crash on damage after it.
const cacheMagic = "vkattn pipelines 1\n"

const cacheHead = len(cacheMagic) + sha256.Size + 8

// maxCacheBytes bounds the size of a cache that is read. Drivers never drop pipelines from
// it, not even pipelines of older kernels. Above this size an empty cache is faster.
const maxCacheBytes = 64 << 20

// saveDelay is the time from a compilation to writing the file, which then has all
// pipelines compiled in between. Close writes the rest.
const saveDelay = 2 * time.Second

// cacheFile is a VkPipelineCache with its file.
type cacheFile struct {
	handle uint64
	path   string // "": nowhere
	note   string // why the file could not be read, if the user should know
	delay  time.Duration

	dirty atomic.Bool // something was compiled since the last save
	mu    sync.Mutex  // guards timer
	timer *time.Timer // nil: no save is due
	save  sync.Mutex  // guards head; one save at a time
	head  string      // of the file as last read or written
}

// loadPipelineCache creates the pipeline cache from its file. A file that is missing,
// damaged or of another driver counts as empty. A file that cannot be read leaves a note.
func (d *Device) loadPipelineCache(dir string) {
	f := &d.pipelines.cache
	f.delay = saveDelay
	var data []byte
	dir = pipelineCacheDir(dir)
	if dir != "" {
		f.path = filepath.Join(dir, fmt.Sprintf("%x-%08x-%x.bin", d.info.UUID, d.info.DriverVersion, d.info.pipelineCacheUUID))
		var err error
		if f.head, data, err = readCache(f.path); err != nil {
			f.note = fmt.Sprintf("pipeline cache %s ignored: %v", f.path, err)
		}
	}
	if d.createCache(data) != nil && data != nil {
		_ = d.createCache(nil) // the driver refused the data; if this fails too, nothing is cached
	}
}

// pipelineCacheDir is the folder of Options.PipelineCache, "" for none.
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
	return d.check("vkCreatePipelineCache", hostCreateCache(d.c, data, &d.pipelines.cache.handle))
}

// PipelineCacheNote says why the pipeline cache file of the device could not be read, so
// that pipelines are compiled again. It is "" if the file was read or does not exist.
func (d *Device) PipelineCacheNote() string {
	if d == nil {
		return ""
	}
	return d.pipelines.cache.note
}

// readCache reads a file. A missing or damaged file is no error: the next save replaces
// it.
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

// compiledOne schedules a save after a compilation: the process may end without Close.
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

// stop cancels a scheduled save.
func (f *cacheFile) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
}

// savePipelineCache writes the file under another name and renames it, so that readers see
// the old or the new one. It does not write data that is on disk already. A failure is no
// error: the next run compiles again.
func (d *Device) savePipelineCache() {
	f := &d.pipelines.cache
	f.save.Lock()
	defer f.save.Unlock()
	if !f.dirty.Swap(false) || d.lost.Load() {
		return
	}
	data := hostCacheData(d.c, f.handle)
	if data == nil {
		return
	}
	file := formatCache(data)
	if head := string(file[:cacheHead]); head != f.head && cachefile.Write(f.path, file) == nil {
		f.head = head
	}
}

// CacheDirEnv is the environment variable that sets CacheDir.
const CacheDirEnv = "VKATTN_CACHE_DIR"

// CacheDir is the folder for caches that can be rebuilt: compiled pipelines in its folder
// "pipelines", tuning results in "tuning-v2". It is the environment variable
// VKATTN_CACHE_DIR, or else "vkattn" in the user's cache folder. CacheDir returns "" if
// nothing may be cached: VKATTN_CACHE_DIR is empty or "off", or the user has no cache
// folder. The folder need not exist; writers create it and go on without a cache if they
// cannot.
func CacheDir() string {
	if dir, set := os.LookupEnv(CacheDirEnv); set {
		if dir == "off" {
			return ""
		}
		return dir
	}
	base, err := os.UserCacheDir()
	if err != nil || !filepath.IsAbs(base) { // a relative HOME would put the cache where the process runs
		return ""
	}
	return filepath.Join(base, "vkattn")
}
