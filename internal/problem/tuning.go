package problem

import (
	"vkattn/internal/enum"
)

// Tuning selects how the tile of a kernel is chosen: how many query rows and keys a
// workgroup processes, and how it divides them. It changes speed, and the last bits of a
// result, because tiles sum in different orders.
//
// Only TuningOff guarantees the same bits for the same device, build and Config. With the
// others the tile also depends on the user's tuning cache, so the guarantee holds as long
// as nobody tunes. A process reads the cache once per device; results that other processes
// store do not affect it. An Op changes its tile for a class of shapes only by its own
// Tune, or with TuningOn before the first result of the class. The class depends on all
// sizes, so with tuned tiles a row's last bits may depend on its batch.
type Tuning uint8

// Tunings.
const (
	// TuningAuto uses the tile that the user's cache has for this device, driver, kernel
	// and class of shapes. Without one it uses the tile of TuningOff. It never times
	// anything.
	TuningAuto Tuning = iota
	// TuningOff uses the tile of a fixed table, which is the same on every machine with the
	// same kind of device.
	TuningOff
	// TuningOn is TuningAuto, and tunes a class of shapes on its first use if the cache does
	// not have it. The first Forward, Record or Prepare of the class then takes seconds, at
	// most about a minute, and device memory for a second set of tensors. The result is
	// stored. If tuning fails for lack of memory or time, the heuristic's tile is used and
	// the plan has a note. A lost device is an error.
	TuningOn
)

var tuningNames = []string{"auto", "off", "on"}

// Valid reports whether t is one of the named tunings.
func (t Tuning) Valid() bool { return int(t) < len(tuningNames) }

// String is "auto", "off" or "on".
func (t Tuning) String() string { return enum.Name("Tuning", tuningNames, uint8(t)) }

// ParseTuning reads what String writes, in any case. Another word is an error that
// lists the names and matches [ErrInvalid].
func ParseTuning(s string) (Tuning, error) { return enum.Parse[Tuning]("tuning", tuningNames, s) }

// Set makes *Tuning a flag.Value.
func (t *Tuning) Set(s string) error { return enum.Set(t, s, ParseTuning) }

// Type names the flag's kind, for flag packages that ask.
func (t Tuning) Type() string { return "tuning" }

// MarshalText writes String.
func (t Tuning) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is Set.
func (t *Tuning) UnmarshalText(text []byte) error { return t.Set(string(text)) }

// Sources of a tile, as Plan.Tuning names them.
const (
	TileHeuristic = "heuristic"    // the fixed table
	TileCached    = "tuned: cache" // tuned by an earlier process
	TileTuned     = "tuned now"    // tuned by this process
	TileNamed     = "named"        // named by Experiment.Tile or Experiment.BackwardTiles
)
