package plan

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"vkattn/internal/arith"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Tier cubin in the plan: the registered backend, what it refuses and why.

var cubins atomic.Pointer[problem.Cubins]

// RegisterCubins makes tier cubin available; package cudapath calls it. A later
// registration replaces an earlier one.
func RegisterCubins(c problem.Cubins) {
	if c == nil {
		cubins.Store(nil)
		return
	}
	cubins.Store(&c)
}

// registeredCubins returns the registered backend, or nil.
func registeredCubins() problem.Cubins {
	if p := cubins.Load(); p != nil {
		return *p
	}
	return nil
}

// noCubin is the reason why tier cubin does not compute a problem.
type noCubin string

func (e noCubin) Error() string { return string(e) }
func (noCubin) Unwrap() error   { return problem.ErrUnsupported }

// planCubin fills in plan for tier cubin, or reports why it cannot.
func planCubin(plan *chosen, dev *vk.Device, cfg *problem.Config, r *Request) error {
	if err := checkCubin(dev, dev.Info(), cfg, r); err != nil {
		return err
	}
	if cfg.Tier == problem.TierAuto && cfg.KeyType != problem.KVSame && !decodesFaster(cfg, r) {
		return noCubin("its quantized decode was not measured to be the fastest: name the tier")
	}
	choice, err := registeredCubins().Choose(dev, problem.CUDAProblem{Shape: r.Shape, DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.ValueDim(),
		Causal: cfg.Causal != problem.CausalNone, Align: slices.Min(r.Align[:]), LSE: r.LSE, KV: cfg.KeyType, AnyArgs: r.AnyArgs,
		Options: r.Options.inCUDA(), PageSize: int(r.Options.pageSize), Rows: r.queryRows()})
	if err != nil {
		return err
	}
	if cfg.KeyType != problem.KVSame {
		plan.decodeOnCubin(dev.Caps(), cfg, r, &choice)
		return nil
	}
	if choice.Slow && cfg.Tier == problem.TierAuto {
		return noCubin("cooperative matrices are faster than its kernels for this architecture")
	}
	plan.Tier, plan.Kernel, plan.Tile = problem.TierCubin, choice.Name, fmt.Sprintf("%dx%d", choice.Rows, choice.Cols)
	plan.SharedBytes, plan.Workgroups, plan.Cubin = choice.SharedBytes, choice.Workgroups, choice.Kernel
	plan.Reason, plan.family, plan.rows = "asked for", "", choice.Rows
	if r.Options.Any() && choice.Rows == 128 {
		plan.family = shortFamily
	}
	return nil
}

// checkCubin reports why tier cubin cannot compute a request on a device, as far as that is known without its
// kernels. dev is nil if the device is not open.
func checkCubin(dev *vk.Device, info *vk.DeviceInfo, cfg *problem.Config, r *Request) error {
	c := registeredCubins()
	switch {
	case c == nil:
		return noCubin("it is not part of this program: import vkattn/cudapath")
	case r.Experiment != (problem.Experiment{}):
		return noCubin("variants and ablations are those of the cooperative-matrix kernels")
	case cfg.OType() != cfg.DType:
		return noCubin(noF32Outputs)
	case cfg.KeyType != problem.KVSame:
		if why := notInDecode(cfg, r); why != "" {
			return noCubin(why)
		}
	case cfg.FixedSplit != 0:
		return noCubin("its kernels take no fixed splits")
	case r.Options.notOnCubin() != "":
		return noCubin("its kernels take lengths, a window and pages, and no " + r.Options.notOnCubin())
	case r.Options.pageSize%decodePage != 0:
		return noCubin(fmt.Sprintf("its kernels take pages of multiples of %d keys, not %d", decodePage, r.Options.pageSize))
	case r.Options.Any() && (r.skAtLeast(maxCUDALength+1) || r.Shape.Sq > maxCUDALength):
		return noCubin(fmt.Sprintf("Sq %d and Sk %d: its kernels for options take at most 2^29", r.Shape.Sq, r.Shape.Sk))
	}
	if err := c.Check(dev, info, cfg.DType); err != nil {
		return err
	}
	if r.Access != problem.AccessAddresses {
		return noCubin("its kernels take device addresses, not descriptors")
	}
	return nil
}

// notOnCubin names an option of a call that the forward kernels of tier cubin do not take; "" if they take all.
func (f Options) notOnCubin() string {
	return cmp.Or(f.notInCUDA(), f.otherThan("lengths", "window", "pages"))
}

// decodePage divides the page size that the decode kernels and those of tier cubin take: the keys of one product.
const decodePage = 16

// notInDecode says what the quantized decode kernels of tier cubin do not take; "" if they take the call.
func notInDecode(cfg *problem.Config, r *Request) string {
	other := r.Options
	other.KV, other.valueType, other.kvBlock, other.pageSize, other.Lengths = problem.KVSame, problem.KVSame, 0, 0, 0
	const takes = "its quantized decode takes "
	switch option := other.notInCUDABackward(); {
	case cfg.KeyType.Latent():
		return fmt.Sprintf(takes+"no %v", cfg.KeyType)
	case cfg.KeyType != cfg.ValueType:
		return fmt.Sprintf(takes+"K and V of one type, not %v", cfg.KVName())
	case cfg.FixedSplit != 0:
		return takes + "no fixed splits"
	case cfg.KVBlock == problem.KVBlockHead && r.Shape.B > 1 && r.Options.pageSize == 0 && r.Options.Lengths&lengthCuK == 0:
		return takes + "scales of heads with pages or packed keys, or of one sequence"
	case option != "":
		return takes + "no " + option
	case other.window != 0:
		return takes + "no window"
	case other.softcap:
		return takes + "no softcap"
	case other.Any():
		return takes + "lengths, pages and scales, and no other option"
	case r.Options.pageSize%decodePage != 0:
		return fmt.Sprintf(takes+"pages of multiples of %d keys, not %d", decodePage, r.Options.pageSize)
	case min(r.Align[1], r.Align[2]) < 4:
		return takes + "K and V whose offsets and strides are multiples of 4 bytes"
	case r.Align[3] < 4:
		return takes + "O whose offsets and strides are multiples of 4 elements"
	case r.FarKV:
		return takes + nearKV
	}
	return ""
}

// decodesFaster reports whether tier cubin's decode of quantized K and V took less time on an H200 than that of cooperative
// matrices (docs/log/cubin.md, 10; docs/results/inference.md): one row. Conversion to bfloat16 costs the others several times as much. Pages were timed
// for bfloat16 and head dim 64.
func decodesFaster(cfg *problem.Config, r *Request) bool {
	d, bf16 := cfg.HeadDim, cfg.DType == problem.BF16
	const most = 1<<16 - 1 // heads and sequences of a grid, which no launch divides
	switch s := &r.Shape; {
	case s.Sq != 1 || r.SeparateCombine || r.Options.pageSize > 0 && !(bf16 && d == 64):
		return false
	case s.B > most || s.KVHeads() > most || r.FarKV || r.skAtLeast(1<<30+1):
		return false
	}
	switch cfg.KeyType {
	case problem.KVInt8:
		return bf16 && d != 128
	case problem.KVFP8:
		return bf16 || d == 64
	case problem.KVQ8_0:
		return bf16 || d <= 128
	case problem.KVQ4_0:
		return true
	}
	return false
}

// decodeSplitKeys is the fewest keys of a split of quantized decode: four KV tiles of each of four warps.
const decodeSplitKeys = 256

// queryRows are the query rows of all sequences.
func (r *Request) queryRows() uint64 {
	if r.Options.Lengths&LengthCuQ != 0 && r.TotalQ > 0 {
		return uint64(r.TotalQ)
	}
	return hostmem.Product(r.Shape.Sq, r.Shape.B)
}

// splitDecode fills in the splits of a decode kernel with row tiles of a number of query heads, whose states have a head dim.
func (plan *chosen) splitDecode(r *Request, tileHeads uint32, dim int, resident uint64) {
	rows, heads := r.queryRows(), uint64(r.Shape.Group())
	if r.Options.Lengths&LengthCuQ != 0 {
		rows = uint64(r.TotalQ)
	}
	tiles := hostmem.Product(rows, uint64(r.Shape.KVHeads()), arith.CeilDiv64(heads, uint64(tileHeads)))
	plan.Splitting = Splitting{groups: tiles, resident: resident, least: decodeSplitKeys}
	if r.SeparateCombine {
		plan.Splitting = SplittingOf(1)
		plan.Notes = append(plan.Notes, "keys are not split: the commands have no scratch memory with counters")
	}
	plan.Splits, plan.WorkspaceBytes = plan.Splitting.Of(r), 0
	plan.Workgroups = hostmem.Product(tiles, uint64(plan.Splits))
	if plan.Splits > 1 { // counters, and O, row max and row sum of the states
		counters := (hostmem.Product(4, tiles) + 255) &^ 255
		plan.WorkspaceBytes = hostmem.Sum(counters, hostmem.Product(4, plan.Workgroups, min(heads, uint64(tileHeads)), uint64(dim+4)))
	}
}

// decodeOnCubin fills in plan for a quantized decode kernel. Splits need counters that are 0.
func (plan *chosen) decodeOnCubin(caps *vk.Caps, cfg *problem.Config, r *Request, choice *problem.CubinChoice) {
	plan.splitDecode(r, choice.Rows, cfg.ValueDim(), coresOf(caps)*uint64(max(choice.Resident, 1)))
	plan.Tier, plan.Kernel, plan.Tile = problem.TierCubin, choice.Name, fmt.Sprintf("%dx%d", choice.Rows, choice.Cols)
	plan.family = "decode" // it has no pace
	plan.SharedBytes, plan.Cubin = choice.SharedBytes, choice.Kernel
	plan.Reason, plan.rows = "asked for", choice.Rows
}
