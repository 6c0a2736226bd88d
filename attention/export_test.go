package attention

import (
	"testing"
	"time"

	"vkattn/internal/backend"
	"vkattn/internal/host"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/simd"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// Exported for tests outside of the package, which may import accuracy and inputs.
var (
	Expf  = func(x float32) float32 { return mapOne(host.Kernels.Exp, x) }
	Tanhf = func(x float32) float32 { return mapOne(host.Kernels.Tanh, x) }
)

func ForwardCPU(cfg Config, a Args) error          { return host.Forward(problem.Config(cfg), a) }
func BackwardCPU(cfg Config, a BackwardArgs) error { return host.Backward(problem.Config(cfg), a) }

// CompileTime is the time that the driver took for an operation's pipelines.
func CompileTime(op *Op) (d time.Duration) {
	for _, p := range op.pipelines.All() {
		d += p.CompileTime()
	}
	return d
}

// SetTuneBudget sets the time of a tuning that names none, until the test ends.
func SetTuneBudget(t testing.TB, d time.Duration) {
	before := tuneBudget
	tuneBudget = d
	t.Cleanup(func() { tuneBudget = before })
}

// SetMaxDSBytes bounds dS in scratch memory; 0: the plan does.
func SetMaxDSBytes(op *Op, n uint64) { op.backward.maxDSBytes = n }

// SetNoMaps keeps the backward kernels from maps of tiles.
func SetNoMaps(op *Op, yes bool) { op.backward.noMaps = yes }

// PipelinesOf are an operation's own handles.
func PipelinesOf(op *Op) []*vk.Pipeline { return op.pipelines.All() }

// TileOps are operations of one tile each, with their names: all tiles of the table that
// the device can run for a shape.
func TileOps(op *Op, s Shape) (ops []*Op, names []string, err error) {
	r := op.typical(s)
	c, err := plan.Make(op.dev, op.cfg, r, nil)
	if err != nil {
		return nil, nil, err
	}
	for _, t := range plan.Tilings(c.Variant) {
		v := c.Variant
		v.Tile = t
		if _, reason := plan.Fits(op.dev.Caps(), v, s); reason == "" {
			ops, names = append(ops, newOp(op.dev, op.cfg, Experiment{}, plan.PickOnly(t))), append(names, v.Describe())
		}
	}
	return ops, names, nil
}

// SplitsPerRound is the number of splits that the decode kernel loads at once to combine them.
const SplitsPerRound = plan.SplitsPerRound

// SplitsOf returns the number of splits of a call, and whether the kernel that computes
// them also combines them.
func SplitsOf(op *Op, a Args) (splits int, combined bool, err error) {
	var l tensors.Layouts
	if err := op.check(&l, &a); err != nil {
		return 0, false, err
	}
	c, err := plan.Make(op.dev, op.cfg, op.request(&l, &a), op.pick)
	return c.Splits, c.Variant.Options.Combined, err
}

// ForwardSeparately is Forward with splits that a kernel of their own combines.
func ForwardSeparately(op *Op, s *vk.Stream, a Args) error {
	var l tensors.Layouts
	if err := op.check(&l, &a); err != nil {
		return err
	}
	r := op.request(&l, &a)
	r.SeparateCombine = true
	p, err := op.prepare(r)
	if err != nil {
		return err
	}
	return op.launch(s.Commands, p, r.Access, &a, l.All())
}

// FillsCores reports whether workgroups that occupy a core each fill the device.
func FillsCores(s Shape, cores, rowBlocks, round uint32) bool {
	r := plan.Request{Shape: s}
	return r.FillsCores(&vk.Caps{ShaderCores: cores}, rowBlocks, round)
}

// mapOne is one element of what the CPU tier computes by vectors.
func mapOne(f func([]float32), x float32) float32 {
	v := make([]float32, host.Kernels.Vector)
	v[0] = x
	f(v)
	return v[0]
}

// EachKernelSet runs a test or a benchmark with every set of kernels that this CPU has, those in Go included.
func EachKernelSet[T interface{ Run(string, func(T)) bool }](t T, test func(t T, name string)) {
	best := host.Kernels
	defer func() { host.Kernels = best }()
	for _, host.Kernels = range simd.All() {
		t.Run(host.Kernels.Name, func(t T) { test(t, host.Kernels.Name) })
	}
}

// CachedPlans is the number of plans that an Op has cached.
func CachedPlans(op *Op) int { return op.plans.size }

// OnBackend is the Device of a backend that is neither Vulkan nor the CPU.
func OnBackend(b backend.Device) *Device { return backend.NewDevice(b).(*Device) }

// ForgetCalls makes the next call one that repeats none.
func ForgetCalls(op *Op) {
	op.mu.Lock()
	defer op.mu.Unlock()
	op.plans.repeat = repeatable{}
	op.plans.sizes.Store(0)
}

// RepeatedDispatch returns the dispatch of a call that repeats the one before; ok is false for another call.
func RepeatedDispatch(op *Op, a Args) (d any, ok bool) {
	if sizes(&a.Shape, &a.Q, &a.K) != nil {
		return nil, false
	}
	var r repeatable
	if ok = op.repeats(&r, nil, &a); !ok {
		return nil, false
	}
	var held [5]vk.Resource
	n := r.form.Bind(&a, &r.params.addr, held[:])
	return struct {
		pipeline *vk.Pipeline
		groups   [3]uint32
		params   generalParams
		push     int
		held     [5]vk.Resource
		n        int
	}{r.pipeline, r.groups, r.params, r.push, held, n}, true
}
