package attention

import (
	"context"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"vkattn/shaders"
	"vkattn/vk"
)

// tuneStore is what this process knows of a device's tuning: the cache file as it
// was when first asked for, and what this process tuned since.
type tuneStore struct {
	device tuningDevice
	caps   *vk.Caps
	path   string // "": nothing is stored

	turn chan struct{} // has room for one: who tunes puts something in

	mu      sync.RWMutex
	classes map[string]tuningEntry
	now     map[string]bool      // classes tuned by this process
	tiles   map[string]entryTile // what entries came to
	failed  map[string]string    // classes that could not be tuned, and why
	note    string               // what is wrong with the file
}

// entryTile is the tile of an entry, or why it is of no use.
type entryTile struct {
	tile   tile
	reason string
}

// stores are the stores of this process by path, so that every Op on a device
// takes the same tiles.
var stores struct {
	sync.Mutex
	byPath map[string]*tuneStore
}

// storeOf finds or loads the store of a device.
func storeOf(dev *vk.Device) *tuneStore {
	d := tuningDeviceOf(dev.Info())
	path := filepath.Join(tuningDir(), d.file()) // without a folder still the key among stores
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

// takeTurn waits until nobody else times candidates on the device.
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
func (s *tuneStore) pick(v variant, cfg Config, r request) (t tile, source string, notes []string) {
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
		return e.tile, TileTuned, notes
	}
	return e.tile, TileCached, notes
}

// lookUp is the tile that a class was tuned to. The table is searched once for a
// class: decoding plans anew for every length.
func (s *tuneStore) lookUp(class string, v variant, shape Shape) (t entryTile, found bool) {
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

// tile is the entry's tile, or why it is of no use: nothing from a file reaches the
// driver that the table and the limits do not allow.
func (e tuningEntry) tile(caps *vk.Caps, v variant, s Shape) (tile, string) {
	if hash := v.spirv(); e.SPIRV != hash {
		return nil, "it was tuned with other SPIR-V"
	}
	return tiling(caps, v, e.Tile, s)
}

// known reports whether a class needs no tuning: there is a tile that can be used,
// or an attempt failed in this process.
func (s *tuneStore) known(v variant, cfg Config, r request) bool {
	class := classOf(v, cfg, r.shape)
	s.mu.RLock()
	failed := s.failed[class]
	s.mu.RUnlock()
	e, found := s.lookUp(class, v, r.shape)
	return failed != "" || found && e.reason == ""
}

// put takes a result into use, and stores it unless told not to. The error is that
// of storing; the result is in use all the same.
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
	s.note = "" // what was wrong with the file is replaced
	if err != nil {
		s.note = fmt.Sprintf("tuning is not stored: %v", err)
	}
	return err
}

// stale reports whether an entry is of other SPIR-V than this build's. A module of
// both forms, unrolled and rolled, is known by either hash.
func stale(class string, e tuningEntry) bool {
	name, _, _ := strings.Cut(class, " ")
	m, err := shaders.Get(name)
	if err != nil {
		return true
	}
	rolled := m.Rolled()
	return e.SPIRV != hex.EncodeToString(m.Hash[:]) && e.SPIRV != hex.EncodeToString(rolled.Hash[:])
}

// fail remembers that a class cannot be tuned.
func (s *tuneStore) fail(class string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed[class] = strings.TrimPrefix(strings.TrimPrefix(why.Error(), "attention: "), "vk: ")
}
