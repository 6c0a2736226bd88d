package attention

import (
	"os"
	"testing"
	"time"

	"vkattn/attention/internal/simd"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// Exported for tests outside of the package, which may import accuracy and inputs.
var (
	ForwardCPU  = forwardCPU
	BackwardCPU = backwardCPU
	Expf        = func(x float32) float32 { return mapOne(cpuKernels.Exp, x) }
	Tanhf       = func(x float32) float32 { return mapOne(cpuKernels.Tanh, x) }
)

// OnceOnly skips a slow test that uses no device, except in the run without a driver: its
// result is the same on every driver.
func OnceOnly(t *testing.T) {
	if name := os.Getenv("VKATTN_DRIVER"); name != "" && name != "none" {
		t.Skip("the same without a Vulkan driver")
	}
	testlevel.Long(t)
}

// CompileTime is the time that the driver took for an operation's pipelines.
func CompileTime(op *Op) (d time.Duration) {
	op.pipelines.mu.RLock()
	defer op.pipelines.mu.RUnlock()
	for _, p := range op.pipelines.made {
		d += p.CompileTime()
	}
	return d
}

// PipelinesOf are an operation's own handles.
func PipelinesOf(op *Op) (list []*vk.Pipeline) {
	op.pipelines.mu.RLock()
	defer op.pipelines.mu.RUnlock()
	for _, p := range op.pipelines.made {
		list = append(list, p)
	}
	return list
}

// TileOps are operations of one tile each, with their names: all tiles of the table that
// the device can run for a shape.
func TileOps(op *Op, s Shape) (ops []*Op, names []string, err error) {
	r := op.typical(s)
	plan, err := makePlan(op.dev, op.cfg, r, nil)
	if err != nil {
		return nil, nil, err
	}
	for _, t := range tilings(plan.variant) {
		v := plan.variant
		v.tile = t
		if _, reason := fits(op.dev.Caps(), v, s); reason == "" {
			ops, names = append(ops, newOp(op.dev, op.cfg, Experiment{}, pickOnly(t))), append(names, v.describe())
		}
	}
	return ops, names, nil
}

// SplitsPerRound is the number of splits that the decode kernel loads at once to combine them.
const SplitsPerRound = splitsPerRound

// SplitsOf returns the number of splits of a call, and whether the kernel that computes
// them also combines them.
func SplitsOf(op *Op, a Args) (splits int, combined bool, err error) {
	plan, err := op.PlanFor(a)
	return plan.Splits, plan.variant.options.combined, err
}

// FillsCores reports whether workgroups that occupy a core each fill the device.
func FillsCores(s Shape, cores, rowBlocks, round uint32) bool {
	r := request{shape: s}
	return r.fillsCores(&vk.Caps{ShaderCores: cores}, rowBlocks, round)
}

// mapOne is one element of what the CPU tier computes by vectors.
func mapOne(f func([]float32), x float32) float32 {
	v := make([]float32, cpuKernels.Vector)
	v[0] = x
	f(v)
	return v[0]
}

// EachKernelSet runs a test with every set of kernels that this CPU has.
func EachKernelSet(t *testing.T, test func(t *testing.T, name string)) {
	best := cpuKernels
	defer func() { cpuKernels = best }()
	for _, cpuKernels = range simd.Sets() {
		t.Run(cpuKernels.Name, func(t *testing.T) { test(t, cpuKernels.Name) })
	}
}
