package plan

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/internal/testfifo"
	"vkattn/vk"
)

// The tuning cache without a device: what the next process finds, and how bad files, entries
// of other SPIR-V and tiles over the limits are ignored.

var tuneDeviceInfo = tuningDevice{Name: "a GPU", UUID: "0102", Driver: "driver 1", DriverUUID: "0a", DriverVersion: 7}

// freshStore returns a store as another process would open it: it reads the file.
func freshStore(path string, caps *vk.Caps) *Store {
	s := newTuneStore(tuneDeviceInfo, caps, path)
	s.load()
	return s
}

// tuned writes a cache file in which a class has its second candidate.
func tuned(t *testing.T) (path string, caps *vk.Caps, v Variant, cfg problem.Config, r Request, entry TuningEntry) {
	t.Helper()
	caps, cfg = h200Caps(), problem.Config{HeadDim: 128}
	v, r = tuneProblem(t, caps, cfg, problem.TierCoopMat2, large)
	path = filepath.Join(t.TempDir(), "deep", tuneDeviceInfo.File())
	other := v
	for _, o := range Prune(caps, v, r, 4)[1:] {
		if o.Out == "" {
			other = o.V
			break
		}
	}
	require.NotEqual(t, v.Tile, other.Tile)
	entry = TuningEntry{SPIRV: v.SPIRV(), Tile: KeyOf(other.Tile), Name: other.Describe(), Ms: 1, HeuristicMs: 1.5, Shape: r.Shape.String()}
	s := freshStore(path, caps)
	require.NoError(t, s.Put(ClassOf(v, cfg, r.Shape), entry))
	got, source, notes := s.Pick(v, cfg, r)
	require.Equal(t, other.Tile, got)
	require.Equal(t, problem.TileTuned, source)
	require.Empty(t, notes)
	return path, caps, v, cfg, r, entry
}

func TestATunedTileIsFoundByTheNextProcess(t *testing.T) {
	path, caps, v, cfg, r, entry := tuned(t)
	got, source, notes := freshStore(path, caps).Pick(v, cfg, r)
	require.Equal(t, entry.Tile, KeyOf(got))
	require.Equal(t, problem.TileCached, source)
	require.Empty(t, notes)
	// After another tuning the new tile is used at once.
	s := freshStore(path, caps)
	_, _, _ = s.Pick(v, cfg, r)
	entry.Tile = KeyOf(v.Tile)
	require.NoError(t, s.Put(ClassOf(v, cfg, r.Shape), entry))
	got, source, _ = s.Pick(v, cfg, r)
	require.Equal(t, v.Tile, got)
	require.Equal(t, problem.TileTuned, source)
	// Another class still uses the heuristic's tile.
	cfg.Causal = problem.TopLeft
	_, source, notes = freshStore(path, caps).Pick(v, cfg, r)
	require.Empty(t, source)
	require.Empty(t, notes)
}

// A class has shapes of any length from 8192 on. The first to be planned may exceed the grid: the
// tile is still that of the others.
func TestAShapeOverTheGridDoesNotSpoilItsClass(t *testing.T) {
	path, caps, v, cfg, r, entry := tuned(t)
	r.Shape.Sq, r.Shape.Sk = 1<<14, 1<<14
	class := ClassOf(v, cfg, r.Shape)
	s := freshStore(path, caps)
	require.NoError(t, s.Put(class, entry))
	s = freshStore(path, caps)
	over := r
	over.Shape.Sq, over.Shape.Sk = problem.MaxLength, problem.MaxLength
	require.Equal(t, class, ClassOf(v, cfg, over.Shape))
	_, _, source, notes := picked(caps, s.Pick, v, 0, cfg, over)
	require.Equal(t, problem.TileHeuristic, source)
	require.Len(t, notes, 1)
	require.Contains(t, notes[0], "row blocks")
	got, _, source, notes := picked(caps, s.Pick, v, 0, cfg, r)
	require.Equal(t, problem.TileCached, source, notes)
	require.Equal(t, entry.Tile, KeyOf(got))
}

// A folder may have any name.
func TestTheNoteOfAnotherDriverTakesAnyFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[a-")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	other := filepath.Join(dir, tuneDeviceInfo.UUID+"-00000006.json")
	require.NoError(t, os.WriteFile(other, []byte("{}"), 0o600))
	_, note := LoadTuning(filepath.Join(dir, tuneDeviceInfo.File()), tuneDeviceInfo)
	require.Contains(t, note, other)
}

// Names in a file are the file's: a terminal must not obey them.
func TestNotesQuoteTheNamesOfAFile(t *testing.T) {
	for _, spoil := range []func(d *tuningDevice){func(d *tuningDevice) { d.UUID = "ff" }, func(d *tuningDevice) { d.DriverUUID = "ff" }} {
		path, caps, _, _, _, _ := tuned(t)
		edit(t, path, func(f *tuningFile) {
			f.Device.Name, f.Device.Driver = "a\x1b]0;b\n", "a\x1b]0;b\n"
			spoil(&f.Device)
		})
		note := freshStore(path, caps).note
		require.Contains(t, note, "ignored")
		require.NotContains(t, note, "\x1b")
		require.NotContains(t, note, "\n")
	}
}

// edit changes the file as a user or a fault would.
func edit(t *testing.T, path string, change func(f *tuningFile)) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var f tuningFile
	require.NoError(t, json.Unmarshal(data, &f))
	change(&f)
	data, err = json.Marshal(f)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, data, 0o644))
}

func editEntry(t *testing.T, path string, change func(e *TuningEntry)) {
	edit(t, path, func(f *tuningFile) {
		for class, e := range f.Classes {
			change(&e)
			f.Classes[class] = e
		}
	})
}

// If the file is bad, the heuristic's tile runs and a note says why.
func TestABadCacheIsIgnoredWithANote(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, path string)
		note  string
	}{
		"empty":     {func(t *testing.T, p string) { require.NoError(t, os.WriteFile(p, nil, 0o644)) }, "damaged"},
		"noise":     {func(t *testing.T, p string) { require.NoError(t, os.WriteFile(p, []byte("\x00\xff{"), 0o644)) }, "damaged"},
		"another":   {func(t *testing.T, p string) { require.NoError(t, os.WriteFile(p, []byte(`[1, 2]`), 0o644)) }, "damaged"},
		"truncated": {func(t *testing.T, p string) { require.NoError(t, os.Truncate(p, 300)) }, "damaged"},
		"a folder": {func(t *testing.T, p string) {
			require.NoError(t, os.Remove(p))
			require.NoError(t, os.Mkdir(p, 0o755))
		}, "ignored"},
		"a named pipe": {func(t *testing.T, p string) {
			require.NoError(t, os.Remove(p))
			testfifo.Make(t, p, 0o600)
		}, "is a pipe, not a regular file"},
		"a device": {func(t *testing.T, p string) {
			require.NoError(t, os.Remove(p))
			require.NoError(t, os.Symlink("/dev/zero", p))
		}, "is a device, not a regular file"},
		"huge": {func(t *testing.T, p string) { require.NoError(t, os.Truncate(p, TuningMost+1)) }, "bytes, more than"},
		"older format": {func(t *testing.T, p string) {
			edit(t, p, func(f *tuningFile) { f.Format = 1 })
		}, "format 1, this build reads 2"},
		"newer format": {func(t *testing.T, p string) {
			edit(t, p, func(f *tuningFile) { f.Format = 3 })
		}, "format 3"},
		"another device": {func(t *testing.T, p string) {
			edit(t, p, func(f *tuningFile) { f.Device.UUID = "ff" })
		}, "another device"},
		"another driver": {func(t *testing.T, p string) {
			edit(t, p, func(f *tuningFile) { f.Device.DriverVersion++ })
		}, `another driver ("driver 1")`},
		"another build of the driver": {func(t *testing.T, p string) {
			edit(t, p, func(f *tuningFile) { f.Device.DriverUUID = "ff" })
		}, "another driver"},
		"the driver was updated": {func(t *testing.T, p string) {
			require.NoError(t, os.Rename(p, filepath.Join(filepath.Dir(p), tuneDeviceInfo.UUID+"-00000006.json")))
		}, "another driver version"},
		"another kernel": {func(t *testing.T, p string) {
			editEntry(t, p, func(e *TuningEntry) { e.SPIRV = "00" })
		}, "other SPIR-V"},
		"a tile of nobody": {func(t *testing.T, p string) {
			editEntry(t, p, func(e *TuningEntry) { e.Tile = `{"subgroups":1,"kv_tile":1}` })
		}, "not in the table"},
		"no tile": {func(t *testing.T, p string) {
			editEntry(t, p, func(e *TuningEntry) { *e = TuningEntry{SPIRV: e.SPIRV} })
		}, "not in the table"},
		"a number changed": {func(t *testing.T, p string) {
			editEntry(t, p, func(e *TuningEntry) {
				e.Tile = tileKey(strings.Replace(string(e.Tile), `"kv_tile":`, `"kv_tile":1`, 1))
			})
		}, "not in the table"},
	} {
		t.Run(name, func(t *testing.T) {
			path, caps, v, cfg, r, entry := tuned(t)
			c.spoil(t, path)
			s := freshStore(path, caps)
			_, source, notes := s.Pick(v, cfg, r)
			require.Empty(t, source)
			require.Len(t, notes, 1)
			require.Contains(t, notes[0], c.note)
			require.False(t, s.Known(v, cfg, r), "worth tuning again")
			if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
				require.Error(t, s.Put(ClassOf(v, cfg, r.Shape), entry))
				return
			}
			// The next tuning replaces the bad file or entry.
			require.NoError(t, s.Put(ClassOf(v, cfg, r.Shape), entry))
			_, source, notes = freshStore(path, caps).Pick(v, cfg, r)
			require.Equal(t, problem.TileCached, source)
			require.Empty(t, notes)
		})
	}
}

// A tile that is in the table but over this device's limits, edited into the file, must
// not reach the driver: the device would be lost.
func TestAnEditedTileOverTheLimitsIsRefused(t *testing.T) {
	path, caps, v, cfg, r, _ := tuned(t)
	var over Variant
	for _, x := range Tilings(v) {
		w := v
		w.Tile = x
		if shared, err := w.sharedBytes(); err == nil && shared > uint64(caps.Limits.MaxSharedBytes) && x.LocalSize() <= 256 {
			over = w
		}
	}
	require.NotZero(t, over.Tile)
	editEntry(t, path, func(e *TuningEntry) { e.Tile = KeyOf(over.Tile) })
	_, source, notes := freshStore(path, caps).Pick(v, cfg, r)
	require.Empty(t, source)
	require.Contains(t, notes[0], "shared memory, the device has 49152")

	many := v
	wide := many.Tile.(coopmatTile)
	wide.Subgroups = 16
	many.Tile = wide
	caps.Limits.MaxInvocations = 256
	editEntry(t, path, func(e *TuningEntry) { e.Tile = KeyOf(many.Tile) })
	_, source, notes = freshStore(path, caps).Pick(v, cfg, r)
	require.Empty(t, source)
	require.Contains(t, notes[0], "512 invocations, the device has 256")
}

func TestProcessesAddToOneFile(t *testing.T) {
	path, caps, v, _, r, entry := tuned(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			cfg := problem.Config{HeadDim: 128, Causal: problem.Causal(i % 3)}
			shape := r.Shape
			shape.Sq = 1 << i
			assert.NoError(t, freshStore(path, caps).Put(ClassOf(v, cfg, shape), entry))
		})
	}
	wg.Wait()
	classes, note := LoadTuning(path, tuneDeviceInfo)
	require.Empty(t, note)
	require.Len(t, classes, 16, "one class is the first again")
	// The next update drops entries of kernels that no longer exist.
	edit(t, path, func(f *tuningFile) {
		f.Classes["gone f16 d64/64"] = entry
		f.Classes["scalar_ssbo f32 old"] = TuningEntry{SPIRV: "00"}
	})
	require.NoError(t, freshStore(path, caps).Put("coopmat2_f16_ssbo another", entry))
	classes, _ = LoadTuning(path, tuneDeviceInfo)
	require.Len(t, classes, 17)
	require.NotContains(t, classes, "gone f16 d64/64")
}

// A process keeps its tiles, even if another process stores others meanwhile.
func TestAProcessReadsTheCacheOnce(t *testing.T) {
	path, caps, v, cfg, r, entry := tuned(t)
	here := freshStore(path, caps)
	there := freshStore(path, caps)
	entry.Tile = KeyOf(v.Tile)
	require.NoError(t, there.Put(ClassOf(v, cfg, r.Shape), entry))
	got, source, _ := here.Pick(v, cfg, r)
	require.NotEqual(t, v.Tile, got)
	require.Equal(t, problem.TileCached, source)
	got, _, _ = there.Pick(v, cfg, r)
	require.Equal(t, v.Tile, got)
}

func TestAnUnwritableFolderCostsTheTuning(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	caps, cfg := h200Caps(), problem.Config{HeadDim: 128}
	v, r := tuneProblem(t, caps, cfg, problem.TierCoopMat2, large)
	for _, path := range []string{filepath.Join(file, "x.json"), ""} {
		s := newTuneStore(tuneDeviceInfo, caps, path)
		require.Error(t, s.Put(ClassOf(v, cfg, r.Shape), TuningEntry{SPIRV: v.SPIRV(), Tile: KeyOf(v.Tile)}), "%q", path)
		_, source, notes := s.Pick(v, cfg, r)
		require.Equal(t, problem.TileTuned, source, "this process uses it nevertheless")
		require.Len(t, notes, 1)
		require.Contains(t, notes[0], "not stored")
	}
}

func TestStoresAreUsedByManyGoroutines(t *testing.T) {
	path, caps, v, cfg, r, entry := tuned(t)
	s := freshStore(path, caps)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				_, _, _ = s.Pick(v, cfg, r)
				s.Known(v, cfg, r)
			}
			s.Fail(fmt.Sprint(i), fmt.Errorf("attention: no"))
			assert.NoError(t, s.Put(fmt.Sprintf("coopmat2_f16_ssbo %d", i), entry))
		})
	}
	wg.Wait()
	_, source, _ := s.Pick(v, cfg, r)
	require.Equal(t, problem.TileCached, source)
	s.Fail(ClassOf(v, cfg, r.Shape), fmt.Errorf("vk: no room"))
	_, _, notes := s.Pick(v, cfg, r)
	require.Equal(t, []string{"not tuned: no room"}, notes)
}

func TestTheCacheFolder(t *testing.T) {
	t.Setenv(vk.CacheDirEnv, "/x")
	require.Equal(t, "/x/tuning-v2", TuningDir())
	t.Setenv(vk.CacheDirEnv, "off")
	require.Empty(t, TuningDir())
	require.Equal(t, "0102-00000007.json", tuneDeviceInfo.File())
}
