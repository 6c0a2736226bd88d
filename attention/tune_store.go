package attention

import (
	"context"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"vkattn/attention/problem"
	"vkattn/shaders"
	"vkattn/vk"
)

// tuneStore holds the tuning results of a device that this process uses: the cache file as
// it was when first read, and the results of this process.
type tuneStore struct {
	device tuningDevice
	caps   *vk.Caps
	path   string // "": nothing is stored

	turn chan struct{} // capacity 1; full while a tuning runs

	mu      sync.RWMutex
	classes map[string]tuningEntry
	now     map[string]bool      // classes tuned by this process
	tiles   map[string]entryTile // the tiles of entries that were looked up
	failed  map[string]string    // classes that could not be tuned, and why
	note    string               // why the file is ignored or not written
}

// entryTile is the tile of an entry, or the reason why it cannot be used.
type entryTile struct {
	tile   tile
	reason string
}

// stores holds the stores of this process by path, so that every Op on a device uses the
// same tiles.
var stores struct {
	sync.Mutex
	byPath map[string]*tuneStore
}

// storeOf finds or loads the store of a device.
func storeOf(dev *vk.Device) *tuneStore {
	d := tuningDeviceOf(dev.Info())
	path := filepath.Join(tuningDir(), d.file()) // without a cache folder it is only the key in stores
	stores.Lock()
	defer stores.Unlock()
	if s := stores.byPath[path]; s != nil {
		return s
	}
	s := newTuneStore(d, dev.Caps(), path)
	if tuningDir() == "" {
		s.path = ""
	} else {
		s.load()
	}
	if stores.byPath == nil {
		stores.byPath = map[string]*tuneStore{}
	}
	stores.byPath[path] = s
	return s
}

func newTuneStore(d tuningDevice, caps *vk.Caps, path string) *tuneStore {
	return &tuneStore{device: d, caps: caps, path: path, turn: make(chan struct{}, 1),
		classes: map[string]tuningEntry{}, tiles: map[string]entryTile{}, now: map[string]bool{}, failed: map[string]string{}}
}

// takeTurn waits until no other tuning of the device runs in this process.
func (s *tuneStore) takeTurn(ctx context.Context) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case s.turn <- struct{}{}:
		return func() { <-s.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *tuneStore) load() {
	classes, note := loadTuning(s.path, s.device)
	if classes != nil {
		s.classes = classes
	}
	s.note = note
}

// pick is the tilePicker of the store.
func (s *tuneStore) pick(v variant, cfg problem.Config, r request) (t tile, source string, notes []string) {
	class := classOf(v, cfg, r.shape)
	s.mu.RLock()
	now, failed, note := s.now[class], s.failed[class], s.note
	s.mu.RUnlock()
	if note != "" {
		notes = append(notes, note)
	}
	if failed != "" {
		notes = append(notes, "not tuned: "+failed)
	}
	e, found := s.lookUp(class, v, r.shape)
	switch {
	case !found:
		return t, "", notes
	case e.reason != "":
		return t, "", append(notes, "the tuned tile of this class is ignored: "+e.reason)
	case now:
		return e.tile, problem.TileTuned, notes
	}
	return e.tile, problem.TileCached, notes
}

// lookUp returns the tuned tile of a class. It searches the table once per class, since
// decode plans anew for every length.
func (s *tuneStore) lookUp(class string, v variant, shape problem.Shape) (t entryTile, found bool) {
	s.mu.RLock()
	e, found := s.classes[class]
	t, done := s.tiles[class]
	s.mu.RUnlock()
	if !found || done {
		return t, found
	}
	t.tile, t.reason = e.tile(s.caps, v, shape)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.classes[class] == e { // not tuned meanwhile
		s.tiles[class] = t
	}
	return t, true
}

// tile returns the entry's tile, or the reason why it cannot be used. Only tiles of the
// table within the device's limits reach the driver, whatever the file says.
func (e tuningEntry) tile(caps *vk.Caps, v variant, s problem.Shape) (tile, string) {
	if hash := v.spirv(); e.SPIRV != hash {
		return nil, "it was tuned with other SPIR-V"
	}
	return tiling(caps, v, e.Tile, s)
}

// known reports whether a class needs no tuning, because it has a usable tile or because
// an attempt failed in this process.
func (s *tuneStore) known(v variant, cfg problem.Config, r request) bool {
	class := classOf(v, cfg, r.shape)
	s.mu.RLock()
	failed := s.failed[class]
	s.mu.RUnlock()
	e, found := s.lookUp(class, v, r.shape)
	return failed != "" || found && e.reason == ""
}

// put makes a result the tile of its class and stores it in the cache file. If storing
// fails, put returns the error, and this process uses the result nevertheless.
func (s *tuneStore) put(class string, e tuningEntry) error {
	e.When = time.Now().UTC().Truncate(time.Second)
	s.mu.Lock()
	s.classes[class], s.now[class] = e, true
	delete(s.tiles, class)
	delete(s.failed, class)
	s.mu.Unlock()
	err := errNoCache
	if s.path != "" {
		err = saveTuning(s.path, s.device, map[string]tuningEntry{class: e}, stale)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note = "" // a file that was ignored is replaced
	if err != nil {
		s.note = fmt.Sprintf("tuning is not stored: %v", err)
	}
	return err
}

// stale reports whether an entry was tuned with other SPIR-V than this build's. The hash of
// the unrolled and of the rolled form of a module both count as this build's.
func stale(class string, e tuningEntry) bool {
	name, _, _ := strings.Cut(class, " ")
	m, err := shaders.Get(name)
	if err != nil {
		return true
	}
	rolled := m.Rolled()
	return e.SPIRV != hex.EncodeToString(m.Hash[:]) && e.SPIRV != hex.EncodeToString(rolled.Hash[:])
}

// fail records that a class cannot be tuned.
func (s *tuneStore) fail(class string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed[class] = strings.TrimPrefix(strings.TrimPrefix(why.Error(), "attention: "), "vk: ")
}
