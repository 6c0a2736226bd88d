package attention

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"vkattn/vk"
)

// Op computes attention for one Config on one device, at any shape. It keeps
// the plans and pipelines of the shapes it has seen. Its methods may be called
// from many goroutines; each Stream and Commands still has one owner.
type Op struct {
	dev        *vk.Device // nil: the CPU tier
	cfg        Config
	experiment Experiment
	factors    scoreFactors
	pick       tilePicker // nil: the heuristic's tiles

	closed    atomic.Bool
	mu        sync.RWMutex
	plans     map[request]*prepared             // at most maxPlans; dropped by Close
	pipelines pipelines[variant, Config]        // far fewer: many requests share one
	combines  pipelines[combineVariant, Config] // of parts of keys; at most 16
}

// maxPlans bounds what an Op remembers: decoding sees a new length every step.
const maxPlans = 1024

// prepared is a plan and its pipeline: what a call needs to know before it
// looks at its tensors.
type prepared struct {
	access          Access
	cuda            CUDAKernel // of TierCUDA: nothing of the rest
	pipeline        *vk.Pipeline
	rows            uint32 // query rows of a workgroup
	slices          uint32 // workgroups that share the columns of O
	rowReach        uint32 // see variant.rowReach
	options         options
	splitWorkgroups int       // of features: workgroups that share the keys of a row
	splits          int       // of features: parts of the keys, one or more of each of these
	decodePart      *prepared // of features: what computes the short sequences beside it; most have none
}

// New makes an operation. A nil device means the CPU tier; the device stays
// the caller's and must outlive the Op. A Config no tier of the device can run
// is refused here, as far as that shows without a shape: the error is a *ShapeError, or
// matches [ErrUnsupported] and names what each tier lacks.
func New(dev *vk.Device, cfg Config) (*Op, error) {
	return NewExperiment(dev, cfg, Experiment{})
}

// newOp is NewExperiment without its checks.
func newOp(dev *vk.Device, cfg Config, e Experiment, pick tilePicker) *Op {
	return &Op{dev: dev, cfg: cfg, experiment: e, factors: cfg.factors(), pick: pick, plans: map[request]*prepared{}}
}

// Config is what New was given.
func (op *Op) Config() Config {
	if op == nil {
		return Config{}
	}
	return op.cfg
}

// usable says why the Op cannot be used: nobody made it, or it is closed.
func (op *Op) usable() error {
	switch {
	case op == nil || op.cfg.HeadDim == 0: // which no Config that New takes has
		return unmade("New")
	case op.closed.Load():
		return fmt.Errorf("attention: %w", vk.ErrClosed)
	}
	return nil
}

// Plan says how packed, aligned tensors of a shape would be computed. It compiles
// nothing. A wrong size is a *ShapeError; the error for a problem that no tier computes
// matches [ErrUnsupported] and names what each lacks.
func (op *Op) Plan(s Shape) (Plan, error) {
	if err := op.usable(); err != nil {
		return Plan{}, err
	}
	if err := s.Validate(); err != nil {
		return Plan{}, err
	}
	return makePlan(op.dev, op.cfg, op.typical(s), op.pick)
}

// PlanFor is Plan for particular tensors: their alignment and whether they
// have device addresses count. It checks the arguments as Forward does.
func (op *Op) PlanFor(a Args) (Plan, error) {
	if err := op.usable(); err != nil {
		return Plan{}, err
	}
	var l layouts
	if err := op.check(&l, &a); err != nil {
		return Plan{}, err
	}
	return makePlan(op.dev, op.cfg, op.request(&l, &a), op.pick)
}

// Prepare compiles what Forward needs for packed, aligned tensors of a shape
// without and with LSE, so that the first Forward does not wait for a compiler. On the
// CPU tier there is nothing to compile. Its errors are those of Plan and of vk.Device.Pipeline.
func (op *Op) Prepare(s Shape) error {
	if err := op.usable(); err != nil {
		return err
	}
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

// PrepareFor compiles what Forward needs for a call like this one: its features,
// alignment and kind of memory count, the numbers in memory do not. It checks the
// arguments as Forward does.
func (op *Op) PrepareFor(a Args) error {
	if err := op.usable(); err != nil {
		return err
	}
	var l layouts
	if err := op.check(&l, &a); err != nil {
		return err
	}
	_, err := op.prepare(op.request(&l, &a))
	return err
}

// Forward computes O, and LSE where given. On a device the work is recorded
// into the stream's current batch, in order after what was recorded before,
// and the tensors are held until it has run; the caller submits and waits. On
// the CPU tier the stream is nil, tensors are in host memory, and O is there
// when Forward returns. Nothing is recorded or written when an error returns; one
// that matches vk.ErrOutOfMemory says how much memory is missing.
//
// Tier cuda submits what the stream has recorded and puts its kernel between that
// and what is recorded later, without waiting on the host. The kernel is on its way
// when Forward returns; Stream.Submit, Wait and Download cover it. Forwards that
// follow each other with nothing recorded between them cost no submission.
func (op *Op) Forward(s *vk.Stream, a Args) error {
	if err := op.usable(); err != nil {
		return err
	}
	if op.dev == nil {
		if s != nil {
			return invalid("Forward: the CPU tier takes no stream")
		}
		var l layouts
		if err := op.check(&l, &a); err != nil {
			return err
		}
		return forwardCPU(op.cfg, a)
	}
	if s.Device() == nil {
		return invalid("Forward: a device tier needs a stream")
	}
	return op.record(s.Commands, s, &a)
}

// Record puts the dispatches into a command buffer: the caller's, through
// vk.Device.WrapCommands, or a stream's. It inserts no barrier: the caller
// orders Q, K and V before it and O and LSE after it (compute shader reads and
// writes), and keeps the tensors and this Op until the commands have run. They may run
// again afterwards, but not twice at a time: calls with split keys have scratch memory
// that goes with the commands. Tier cuda cannot do it.
func (op *Op) Record(c *vk.Commands, a Args) error {
	if err := op.usable(); err != nil {
		return err
	}
	if op.dev == nil {
		return fmt.Errorf("%w: the CPU tier cannot record into a command buffer", ErrUnsupported)
	}
	if c.Device() == nil {
		return invalid("Record: no command buffer")
	}
	return op.record(c, nil, &a)
}

// Close drops the plans and gives the pipelines back: the device destroys those that
// no other operation has once no work in flight holds them. Close may be called again.
func (op *Op) Close() error {
	if op == nil {
		return nil
	}
	op.closed.Store(true)
	op.mu.Lock()
	defer op.mu.Unlock()
	op.plans = nil
	return errors.Join(op.pipelines.close(), op.combines.close())
}

// check checks a call and leaves its layouts in l.
func (op *Op) check(l *layouts, a *Args) error {
	if err := l.check(&op.cfg, a); err != nil { // New has checked the Config
		return err
	}
	return op.checkSide(l.all(), a)
}

// checkSide refuses host memory on a device tier, and another device's buffers.
func (op *Op) checkSide(all []layout, a *Args) error {
	if op.dev == nil {
		return nil // forwardCPU says it
	}
	if err := checkDevice(all, op.dev); err != nil || !a.hasOptions(&op.cfg) {
		return err
	}
	return a.checkOptionTensorsDevice(&op.cfg, op.dev)
}

func checkDevice(all []layout, dev *vk.Device) error {
	for i := range all {
		if err := all[i].checkDevice(dev); err != nil {
			return err
		}
	}
	return nil
}

// prepare finds or makes the plan and pipeline of a request.
func (op *Op) prepare(r request) (*prepared, error) {
	op.mu.RLock()
	p := op.plans[r]
	op.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	if op.closed.Load() {
		return nil, fmt.Errorf("attention: %w", vk.ErrClosed)
	}
	if op.cfg.Tuning == TuningOn && op.experiment == (Experiment{}) {
		if err := op.tuneOnFirstUse(r); err != nil {
			return nil, err
		}
	}
	plan, err := makePlan(op.dev, op.cfg, r, op.pick)
	if err != nil {
		return nil, err
	}
	v := &plan.variant
	p = &prepared{access: plan.Access, cuda: plan.cuda}
	if p.cuda != nil {
		if err := p.cuda.Load(); err != nil {
			return nil, fmt.Errorf("attention: kernel %s: %w", plan.Kernel, err)
		}
	} else if op.dev != nil {
		if err := op.prepareVariant(p, v, plan.Splits); err != nil {
			return nil, err
		}
		if plan.decodePart != nil {
			p.decodePart = &prepared{access: plan.Access}
			if err := op.prepareVariant(p.decodePart, plan.decodePart, plan.Splits); err != nil {
				return nil, err
			}
		}
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.closed.Load() {
		return nil, fmt.Errorf("attention: %w", vk.ErrClosed)
	}
	if len(op.plans) >= maxPlans {
		clear(op.plans)
	}
	op.plans[r] = p
	return p, nil
}

// prepareVariant finds or makes the pipeline of a variant that makes so many parts of the keys.
func (op *Op) prepareVariant(p *prepared, v *variant, splits int) (err error) {
	p.rows, p.slices, p.rowReach, p.options = v.tile.rows(), v.slices(), v.rowReach(), v.options
	p.splits, p.splitWorkgroups = splits, splits/v.tile.splits()
	p.pipeline, err = op.pipelines.of(op.dev, &op.cfg, *v)
	return err
}
