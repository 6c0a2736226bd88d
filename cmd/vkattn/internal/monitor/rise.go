package monitor

import "sync"

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
