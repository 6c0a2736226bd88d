package attention

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"vkattn/internal/backend"
	"vkattn/internal/dispatch"
	"vkattn/internal/errs"
	"vkattn/internal/host"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// Op computes attention for one Config on one device, for any Shape. It caches the
// plan and the pipelines of every shape it has seen. Its methods are safe for
// concurrent use; a Stream or a Commands must be used by one goroutine at a time.
type Op struct {
	home       *Device           // of the default stream
	dev        *vk.Device        // its Vulkan device; nil: the CPU tier, or other
	other      backend.Attention // of a device of another kind, which plans and computes all calls; nil: there is none
	given      problem.Config    // what New was given
	cfg        problem.Config    // the same, with options in place of bands of its mask modifier
	experiment Experiment
	factors    plan.ScoreFactors
	numbers    plan.Numbers
	pick       plan.TilePicker // nil: use the heuristic's tiles

	checks bool // by CheckEnv

	closed    atomic.Bool
	mu        sync.RWMutex
	plans     planCache
	maps      dispatch.Pipelines[plan.MapVariant, problem.Config]
	pipelines dispatch.Pipelines[plan.Variant, problem.Config]   // many requests share one pipeline
	combines  dispatch.Pipelines[combineVariant, problem.Config] // of the separate combine kernel; at most 16
	backward  backwardOp

	conversions dispatch.Pipelines[plan.Conversion, problem.Config]
	converted   *Op // of the calls on K and V that are converted in front of them; nil where K and V are not quantized
}

// prepared is a plan with its pipeline: all that a call needs except its tensors.
type prepared struct {
	access          Access
	cuda            problem.CUDAKernel  // for TierCUDA, which uses splits alone of the fields below
	cubin           problem.CubinKernel // for TierCubin, which uses splits alone of the fields below
	pipeline        *vk.Pipeline
	maps            *vk.Pipeline // makes its tile maps; nil: it takes none
	mapTiles        problem.MapTiles
	rows            uint32 // query rows per workgroup
	slices          uint32 // workgroups that share the columns of O
	rowReach        uint32 // see variant.rowReach
	options         plan.Options
	splitWorkgroups int       // workgroups that share the keys of a row
	splits          int       // splits of the keys of a row; each workgroup computes one or more
	decodePart      *prepared // for the decode part of a mixed batch; nil in most plans
	converts        bool      // the pipeline converts K and V in front of the call, which Op.converted has a plan of
}

// New makes an operation. A nil device is the CPU. The device stays the caller's and must
// outlive the Op. New refuses a Config that no tier of the device
// can run, as far as that is known without a shape. The error is a *ShapeError, or it
// matches [ErrUnsupported] and names what each tier lacks.
func New(d *Device, cfg Config) (*Op, error) {
	return NewExperiment(d, cfg, Experiment{})
}

// newOp is NewExperiment without the checks.
func newOp(dev *vk.Device, given problem.Config, e Experiment, pick plan.TilePicker) *Op {
	cfg := plan.WithoutBands(given)
	op := &Op{home: On(dev), dev: dev, given: given, cfg: cfg, experiment: e.Forward(), factors: plan.FactorsOf(cfg), numbers: plan.NumbersOf(&cfg), pick: pick}
	if dev != nil && cfg.KeyType != KVSame {
		e.ConvertKV = 0
		op.converted = newOp(dev, plan.ConvertedConfig(given), e, pick)
	}
	return op
}

// Config returns the Config that New was given.
func (op *Op) Config() Config {
	if op == nil {
		return Config{}
	}
	return Config(op.given)
}

// usable reports why the Op cannot be used: New did not make it, or it is closed.
func (op *Op) usable() error {
	switch {
	case op == nil || op.cfg.HeadDim == 0: // New accepts no Config with HeadDim 0
		return errs.Unmade("New")
	case op.closed.Load():
		return errs.ClosedOp
	}
	return nil
}

// Plan returns how packed, aligned tensors of a shape, in memory that every tier reaches, would be computed. It compiles
// nothing. A wrong size gives a *ShapeError. If no tier can compute the problem, the
// error matches [ErrUnsupported] and names what each tier lacks.
func (op *Op) Plan(s Shape) (Plan, error) {
	if err := op.usable(); err != nil {
		return Plan{}, err
	}
	if err := s.Validate(); err != nil {
		return Plan{}, err
	}
	if op.other != nil {
		p, err := op.other.Plan(Args{Shape: s})
		return op.told(p), err
	}
	c, err := plan.Make(op.dev, op.cfg, op.typical(s), op.pick)
	return op.told(c.Plan), err
}

// told is a plan in terms of the Config that New was given.
func (op *Op) told(p problem.Plan) Plan {
	if what := plan.InPlaceOf(&op.given, &op.cfg); what != "" {
		p.MaskMod, p.Notes = op.given.MaskMod.String(), append(p.Notes, what)
	}
	return Plan(p)
}

// PlanFor is Plan for the given tensors. Their options, their alignment and whether
// they have device addresses affect the plan. It checks the arguments as Forward does.
func (op *Op) PlanFor(a Args) (Plan, error) {
	if err := op.usable(); err != nil {
		return Plan{}, err
	}
	var l tensors.Layouts
	if err := op.check(&l, &a); err != nil {
		return Plan{}, err
	}
	if op.other != nil {
		p, err := op.other.Plan(a)
		return op.told(p), err
	}
	c, err := plan.Make(op.dev, op.cfg, op.request(&l, &a), op.pick)
	return op.told(c.Plan), err
}

// Prepare compiles the kernels that Forward needs for packed, aligned tensors of a shape,
// with and without LSE, so that the first Forward does not wait for the compiler. TierAuto
// prepares for ordinary memory, which tier cuda does not reach; PrepareFor knows better. On the
// CPU tier it compiles nothing. It returns the errors of Plan and of vk.Device.Pipeline.
func (op *Op) Prepare(s Shape) error {
	if err := op.usable(); err != nil {
		return err
	}
	if err := s.Validate(); err != nil {
		return err
	}
	if op.other != nil {
		return op.other.Prepare(Args{Shape: s})
	}
	for _, lse := range []bool{false, true} {
		r := op.typical(s)
		r.LSE = lse
		if op.cfg.Tier == TierAuto && plan.MayCUDA(&op.cfg) {
			r.CUDARefusal = plan.CUDAOrdinary
		}
		if _, err := op.prepare(r); err != nil {
			return err
		}
		if r.VInK && !op.cfg.KeyType.Latent() { // a shape stands for calls with V in memory of its own too
			r.VInK = false
			if _, err := op.prepare(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// PrepareFor compiles the kernels that Forward needs for calls like a: with the same
// options, alignment and kind of memory. It reads no tensor. It checks the arguments
// as Forward does.
func (op *Op) PrepareFor(a Args) error {
	if err := op.usable(); err != nil {
		return err
	}
	var l tensors.Layouts
	if err := op.check(&l, &a); err != nil {
		return err
	}
	if op.other != nil {
		return op.other.Prepare(a)
	}
	_, err := op.prepare(op.request(&l, &a))
	return err
}

// Forward computes O, and LSE if a has one, in the order of the stream; nil is the device's default stream, which begins at
// once. On a Vulkan device it records the work into the stream's current batch, behind the earlier work that it depends
// on: other calls, uploads and copies, and whatever [vk.Commands.Order] told of. Calls that do not depend on each other may
// overlap. The stream holds the tensors until the work has run; the caller submits and waits. On the CPU tensors lie in
// host memory, and O is complete when Forward returns. If Forward returns an error, it has recorded and written nothing.
// An error that matches vk.ErrOutOfMemory gives the needed and the available memory.
//
// Tier cuda first submits what the stream has recorded, then launches its kernel before
// anything recorded later, without waiting on the host. The kernel may still run when
// Forward returns; Stream.Submit, Wait and Download cover it. Consecutive Forwards with
// nothing recorded in between need no further submission.
func (op *Op) Forward(s *Stream, a Args) error {
	if err := op.usable(); err != nil {
		return err
	}
	return op.home.call("Forward", s, func(s backend.Stream) error {
		if v := s.Vulkan(); v != nil {
			return op.record(v.Commands, v, &a)
		}
		var l tensors.Layouts
		if err := op.check(&l, &a); err != nil {
			return err
		}
		if op.other == nil {
			return host.Forward(op.cfg, a)
		}
		if err := op.checkNumbers(s, &a); err != nil {
			return err
		}
		return op.other.Forward(s, a)
	})
}

// Record records the dispatches into a command buffer: the caller's, wrapped by
// vk.Device.WrapCommands, or a stream's. Into the caller's it inserts no barrier: the caller
// orders Q, K and V before the dispatches and O and LSE after them (compute shader reads and
// writes), and keeps the tensors and this Op until the commands have run. The commands
// may run again later but not twice at the same time, because calls with split keys use
// scratch memory that belongs to the commands. Tier cuda cannot record.
func (op *Op) Record(c *vk.Commands, a Args) error {
	if err := op.usable(); err != nil {
		return err
	}
	if err := errs.CheckCommands("Record", c, op.dev); err != nil {
		return err
	}
	return op.record(c, nil, &a)
}

// Close drops the plans and releases the pipelines. The device destroys a pipeline when
// no other operation and no work in flight holds it. Close is idempotent.
func (op *Op) Close() error {
	if op == nil {
		return nil
	}
	closed := op.closed.Swap(true)
	op.mu.Lock()
	defer op.mu.Unlock()
	op.plans.clear()
	err := errors.Join(op.maps.Close(), op.pipelines.Close(), op.combines.Close(), op.backward.close(), op.conversions.Close(), op.converted.Close())
	if op.other != nil && !closed {
		err = errors.Join(err, op.other.Close())
	}
	return err
}

// check checks a call and fills l with its layouts.
func (op *Op) check(l *tensors.Layouts, a *Args) error {
	if err := sizes(&a.Shape, &a.Q, &a.K); err != nil {
		return err
	}
	if err := l.Check(&op.cfg, a); err != nil { // New has checked the Config
		return err
	}
	if err := op.checkBlockMap(a); err != nil {
		return err
	}
	return op.checkSide(l.All(), a)
}

// checkBlockMap refuses the map of another operation.
func (op *Op) checkBlockMap(a *Args) error {
	if a.BlockMap != nil && problem.MakerOf(a.BlockMap) != any(op) {
		return &ShapeError{Field: "BlockMap", Got: "of another operation", Want: "one that this Op made"}
	}
	return nil
}

// place is where the operation computes.
func (op *Op) place() tensors.Place {
	if op.other != nil {
		return tensors.Place{Other: op.home.b}
	}
	return tensors.Place{Vulkan: op.dev}
}

// checkSide refuses memory that is not the device's.
func (op *Op) checkSide(all []tensors.Layout, a *Args) error {
	on := op.place()
	if on.CPU() {
		return nil // host.Forward checks the side
	}
	if err := tensors.CheckDevice(all, on); err != nil || !tensors.HasOptions(a, &op.cfg) {
		return err
	}
	return tensors.CheckOptionsDevice(a, &op.cfg, on)
}

// prepare finds or makes the plan and pipeline of a request.
func (op *Op) prepare(r plan.Request) (*prepared, error) {
	op.mu.RLock()
	p := op.plans.of(r)
	op.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	if op.closed.Load() {
		return nil, errs.ClosedOp
	}
	if op.cfg.Tuning == TuningOn && op.experiment == (Experiment{}) {
		if err := op.tuneOnFirstUse(r); err != nil {
			return nil, err
		}
	}
	c, err := plan.Make(op.dev, op.cfg, r, op.pick)
	if err != nil {
		return nil, err
	}
	p = &prepared{access: c.Access, cuda: c.CUDA, cubin: c.Cubin}
	switch {
	case c.Conversion.Given():
		if err := op.prepareConversion(p, &c.Conversion, &r); err != nil {
			return nil, err
		}
	case p.cuda != nil:
		if err := p.cuda.Load(); err != nil {
			return nil, fmt.Errorf("attention: kernel %s: %w", c.Kernel, err)
		}
		p.splits = c.Splits
	case p.cubin != nil:
		if err := p.cubin.Load(); err != nil {
			return nil, fmt.Errorf("attention: kernel %s: %w", c.Kernel, err)
		}
		p.splits = c.Splits
	case op.dev != nil:
		if err := op.prepareVariant(p, &c.Variant, c.Splits); err != nil {
			return nil, err
		}
		if c.DecodePart != nil {
			p.decodePart = &prepared{access: c.Access}
			if err := op.prepareVariant(p.decodePart, c.DecodePart, c.Splits); err != nil {
				return nil, err
			}
		}
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.closed.Load() {
		return nil, errs.ClosedOp
	}
	op.plans.add(r, c.Range, c.Splitting, p)
	return p, nil
}

// prepareVariant fills p for a variant that cuts the keys of a row into the given number of splits.
func (op *Op) prepareVariant(p *prepared, v *plan.Variant, splits int) (err error) {
	p.rows, p.slices, p.rowReach, p.options = v.Tile.Rows(), v.Slices(), v.RowReach(), v.Options
	p.splits, p.splitWorkgroups = splits, splits/v.Tile.Splits()
	if p.pipeline, err = op.pipelines.Of(op.dev, &op.cfg, *v); err != nil {
		return err
	}
	if m, ok := v.MapOf(p.access); ok {
		p.mapTiles = m.Tiles()
		p.maps, err = op.maps.Of(op.dev, &op.cfg, m)
	}
	return err
}

// NewExperiment is New with a kernel changed for a measurement. An Op with an ablation
// computes wrong results by design; an Op with a variant computes correct results at
// another speed. Named tiles of the backward kernels are refused by Backward, with the
// reason, if they cannot run. Steps before StepTuner run with tiles of the fixed table, later steps
// with tuned tiles if there are any. The CPU tier has neither variants, ablations nor tiles.
func NewExperiment(d *Device, c Config, e Experiment) (*Op, error) {
	if d == nil {
		d = On(nil)
	}
	if d.b == nil {
		return nil, errs.Unmade("Open")
	}
	cfg, dev := problem.Config(c), d.Vulkan()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := e.Validate(); err != nil {
		return nil, err
	}
	if dev == nil && e != (Experiment{}) {
		return nil, fmt.Errorf("%w: the CPU tier has no variants and no ablations", ErrUnsupported)
	}
	if dev != nil {
		if dev.Closed() {
			return nil, errs.Closed("the device")
		}
		if err := plan.CheckScale(&cfg); err != nil {
			return nil, err
		}
	}
	var pick plan.TilePicker
	if dev != nil && cfg.Tuning != TuningOff && plan.Includes(e, plan.StepTuner) {
		pick = plan.StoreOf(dev).Pick
	}
	if e.Tile != "" {
		if cfg.Tier.WithoutSPIRV() {
			return nil, fmt.Errorf("%w: tier %v has no tiles", ErrUnsupported, cfg.Tier)
		}
		named, err := plan.NamedTile(e.Tile)
		if err != nil {
			return nil, errs.Invalid("tile: %v", err)
		}
		pick = named
	}
	op := newOp(dev, cfg, e, pick)
	op.home, op.checks = d, d.b != backend.Device(backend.CPU{}) && checksByEnv()
	if k := d.b.Kernels(); k != nil {
		var err error
		op.other, err = k.Attention(op.cfg)
		if err != nil {
			return nil, err
		}
		return op, nil
	}
	if pick != nil && e.Tile == "" {
		op.backward.pick = plan.StoreOf(dev).PickBackward
	}
	if e.BackwardTiles != "" {
		if cfg.Tier.WithoutSPIRV() {
			return nil, fmt.Errorf("%w: tier %v has no tiles", ErrUnsupported, cfg.Tier)
		}
		named, err := plan.NamedTiles(e.BackwardTiles)
		if err != nil {
			return nil, errs.Invalid("tiles of the backward kernels: %v", err)
		}
		op.cfg.Tier = plan.WithTiles(cfg.Tier)
		op.backward.pick, op.backward.named = named, true
	}
	r := op.typical(Shape{B: 1, Hq: 1, Sq: 1, Sk: 1})
	r.AnyArgs = true
	if _, err := plan.Make(dev, op.cfg, r, pick); err != nil {
		if err := op.withoutForward(r.Shape, err); err != nil {
			return nil, err
		}
	}
	return op, nil
}

// withoutForward returns nil if tier cuda, asked for by name, computes the gradients of a
// Config whose window or softcap its forward kernels refuse. O and LSE are then those of
// another tier.
func (op *Op) withoutForward(s Shape, refusal error) error {
	if op.cfg.Tier != TierCUDA || !op.cfg.Window.Given() && op.cfg.Softcap == 0 {
		return refusal
	}
	r := op.typicalBackward(s)
	_, err := plan.MakeBackward(op.dev, &op.cfg, &r, op.backward.pick)
	if errors.Is(err, ErrUnsupported) {
		return fmt.Errorf("%w; %s", refusal, strings.TrimPrefix(err.Error(), ErrUnsupported.Error()+": "))
	}
	return err
}
