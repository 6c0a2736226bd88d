package problem

import (
	"vkattn/internal/enum"
)

// Tuning is attention.Tuning, whose comment documents it.
type Tuning uint8

// Tunings.
const (
	TuningAuto Tuning = iota
	TuningOff
	TuningOn
)

var tuningNames = []string{"auto", "off", "on"}

// Valid reports whether t is one of the named tunings.
func (t Tuning) Valid() bool { return int(t) < len(tuningNames) }

// String is "auto", "off" or "on".
func (t Tuning) String() string { return enum.Name("Tuning", tuningNames, uint8(t)) }

// ParseTuning is attention.ParseTuning.
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
