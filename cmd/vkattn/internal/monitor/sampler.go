// Package monitor reads clocks, power, temperature and throttle reasons of a GPU while
// rows of a benchmark are timed.
package monitor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Interval is the time between two readings.
const Interval = 10 * time.Millisecond

// Series summarizes the readings during the timed runs of one row.
type Series struct {
	Readings      int      `json:"readings"`
	SMMHzMin      uint32   `json:"sm_mhz_min"`
	SMMHzMean     float64  `json:"sm_mhz_mean"`
	SMMHzMax      uint32   `json:"sm_mhz_max"`
	MemoryMHzMin  uint32   `json:"memory_mhz_min"`
	MemoryMHzMax  uint32   `json:"memory_mhz_max"`
	PowerMean     float64  `json:"power_watts_mean"`
	PowerMax      float64  `json:"power_watts_max"`
	CelsiusMax    uint32   `json:"celsius_max"`
	Throttle      Throttle `json:"throttle,omitzero"` // every reason of any reading
	ThrottleShare float64  `json:"throttle_share"`    // of readings with a reason that slows down work
}

func (s *Series) add(r Reading) {
	if s.Readings == 0 {
		s.SMMHzMin, s.MemoryMHzMin = r.SMMHz, r.MemoryMHz
	}
	s.SMMHzMin, s.SMMHzMax = min(s.SMMHzMin, r.SMMHz), max(s.SMMHzMax, r.SMMHz)
	s.MemoryMHzMin, s.MemoryMHzMax = min(s.MemoryMHzMin, r.MemoryMHz), max(s.MemoryMHzMax, r.MemoryMHz)
	s.PowerMax, s.CelsiusMax = max(s.PowerMax, r.PowerWatts), max(s.CelsiusMax, r.Celsius)
	s.Throttle |= r.Throttle
	slow := 0.0
	if r.Throttle.Slows() != 0 {
		slow = 1
	}
	n := float64(s.Readings)
	s.SMMHzMean = (s.SMMHzMean*n + float64(r.SMMHz)) / (n + 1)
	s.PowerMean = (s.PowerMean*n + r.PowerWatts) / (n + 1)
	s.ThrottleShare = (s.ThrottleShare*n + slow) / (n + 1)
	s.Readings++
}

// Record is the state of the GPU before, during and after the timed runs of one row. Runs
// of other rows that take turns with it are not in it.
type Record struct {
	Before Reading `json:"before"`
	During Series  `json:"during"`
	After  Reading `json:"after"`

	begun bool
}

// steady is the share of the highest SM clock of a row below which its lowest makes the row
// unsteady.
const steady = 0.97

// Unsteady says why the times of a row may not be reproducible: the GPU was throttled, its
// clock changed, or it had the low clock of an idle GPU. It is empty if nothing of this
// happened.
func (r *Record) Unsteady() string {
	var why []string
	if slow := r.During.Throttle.Slows(); slow != 0 {
		why = append(why, fmt.Sprintf("%v in %.0f %% of the readings", slow, 100*r.During.ThrottleShare))
	}
	d, highest := r.During, max(r.Before.MaxSMMHz, r.After.MaxSMMHz)
	if float64(d.SMMHzMin) < steady*float64(d.SMMHzMax) {
		why = append(why, fmt.Sprintf("SM clock %d to %d MHz", d.SMMHzMin, d.SMMHzMax))
	}
	if d.Throttle == Idle && d.SMMHzMean < lowShare*float64(highest) {
		why = append(why, fmt.Sprintf("idle SM clock: %.0f of %d MHz", d.SMMHzMean, highest))
	}
	return strings.Join(why, "; ")
}

// Sampler reads a GPU in intervals. A nil Sampler has no GPU: its methods do nothing.
type Sampler struct {
	mu   sync.Mutex
	gpu  GPU
	csv  io.Writer // nil: the series is not written
	err  error     // the first of csv
	into *Record   // of the row whose runs are being timed
	name string
	rise *Rise // of the warm-up that goes on

	stop chan struct{}
	done sync.WaitGroup
}

// Start begins to read gpu every interval until Close. The readings are written to csv, if
// it is not nil. For a nil gpu it returns nil.
func Start(gpu GPU, csv io.Writer, interval time.Duration) *Sampler {
	if gpu == nil {
		return nil
	}
	s := &Sampler{gpu: gpu, csv: csv, stop: make(chan struct{})}
	s.done.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-s.stop:
				return
			case <-tick.C:
				s.mu.Lock()
				s.read()
				s.mu.Unlock()
			}
		}
	})
	return s
}

// read takes one reading. The caller holds the mutex.
func (s *Sampler) read() Reading {
	r := s.gpu.Read()
	if s.into != nil {
		s.into.During.add(r)
	}
	if s.rise != nil {
		s.rise.add(r)
	}
	if s.csv != nil && s.err == nil {
		s.err = writeReading(s.csv, time.Now(), r, s.name)
	}
	return r
}

// Begin adds the readings until End to the record of a row with this name.
func (s *Sampler) Begin(r *Record, name string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rise = nil
	if !r.begun {
		r.begun, r.Before = true, s.read()
	}
	s.into, s.name = r, name
}

// End ends what Begin began. A run shorter than the interval has at least one reading.
func (s *Sampler) End() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.into == nil {
		return
	}
	into := s.into
	if into.During.Readings > 0 {
		s.into = nil // the reading after the runs is not one of theirs
	}
	into.After = s.read()
	s.into, s.name = nil, ""
}

// Close ends the readings and returns the first error of writing them. It closes the GPU.
func (s *Sampler) Close() error {
	if s == nil {
		return nil
	}
	close(s.stop)
	s.done.Wait()
	s.gpu.Close()
	return s.err
}

// CSVHeader is the first line of a series, with nvidia-smi's names of the columns.
const CSVHeader = "timestamp, clocks.sm [MHz], clocks.max.sm [MHz], clocks.mem [MHz], temperature.gpu, power.draw [W], power.limit [W], clocks_throttle_reasons.active, row\n"

func writeReading(w io.Writer, at time.Time, r Reading, name string) error {
	if strings.ContainsAny(name, `,"`) {
		name = `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
	}
	_, err := fmt.Fprintf(w, "%s, %d, %d, %d, %d, %.2f, %.2f, 0x%016x, %s\n", at.Format("2006/01/02 15:04:05.000"),
		r.SMMHz, r.MaxSMMHz, r.MemoryMHz, r.Celsius, r.PowerWatts, r.LimitWatts, uint64(r.Throttle), name)
	return err
}

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

// An idle H200 lowers its SM clock to 345 MHz within seconds, for example while the CPU
// verifies a row, and raises it only after 0.3 to 2 s of work. Rows that were timed before
// that took five times as long.
const (
	upShare  = 0.9 // of the highest clock of the GPU: the clock is up
	flatFor  = 30  // readings without a rise after which a clock that something limits is as high as it gets
	lowShare = 0.8 // of the highest clock of the GPU, below which an idle clock makes a row unsteady
)

// Rise follows the SM clock during a warm-up. Its zero value and nil have seen nothing.
type Rise struct {
	mu      sync.Mutex
	high    int    // readings in a row with the clock up
	highest uint32 // MHz
	flat    int    // readings since the last rise whose clock is not low because the GPU idles
	unknown bool   // the GPU does not tell its clocks
}

func (r *Rise) add(x Reading) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x.SMMHz == 0 || x.MaxSMMHz == 0 {
		r.unknown = true
		return
	}
	switch {
	case float64(x.SMMHz) >= upShare*float64(x.MaxSMMHz):
		r.high++
	default:
		r.high = 0
	}
	switch {
	case x.SMMHz > r.highest:
		r.highest, r.flat = x.SMMHz, 0
	case x.Throttle != Idle:
		r.flat++
	}
}

// Up reports whether the clock does not get higher: two readings in a row are at least 90 %
// of the highest that the GPU supports, or 30 readings with a reason other than idleness did
// not raise it. It is true if the clock is not known.
func (r *Rise) Up() bool {
	if r == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unknown || r.high >= 2 || r.flat >= flatFor
}

// Follow adds the readings from now on to a new Rise, until the next Follow or Begin. It
// returns nil for a nil Sampler.
func (s *Sampler) Follow() *Rise {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rise = &Rise{}
	return s.rise
}
