package cudapath

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"vkattn/attention"
	"vkattn/internal/grid"
	"vkattn/internal/problem"
)

// group is a family of kernels, or the kernels of a family that need the same alignment.
// Of a group, the kernel with the smallest sufficient head dims is used, and of several with
// these the one that is predicted to be the fastest.
type group struct {
	family string
	any    bool
}

// order lists the groups from the fastest to the most general. fa3 uses the tensor cores
// of sm_90 fully; fa2 runs on sm_80 and newer. fa2 for any alignment loads single elements,
// at about half the speed. ref is for validation.
var order = []group{{"fa3", false}, {"fa2", false}, {"fa2", true}, {"ref", true}}

func (g group) String() string {
	if g.any && g.family != "ref" {
		return g.family + "_any"
	}
	return g.family
}

// choose returns the best kernel for a problem and, for each better group, the reason why
// it was not chosen.
func (t *table) choose(d *DeviceInfo, p *problem.CUDAProblem) (k *Kernel, rejected []string, err error) {
	for _, g := range order {
		if p.Kernel != "" && p.Kernel != g.family {
			continue
		}
		k, why := t.tryGroup(g, d, p)
		if why == "" {
			return k, rejected, nil
		}
		rejected = append(rejected, fmt.Sprintf("%v: %s", g, why))
	}
	return nil, nil, unsupported("choose a kernel", "%s", strings.Join(rejected, "; "))
}

// tryGroup returns the kernel of a group for a problem, or the reason why there is none.
func (t *table) tryGroup(g group, d *DeviceInfo, p *problem.CUDAProblem) (k *Kernel, why string) {
	dtype, ref := p.DType.String(), g.family == "ref"
	if p.VInK && g == order[0] {
		if k, why := t.latent(d, p); k != nil || why != "" {
			return k, why
		}
	}
	if p.KV.Latent() {
		return nil, fmt.Sprintf("it takes no %v", p.KV)
	}
	some, takes, typed := false, false, false
	var list []*Kernel
	for i := range t.kernels {
		e := &t.kernels[i]
		general := e.General && e.Any && g.family == "fa2" // also where the alignment is that of the other kernels
		if e.Latent || e.Family != g.family || !ref && e.Any != g.any && !general {
			continue
		}
		some = true
		if e.General != (p.Options != "") || e.Slots != p.Slots || e.Sequences && p.NotSequences != "" {
			continue
		}
		takes = true
		if e.DType != dtype {
			continue
		}
		typed = true
		if (ref || e.General || e.Causal == p.Causal) && e.D >= p.HeadDim && e.DV >= p.HeadDimV && (len(list) == 0 || e.D == list[0].D && e.DV == list[0].DV) {
			list = append(list, e)
		}
	}
	switch {
	case p.Tokens:
		return nil, "it takes sparse tokens in latent attention alone"
	case !some:
		return nil, "not part of this build"
	case !takes && p.Options != "":
		return nil, "it takes no " + cmp.Or(p.NotSequences, p.Options)
	case !typed:
		return nil, "there is none for " + dtype
	case len(list) == 0:
		return nil, fmt.Sprintf("there is none for head dims %d/%d%s", p.HeadDim, p.HeadDimV, map[bool]string{true: ", causal"}[p.Causal])
	case !g.any && p.Align < alignment:
		return nil, fmt.Sprintf("head dims, offsets and strides have to be multiples of %d elements, these are of %d", alignment, p.Align)
	}
	k = fastest(list, &p.Shape, uint32(d.SMs))
	return k, t.limits(k, d, p)
}

// chooseBackward returns the best kernels for the gradients of a problem, in the order in
// which they run, and the reasons against each better group.
func (t *table) chooseBackward(d *DeviceInfo, p *problem.CUDABackwardProblem) (list []*Kernel, rejected []string, err error) {
	for _, g := range order {
		if p.Kernel != "" && p.Kernel != g.family {
			continue
		}
		list, why := t.backwardOf(g, d, p)
		if why == "" {
			return list, rejected, nil
		}
		rejected = append(rejected, fmt.Sprintf("%v: %s", g, why))
	}
	return nil, rejected, unsupported("choose backward kernels", "%s", strings.Join(rejected, "; "))
}

// backwardOutputs are the outputs of backward kernels, in the order in which they run. The
// kernels of a call are of one module. If it has a kernel of all three gradients and one of
// dQ, the first leaves dQ in the workspace, and the second takes it from there.
var backwardOutputs = [...]string{"stats", "dQ dK dV", "dQ", "dK dV"}

// backwardOf returns the backward kernels of a group, or the reason why there are none.
func (t *table) backwardOf(g group, d *DeviceInfo, p *problem.CUDABackwardProblem) (list []*Kernel, why string) {
	keys, module := p.Want[1] || p.Want[2], ""
	for i, outputs := range backwardOutputs {
		if !([...]bool{true, p.Want[0] || keys, p.Want[0], keys})[i] {
			continue
		}
		k, some := t.backwardKernel(g, module, outputs, p)
		switch {
		case !some:
			continue
		case k == nil:
			return nil, fmt.Sprintf("there is none for %v at head dims %d/%d", p.DType, p.HeadDim, p.HeadDimV)
		case !k.Any && p.Align < alignment:
			return nil, fmt.Sprintf("head dims, offsets and strides have to be multiples of %d elements, these are of %d", alignment, p.Align)
		}
		if why := t.limits(k, d, &p.CUDAProblem); why != "" {
			return nil, why
		}
		if why := k.tooLong(p); why != "" {
			return nil, why
		}
		list, module = append(list, k), k.Module
	}
	if len(list) == 0 {
		return nil, "no backward kernels"
	}
	return list, ""
}

// backwardKernel returns the smallest kernel for an output that holds the head dims, and
// whether the group has any for it. If module is not empty, only its kernels count. A dense
// kernel precedes those that take options.
func (t *table) backwardKernel(g group, module, outputs string, p *problem.CUDABackwardProblem) (k *Kernel, some bool) {
	for i := range t.backward {
		e := &t.backward[i]
		if e.Family != g.family || e.Any != g.any || e.Outputs != outputs || module != "" && e.Module != module {
			continue
		}
		some = true
		options := p.Lengths || p.Window || p.Softcap
		kind := (!e.Dense || !options && e.Causal == p.Causal) && (e.Softcap == "" || (e.Softcap == "yes") == p.Softcap)
		if e.DType == p.DType.String() && kind && e.D >= p.HeadDim && e.DV >= p.HeadDimV {
			return e, true
		}
	}
	return nil, some
}

// maxSequencesRows limits rows and tiles of a kernel for sequences, which counts past their end in 31 bits.
const maxSequencesRows = 1 << 30

// alignment is the alignment in elements that kernels with 16-byte copies need.
const alignment = 8

// Limits of a grid and of the 32-bit numbers in the kernels' parameters.
const (
	maxGridX = math.MaxInt32
	maxGridY = 65535
)

// limits says which limit of a device a kernel exceeds.
func (t *table) limits(k *Kernel, d *DeviceInfo, p *problem.CUDAProblem) string {
	if _, ok := t.imageName(k.Module, d); !ok {
		return fmt.Sprintf("there is no code of it for compute capability %d.%d", d.Major, d.Minor)
	}
	switch {
	case len(k.Maps) > 0 && 10*d.Major+d.Minor < 90:
		return fmt.Sprintf("tensor maps need compute capability 9.0, the device has %d.%d", d.Major, d.Minor)
	case len(k.Maps) > 0 && d.Driver < 12000:
		return "tensor maps need a driver for CUDA 12"
	case k.Threads > d.MaxThreads:
		return fmt.Sprintf("%d threads a block, the device has %d", k.Threads, d.MaxThreads)
	case k.Shared > d.MaxShared:
		return fmt.Sprintf("%d bytes of shared memory a block, the device has %d", k.Shared, d.MaxShared)
	}
	if k.Latent {
		return k.latentLimits(p)
	}
	count := k.tiles(&p.Shape, min(p.B, k.batches()))
	if k.Outputs == "" { // of a forward kernel, which takes several launches
		parts := k.parts(&p.Shape)
		first, _ := parts.Next()
		shape := partOf(&p.Shape, first)
		count = k.tiles(&shape, shape.B)
	}
	if k.persistent() {
		n := max(count.count(), k.units(count))
		if k.Sequences && max(p.Rows, n) > maxSequencesRows {
			return fmt.Sprintf("%d rows of all sequences and %d tiles, it takes at most 2^30", p.Rows, n)
		}
		if n > math.MaxInt32 {
			return fmt.Sprintf("%d tiles, it counts them in 31 bits", n)
		}
		return ""
	}
	g, err := k.grid(count)
	if err != nil {
		return err.Error()
	}
	if g[0] > maxGridX || g[1] > maxGridY || g[2] > maxGridY {
		return fmt.Sprintf("a grid of %v blocks, the device takes %v", g, [3]int{maxGridX, maxGridY, maxGridY})
	}
	return ""
}

// tooLong says what a backward kernel would count past 31 bits: rows and keys up to the end of the
// last tiles, which may be two of rows; with options also those of all sequences; and the units of
// two launches.
func (k *Kernel) tooLong(p *problem.CUDABackwardProblem) string {
	up := func(n, of int) uint64 { return (uint64(n) + uint64(of) - 1) / uint64(of) * uint64(of) }
	rows, keys := up(p.Sq, 2*k.Rows), up(p.Sk, k.Cols)
	if !k.Dense {
		rows = max(rows, rowBlocks(&p.Shape, p.TotalQ, k)*uint64(k.Rows))
	}
	if rows > math.MaxInt32 || keys > math.MaxInt32 {
		return fmt.Sprintf("%d rows and %d keys with the rest of their tiles, it counts them in 31 bits", rows, keys)
	}
	if k.DSBytes > 0 {
		if u := unitsOf(&p.Shape, k, p.Want[0]); u.call+u.launch > math.MaxInt32 {
			return fmt.Sprintf("%d blocks of keys of all heads, and %d of a launch, it counts them in 31 bits", u.call, u.launch)
		}
	}
	return ""
}

// tiles counts row blocks, heads and batches of a shape, for some of its batches.
func (k *Kernel) tiles(s *attention.Shape, batches int) tiles {
	rows := (uint64(s.Sq) + uint64(k.Rows) - 1) / uint64(k.Rows)
	keys := (uint64(s.Sk) + uint64(k.Cols) - 1) / uint64(k.Cols)
	return tiles{rows: rows, heads: uint64(s.Hq), batch: uint64(batches), keys: keys, kvHeads: uint64(s.KVHeads())}
}

// batches is the largest number of batches, and of heads, of one launch.
func (k *Kernel) batches() int {
	if k.persistent() {
		return math.MaxInt32
	}
	return maxGridY
}

// parts divides the heads and batches of a forward call over launches.
func (k *Kernel) parts(s *attention.Shape) grid.Parts {
	most := k.batches()
	return grid.Parts{Heads: s.Hq, Batches: s.B, MostHeads: most, MostBatches: most, Group: s.Group()}
}

// partOf is the shape of a part of a call: whole groups of query heads, or some of one group.
func partOf(s *attention.Shape, part grid.Part) attention.Shape {
	return attention.Shape{B: part.Batches, Hq: part.Heads, Hkv: max(1, part.Heads/s.Group()), Sq: s.Sq, Sk: s.Sk}
}
