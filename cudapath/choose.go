package cudapath

import (
	"fmt"
	"math"
	"strings"

	"vkattn/attention"
)

// group is the kernels that are tried together: the smallest that holds the head
// dimensions is the one.
type group struct {
	family string
	any    bool
}

// order is from the fastest to the one that takes everything. fa3 keeps the tensor
// cores of sm_90 busy, fa2 runs on sm_80 and newer; loading elements one by one,
// for any alignment, costs it about half; ref is there to be right.
var order = []group{{"fa3", false}, {"fa2", false}, {"fa2", true}, {"ref", true}}

func (g group) String() string {
	if g.any && g.family != "ref" {
		return g.family + "_any"
	}
	return g.family
}

// choose is the best kernel for a problem, and for each better one why it is not.
func (t *table) choose(d *DeviceInfo, p *attention.CUDAProblem) (k *Kernel, rejected []string, err error) {
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

// tryGroup finds the kernel of a group for a problem, or says what is in the way.
func (t *table) tryGroup(g group, d *DeviceInfo, p *attention.CUDAProblem) (k *Kernel, why string) {
	dtype, ref := p.DType.String(), g.family == "ref"
	some, typed := false, false
	for i := range t.kernels {
		e := &t.kernels[i]
		if e.Family != g.family || !ref && e.Any != g.any {
			continue
		}
		some = true
		if e.DType != dtype {
			continue
		}
		typed = true
		if (ref || e.Causal == p.Causal) && e.D >= p.HeadDim && e.DV >= p.HeadDimV {
			k = e
			break
		}
	}
	switch {
	case !some:
		return nil, "not part of this build"
	case !typed:
		return nil, "there is none for " + dtype
	case k == nil:
		return nil, fmt.Sprintf("there is none for head dims %d/%d%s", p.HeadDim, p.HeadDimV, map[bool]string{true: ", causal"}[p.Causal])
	case !g.any && p.Align < alignment:
		return nil, fmt.Sprintf("head dims, offsets and strides have to be multiples of %d elements, these are of %d", alignment, p.Align)
	}
	return k, t.limits(k, d, p)
}

// alignment is what kernels that copy 16 bytes at once want, in elements.
const alignment = 8

// Limits of a grid and of the 32-bit numbers in the kernels' parameters.
const (
	maxGridX = math.MaxInt32
	maxGridY = 65535
)

// limits says what of a device does not suffice for a kernel.
func (t *table) limits(k *Kernel, d *DeviceInfo, p *attention.CUDAProblem) string {
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
	count := k.tiles(&p.Shape, min(p.B, k.batches()))
	if k.persistent() {
		if count.count() > math.MaxInt32 {
			return fmt.Sprintf("%d tiles, it counts them in 31 bits", count.count())
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

// tiles is how much of each there is in a shape, for so many batches of it.
func (k *Kernel) tiles(s *attention.Shape, batches int) tiles {
	rows := (uint64(s.Sq) + uint64(k.Rows) - 1) / uint64(k.Rows)
	return tiles{rows, uint64(s.Hq), uint64(batches)}
}

// batches is how many batches one launch may cover.
func (k *Kernel) batches() int {
	if k.persistent() {
		return math.MaxInt32
	}
	return maxGridY
}
