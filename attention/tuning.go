package attention

// Tuning says how the tile of a kernel is chosen: how many query rows and keys a
// workgroup works on, and how it divides them. It changes speed, and the last bits
// of a result, since tiles add in different orders.
//
// The promise "same device, same build, same Config: the same bits" holds without
// more for TuningOff alone. With the others the tile also depends on the user's
// tuning cache: it holds for as long as nobody tunes. A process reads the cache
// once for each device, so nothing another process stores changes its results; an
// Op changes its tile for a class of shapes only by its own Tune, or with
// TuningOn before the class's first result. The class depends on all sizes, so
// that with tuned tiles a row's last bits may depend on the batch it is in.
type Tuning uint8

// Tunings.
const (
	// TuningAuto takes the tile that was tuned for this device, driver, kernel and
	// class of shapes where the user's cache has one, and otherwise the one that
	// TuningOff takes. It never times anything by itself.
	TuningAuto Tuning = iota
	// TuningOff takes the tile of a fixed table: the same on every machine with
	// the same kind of device.
	TuningOff
	// TuningOn is TuningAuto, and times the candidates when a class of shapes is
	// first used that the cache does not have: the first Forward, Record or Prepare
	// of the class then takes seconds, at most about a minute, and device memory for
	// a second set of tensors. What it finds is stored. Where tuning fails for want
	// of memory or time, the heuristic's tile is taken and the plan has a note; a
	// lost device is an error.
	TuningOn
)

var tuningNames = []string{"auto", "off", "on"}

// Valid reports whether t is one of the named tunings.
func (t Tuning) Valid() bool { return int(t) < len(tuningNames) }

// String is "auto", "off" or "on".
func (t Tuning) String() string { return nameOf("Tuning", tuningNames, uint8(t)) }

// ParseTuning reads what String writes, in any case. Another word is an error that
// lists the names and matches [ErrInvalid].
func ParseTuning(s string) (Tuning, error) {
	v, err := parseName("tuning", tuningNames, s)
	return Tuning(v), err
}

// Set makes *Tuning a flag.Value.
func (t *Tuning) Set(s string) error {
	v, err := ParseTuning(s)
	if err == nil {
		*t = v
	}
	return err
}

// Type names the flag's kind, for flag packages that ask.
func (t Tuning) Type() string { return "tuning" }

// MarshalText writes String.
func (t Tuning) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is Set.
func (t *Tuning) UnmarshalText(text []byte) error { return t.Set(string(text)) }

// Where the tile of a Plan is from, as Plan.Tuning says it.
const (
	TileHeuristic = "heuristic"    // the fixed table
	TileCached    = "tuned: cache" // tuned by an earlier process
	TileTuned     = "tuned now"    // tuned by this process
)
