// Package monitor reads clocks, power, temperature and throttle reasons of a GPU while
// rows of a benchmark are timed.
package monitor

import (
	"encoding/json"
	"fmt"
	"strings"
)

// GPU is a source of readings. One goroutine at a time calls it.
type GPU interface {
	Read() Reading
	Close()
}

// Reading is the state of a GPU at one time.
type Reading struct {
	SMMHz      uint32   `json:"sm_mhz"`
	MaxSMMHz   uint32   `json:"sm_max_mhz,omitzero"` // the highest that the GPU supports
	MemoryMHz  uint32   `json:"memory_mhz"`
	PowerWatts float64  `json:"power_watts"`
	LimitWatts float64  `json:"power_limit_watts,omitzero"`
	Celsius    uint32   `json:"celsius"`
	Throttle   Throttle `json:"throttle,omitzero"`
}

// Throttle is a set of reasons for clocks below the maximum, in NVML's bits.
type Throttle uint64

// The reasons. Idle and Applications do not slow down work at unexpected times.
const (
	Idle         Throttle = 1 << iota
	Applications          // clocks set by the user
	PowerCap
	HardwareSlowdown
	SyncBoost
	Thermal
	HardwareThermal
	PowerBrake
	Display
)

var throttleNames = []string{"idle", "application clocks", "power cap", "hardware slowdown", "sync boost", "thermal",
	"hardware thermal", "power brake", "display clocks"}

// Slows reports the reasons for which work may be slower than without them.
func (t Throttle) Slows() Throttle { return t &^ (Idle | Applications | Display) }

// Names lists the reasons. Unknown bits are one hexadecimal number.
func (t Throttle) Names() []string {
	names := []string{}
	for i, name := range throttleNames {
		if t&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if rest := t >> len(throttleNames) << len(throttleNames); rest != 0 {
		names = append(names, fmt.Sprintf("%#x", uint64(rest)))
	}
	return names
}

func (t Throttle) String() string { return strings.Join(t.Names(), ", ") }

// MarshalJSON writes the list of names.
func (t Throttle) MarshalJSON() ([]byte, error) { return json.Marshal(t.Names()) }

// UnmarshalJSON reads what MarshalJSON writes.
func (t *Throttle) UnmarshalJSON(text []byte) error {
	var names []string
	if err := json.Unmarshal(text, &names); err != nil {
		return err
	}
	*t = 0
next:
	for _, name := range names {
		for i, known := range throttleNames {
			if name == known {
				*t |= 1 << i
				continue next
			}
		}
		var bits uint64
		if _, err := fmt.Sscanf(name, "0x%x", &bits); err != nil {
			return fmt.Errorf("unknown throttle reason %q", name)
		}
		*t |= Throttle(bits)
	}
	return nil
}
