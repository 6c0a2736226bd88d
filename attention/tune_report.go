package attention

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"vkattn/internal/cachefile"
	"vkattn/internal/errs"
	"vkattn/internal/plan"
	"vkattn/vk"
)

// TuneReport is the result of a tuning.
type TuneReport struct {
	Class     string  `json:"class"`             // the class of shapes that share the result
	Shape     Shape   `json:"shape"`             // the shape that was timed; large ones are timed with fewer batches
	Config    Config  `json:"-"`                 // with the tier that was tuned
	Tier      Tier    `json:"tier"`              //
	Kernel    string  `json:"kernel"`            // name of the SPIR-V module
	Outputs   string  `json:"outputs,omitempty"` // of a backward kernel: "dQ" or "dK dV"
	Winner    string  `json:"winner"`
	Heuristic string  `json:"heuristic"`
	Gain      float64 `json:"gain"` // time of the heuristic's tile over the winner's; 0 if nothing was timed
	// Source is the source of the tile of new plans, as in Plan.Tuning.
	Source     string          `json:"source"`
	Candidates []TuneCandidate `json:"candidates"` // the winner first, then by time, then those not timed
	Stored     string          `json:"stored"`     // the cache file; empty if nothing was stored
	Notes      []string        `json:"notes,omitempty"`
	Seconds    float64         `json:"seconds"`
}

// TuneCandidate is one tile of the table.
type TuneCandidate struct {
	Tile        string     `json:"tile"`
	Status      TuneStatus `json:"status"`
	Reason      string     `json:"reason,omitempty"` // why it was not timed to the end
	Heuristic   bool       `json:"heuristic,omitempty"`
	Winner      bool       `json:"winner,omitempty"`
	SharedBytes uint64     `json:"shared_bytes"`        // per workgroup; 0 for pruned candidates
	Estimate    int        `json:"registers_estimated"` // per invocation
	// Statistics of the driver's compiler; 0 if it reports none (see vk.Options.Stats).
	Registers   int     `json:"registers,omitempty"`
	SpillBytes  int     `json:"spill_bytes,omitempty"`        // per invocation
	SpillShared int     `json:"spill_shared_bytes,omitempty"` // of SpillBytes, in shared memory that the kernel leaves unused
	CompileMs   float64 `json:"compile_ms,omitempty"`
	Ms          float64 `json:"ms,omitempty"`   // median of its last round
	Runs        int     `json:"runs,omitempty"` // timed, in all rounds
	TFLOPs      float64 `json:"tflops,omitempty"`
}

// TuneStatus is the stage at which a candidate ended.
type TuneStatus string

// Statuses, in the order in which they can end a candidate.
const (
	TunePruned   TuneStatus = "pruned"   // not compiled, because of limits, shape or estimates
	TuneUntried  TuneStatus = "untried"  // no time was left, or nothing was to be timed
	TuneFailed   TuneStatus = "failed"   // the driver refused it, or it could not run
	TuneSpills   TuneStatus = "spills"   // it spills registers, and others do not
	TuneWrong    TuneStatus = "wrong"    // its result differs from the result of the heuristic's tile
	TuneTimed    TuneStatus = "timed"    // and beaten
	TuneFinalist TuneStatus = "finalist" // timed in the last round
)

// TuningCache is the content of a device's tuning cache, and its path.
type TuningCache struct {
	Device  string       `json:"device,omitempty"` // its name
	Driver  string       `json:"driver,omitempty"`
	Path    string       `json:"path"`
	Note    string       `json:"note,omitempty"` // why the file is ignored
	Classes []TunedClass `json:"classes"`
}

// TunedClass is one entry of the cache.
type TunedClass struct {
	Class string    `json:"class"`
	Tile  string    `json:"tile"`
	Ms    float64   `json:"ms"`
	Gain  float64   `json:"gain"` // time of the heuristic's tile over Ms
	Shape string    `json:"shape"`
	When  time.Time `json:"when"`
	Stale bool      `json:"stale,omitempty"` // tuned with other SPIR-V than this build's
}

// ReadTuningCache reads the current cache file of a device; classes are sorted by name. It
// returns an error if dev is nil or if there is no cache folder (see vk.CacheDir).
func ReadTuningCache(dev *vk.Device) (TuningCache, error) {
	if dev == nil {
		return TuningCache{}, errs.Invalid("ReadTuningCache: no device")
	}
	d := plan.TuningDeviceOf(dev.Info())
	c := TuningCache{Device: d.Name, Driver: d.Driver, Classes: []TunedClass{}}
	dir := plan.TuningDir()
	if dir == "" {
		return c, fmt.Errorf("attention: %w", plan.ErrNoCache)
	}
	c.Path = filepath.Join(dir, d.File())
	classes, note := plan.LoadTuning(c.Path, d)
	c.Note = note
	c.add(classes)
	return c, nil
}

// ReadTuningCaches reads the cache files of all devices and driver versions; they are sorted by path,
// and their classes by name. It needs no device. It returns the folder of the files, and an error if
// there is no cache folder or if it cannot be read.
func ReadTuningCaches() (folder string, list []TuningCache, err error) {
	if folder = plan.TuningDir(); folder == "" {
		return "", nil, fmt.Errorf("attention: %w", plan.ErrNoCache)
	}
	paths, err := plan.TuningFiles(folder)
	if err != nil {
		return folder, nil, fmt.Errorf("attention: tuning cache: %w", err)
	}
	for _, path := range paths {
		d, classes, note := plan.LoadTuningOf(path)
		c := TuningCache{Device: d.Name, Driver: d.Driver, Path: path, Note: note, Classes: []TunedClass{}}
		c.add(classes)
		list = append(list, c)
	}
	return folder, list, nil
}

// add adds the entries of a file.
func (c *TuningCache) add(classes map[string]plan.TuningEntry) {
	for _, class := range slices.Sorted(maps.Keys(classes)) {
		e := classes[class]
		c.Classes = append(c.Classes, TunedClass{Class: class, Tile: e.Name, Ms: e.Ms, Gain: ratio(e.HeuristicMs, e.Ms),
			Shape: e.Shape, When: e.When, Stale: plan.Stale(class, e)})
	}
}

// ClearTuningCache removes the cache file of a device, if there is one, and returns its
// path. Operations of this process keep the entries that they have read. It returns an
// error if dev is nil, if there is no cache folder, or if the file cannot be removed.
func ClearTuningCache(dev *vk.Device) (string, error) {
	if dev == nil {
		return "", errs.Invalid("ClearTuningCache: no device")
	}
	dir := plan.TuningDir()
	if dir == "" {
		return "", fmt.Errorf("attention: %w", plan.ErrNoCache)
	}
	path := filepath.Join(dir, plan.TuningDeviceOf(dev.Info()).File())
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	if err := cachefile.Update(path, plan.TuningMost, func([]byte) ([]byte, error) { return nil, nil }); err != nil {
		return path, fmt.Errorf("attention: tuning cache: %w", err)
	}
	return path, nil
}

func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// order sorts the candidates: the winner first, then by status from TuneFinalist to
// TunePruned, by time within a status, and otherwise in the order in which they were judged.
func (r *TuneReport) order() {
	rank := map[TuneStatus]int{TuneFinalist: 0, TuneTimed: 1, TuneWrong: 2, TuneSpills: 3, TuneFailed: 4, TuneUntried: 5, TunePruned: 6}
	slices.SortStableFunc(r.Candidates, func(a, b TuneCandidate) int {
		if a.Winner != b.Winner {
			if a.Winner {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(rank[a.Status], rank[b.Status]), cmp.Compare(a.Ms, b.Ms))
	})
}
