package plan

import (
	"context"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"vkattn/internal/problem"
	"vkattn/shaders"
	"vkattn/vk"
)

// Store holds the tuning results of a device that this process uses: the cache file as
// it was when first read, and the results of this process.
type Store struct {
	device tuningDevice
	caps   *vk.Caps
	Path   string // "": nothing is stored

	turn chan struct{} // capacity 1; full while a tuning runs

	mu      sync.RWMutex
	classes map[string]TuningEntry
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
	byPath map[string]*Store
}

// StoreOf finds or loads the store of a device.
func StoreOf(dev *vk.Device) *Store {
	d := TuningDeviceOf(dev.Info())
	path := filepath.Join(TuningDir(), d.File()) // without a cache folder it is only the key in stores
	stores.Lock()
	defer stores.Unlock()
	if s := stores.byPath[path]; s != nil {
		return s
	}
	s := newTuneStore(d, dev.Caps(), path)
	if TuningDir() == "" {
		s.Path = ""
	} else {
		s.load()
	}
	if stores.byPath == nil {
		stores.byPath = map[string]*Store{}
	}
	stores.byPath[path] = s
	return s
}

func newTuneStore(d tuningDevice, caps *vk.Caps, path string) *Store {
	return &Store{device: d, caps: caps, Path: path, turn: make(chan struct{}, 1),
		classes: map[string]TuningEntry{}, tiles: map[string]entryTile{}, now: map[string]bool{}, failed: map[string]string{}}
}

// TakeTurn waits until no other tuning of the device runs in this process.
func (s *Store) TakeTurn(ctx context.Context) (done func(), err error) {
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

func (s *Store) load() {
	classes, note := LoadTuning(s.Path, s.device)
	if classes != nil {
		s.classes = classes
	}
	s.note = note
}

// reader returns the tile of an entry, or the reason why it cannot be used. Only tiles of
// the table within the device's limits reach the driver, whatever the file says.
type reader func(e TuningEntry) (tile, string)

// forward is the reader for a variant of the forward kernels. The answer holds for every shape of
// the class: whether the tile fits the grid of one is for picked to check.
func (s *Store) forward(v Variant) reader {
	return func(e TuningEntry) (tile, string) { return e.tile(s.caps, v) }
}

func (e TuningEntry) tile(caps *vk.Caps, v Variant) (tile, string) {
	if e.SPIRV != v.SPIRV() {
		return nil, otherSPIRV
	}
	return tiling(caps, v, e.Tile)
}

// backward is the reader for a variant of the backward kernels.
func (s *Store) backward(v BackwardVariant) reader {
	return func(e TuningEntry) (tile, string) {
		if e.SPIRV != v.SPIRV() {
			return nil, otherSPIRV
		}
		return backwardTiling(&s.caps.Limits, v, e.Tile)
	}
}

const otherSPIRV = "it was tuned with other SPIR-V"

// Pick is the TilePicker of the store.
func (s *Store) Pick(v Variant, cfg problem.Config, r Request) (t tile, source string, notes []string) {
	return s.pick(ClassOf(v, cfg, r.Shape), s.forward(v))
}

// PickBackward is the BackwardPicker of the store.
func (s *Store) PickBackward(v BackwardVariant, cfg *problem.Config, r *BackwardRequest) (p BackwardPick) {
	if !v.Tunes() {
		return p
	}
	p.Tile, p.Source, p.Notes = s.pick(BackwardClassOf(&v, cfg, &r.Shape), s.backward(v))
	return p
}

// pick returns the tile of a class.
func (s *Store) pick(class string, read reader) (t tile, source string, notes []string) {
	s.mu.RLock()
	now, failed, note := s.now[class], s.failed[class], s.note
	s.mu.RUnlock()
	if note != "" {
		notes = append(notes, note)
	}
	if failed != "" {
		notes = append(notes, "not tuned: "+failed)
	}
	e, found := s.lookUp(class, read)
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
func (s *Store) lookUp(class string, read reader) (t entryTile, found bool) {
	s.mu.RLock()
	e, found := s.classes[class]
	t, done := s.tiles[class]
	s.mu.RUnlock()
	if !found || done {
		return t, found
	}
	t.tile, t.reason = read(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.classes[class] == e { // not tuned meanwhile
		s.tiles[class] = t
	}
	return t, true
}

// Known reports whether a class needs no tuning, because it has a usable tile or because
// an attempt failed in this process.
func (s *Store) Known(v Variant, cfg problem.Config, r Request) bool {
	class := ClassOf(v, cfg, r.Shape)
	s.mu.RLock()
	failed := s.failed[class]
	s.mu.RUnlock()
	e, found := s.lookUp(class, s.forward(v))
	return failed != "" || found && e.reason == ""
}

// Put makes a result the tile of its class and stores it in the cache file. If storing
// fails, put returns the error, and this process uses the result nevertheless.
func (s *Store) Put(class string, e TuningEntry) error {
	e.When = time.Now().UTC().Truncate(time.Second)
	s.mu.Lock()
	s.classes[class], s.now[class] = e, true
	delete(s.tiles, class)
	delete(s.failed, class)
	s.mu.Unlock()
	err := ErrNoCache
	if s.Path != "" {
		err = saveTuning(s.Path, s.device, map[string]TuningEntry{class: e}, Stale)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note = "" // a file that was ignored is replaced
	if err != nil {
		s.note = fmt.Sprintf("tuning is not stored: %v", err)
	}
	return err
}

// Stale reports whether an entry was tuned with other SPIR-V than this build's. The hash of
// the unrolled and of the rolled form of a module both count as this build's.
func Stale(class string, e TuningEntry) bool {
	name, _, _ := strings.Cut(class, " ")
	m, err := shaders.Get(name)
	if err != nil {
		return true
	}
	rolled := m.Rolled()
	return e.SPIRV != hex.EncodeToString(m.Hash[:]) && e.SPIRV != hex.EncodeToString(rolled.Hash[:])
}

// Fail records that a class cannot be tuned.
func (s *Store) Fail(class string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed[class] = strings.TrimPrefix(strings.TrimPrefix(why.Error(), "attention: "), "vk: ")
}
