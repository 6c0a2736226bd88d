package parallel

import "time"

// DecodeStep is a step of a call of Decode on this rank.
type DecodeStep struct {
	Name  string
	Took  time.Duration // from the end of the step before
	Polls int           // of a wait for the device: how often the stream's timeline was read
}

// ObserveDecode calls f with each step of the Decode calls that follow. A nil f ends it. f runs on the
// goroutine of the call. It is for measurements; the caller does not call it while a Decode is under way.
func (op *Op) ObserveDecode(f func(DecodeStep)) {
	if op != nil {
		op.observer = f
	}
}

// steps measures the steps of a call.
type steps struct {
	f    func(DecodeStep)
	last time.Time
}

func (op *Op) newSteps() steps {
	if op.observer == nil {
		return steps{}
	}
	return steps{op.observer, time.Now()}
}

// done ends a step.
func (s *steps) done(name string) { s.waited(name, 0) }

// waited ends a wait for the device.
func (s *steps) waited(name string, polls int) {
	if s.f == nil {
		return
	}
	now := time.Now()
	s.f(DecodeStep{name, now.Sub(s.last), polls})
	s.last = now
}
