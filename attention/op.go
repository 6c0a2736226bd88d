package attention

import (
	"errors"
	"fmt"
	"sync"

	"vkattn/vk"
)

// Op computes attention for one Config on one device, at any shape. It keeps
// the plans and pipelines of the shapes it has seen. Its methods may be called
// from many goroutines; each Stream and Commands still has one owner.
type Op struct {
	dev  *vk.Device // nil: the CPU tier
	cfg  Config
	pick tilePicker // nil: the heuristic's tiles

	mu     sync.RWMutex
	closed bool
	plans  map[request]*prepared
}

// prepared is a plan and, once it was needed, its pipeline.
type prepared struct {
	plan     Plan
	pipeline *vk.Pipeline
}

// New makes an operation. A nil device means the CPU tier; the device stays
// the caller's and must outlive the Op. A Config no tier of the device can run
// is refused here, as far as that shows without a shape.
func New(dev *vk.Device, cfg Config) (*Op, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	op := &Op{dev: dev, cfg: cfg, plans: map[request]*prepared{}}
	if dev != nil && dev.Closed() {
		return nil, fmt.Errorf("attention: New: %w", vk.ErrClosed)
	}
	if dev != nil && cfg.Tuning != TuningOff {
		op.pick = storeOf(dev).pick
	}
	if _, err := op.Plan(Shape{B: 1, Hq: 1, Sq: 1, Sk: 1}); err != nil {
		return nil, err
	}
	return op, nil
}

// Config is what New was given.
func (op *Op) Config() Config { return op.cfg }

// Plan says how packed, aligned tensors of a shape would be computed.
func (op *Op) Plan(s Shape) (Plan, error) {
	if err := s.Validate(); err != nil {
		return Plan{}, err
	}
	return makePlan(op.dev, op.cfg, op.typical(s), op.pick)
}

// PlanFor is Plan for particular tensors: their alignment and whether they
// have device addresses count. It checks the arguments as Forward does.
func (op *Op) PlanFor(a Args) (Plan, error) {
	if err := op.check(a); err != nil {
		return Plan{}, err
	}
	return makePlan(op.dev, op.cfg, op.request(a), op.pick)
}

// Prepare compiles what Forward needs for packed, aligned tensors of a shape
// without and with LSE, so that the first Forward does not wait for a compiler.
func (op *Op) Prepare(s Shape) error {
	if err := s.Validate(); err != nil {
		return err
	}
	for _, lse := range []bool{false, true} {
		r := op.typical(s)
		r.lse = lse
		if _, err := op.prepare(r); err != nil {
			return err
		}
	}
	return nil
}

// Forward computes O, and LSE where given. On a device the work is recorded
// into the stream's current batch, in order after what was recorded before,
// and the tensors are held until it has run; the caller submits and waits. On
// the CPU tier the stream is nil, tensors are in host memory, and O is there
// when Forward returns. Nothing is recorded or written when an error returns.
func (op *Op) Forward(s *vk.Stream, a Args) error {
	if op.dev == nil {
		if s != nil {
			return errors.New("attention: Forward: the CPU tier takes no stream")
		}
		if err := op.check(a); err != nil {
			return err
		}
		return forwardCPU(op.cfg, a)
	}
	if s == nil {
		return errors.New("attention: Forward: a device tier needs a stream")
	}
	return op.record(s.Commands, a)
}

// Record puts the dispatches into a command buffer: the caller's, through
// vk.Device.WrapCommands, or a stream's. It inserts no barrier: the caller
// orders Q, K and V before it and O and LSE after it (compute shader reads and
// writes), and keeps the tensors and this Op until the commands have run.
func (op *Op) Record(c *vk.Commands, a Args) error {
	if op.dev == nil {
		return fmt.Errorf("%w: the CPU tier cannot record into a command buffer", ErrUnsupported)
	}
	if c == nil {
		return errors.New("attention: Record: nil command buffer")
	}
	return op.record(c, a)
}

// Close drops the plans. Pipelines belong to the device, and work in flight
// holds what it uses. Close may be called again.
func (op *Op) Close() error {
	op.mu.Lock()
	defer op.mu.Unlock()
	op.closed, op.plans = true, nil
	return nil
}

func (op *Op) check(a Args) error {
	op.mu.RLock()
	closed := op.closed
	op.mu.RUnlock()
	if closed {
		return fmt.Errorf("attention: %w", vk.ErrClosed)
	}
	if err := CheckArgs(op.cfg, a); err != nil {
		return err
	}
	return op.checkSide(a)
}

// checkSide refuses host memory on a device tier, and another device's buffers.
func (op *Op) checkSide(a Args) error {
	if op.dev == nil {
		return nil // forwardCPU says it
	}
	for i, t := range [5]Tensor{a.Q, a.K, a.V, a.O, a.LSE} {
		name := [5]string{"Q", "K", "V", "O", "LSE"}[i]
		switch {
		case t.Host != nil:
			return &ShapeError{name, "in host memory", "a buffer of the operation's device"}
		case t.Buffer != nil && t.Buffer.Device() != op.dev:
			return &ShapeError{name, "a buffer of another device", "one of the operation's device"}
		}
	}
	return nil
}

// prepare finds or makes the plan and pipeline of a request. Two goroutines may
// both plan; the device makes the pipeline once.
func (op *Op) prepare(r request) (*prepared, error) {
	op.mu.RLock()
	p, closed := op.plans[r], op.closed
	op.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	if closed {
		return nil, fmt.Errorf("attention: %w", vk.ErrClosed)
	}
	if op.cfg.Tuning == TuningOn {
		if err := op.tuneOnFirstUse(r); err != nil {
			return nil, err
		}
	}
	plan, err := makePlan(op.dev, op.cfg, r, op.pick)
	if err != nil {
		return nil, err
	}
	p = &prepared{plan: plan}
	if op.dev != nil {
		desc, err := plan.variant.pipeline()
		if err != nil {
			return nil, err
		}
		if p.pipeline, err = op.dev.Pipeline(desc); err != nil {
			return nil, err
		}
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.closed {
		return nil, fmt.Errorf("attention: %w", vk.ErrClosed)
	}
	op.plans[r] = p
	return p, nil
}
