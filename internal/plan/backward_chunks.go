package plan

import (
	"math"

	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// BackwardChunks says how dS is stored for chunks of heads; zero: it is not stored. A head
// is a KV head of a sequence. See shaders/backward_scratch.glsl.
type BackwardChunks struct {
	Heads              int    // of a chunk
	Keys               int    // of a head in a chunk; 0: all
	KeyFrags, RowFrags uint32 // of a head in scratch
	DSBytes            uint64 // of a chunk

	// Rare is the kernel of dK and dV for the workgroups that the first dispatch marks, with
	// that kernel's grid. Without marks there is no second dispatch.
	Rare      BackwardVariant
	MarkBytes uint64 // of a chunk, behind dS
	headBytes uint64 // of a head
}

func (c *BackwardChunks) setHeads(n int) { c.Heads, c.DSBytes = n, uint64(n)*c.headBytes }

// evenChunks returns the heads of a chunk of as many chunks as at most `most` heads each need.
func evenChunks(heads, most int) int {
	chunks := (heads + most - 1) / most
	return (heads + chunks - 1) / chunks
}

// dsBudget returns the most bytes of dS: an eighth of the device's memory at most.
func dsBudget(caps *vk.Caps, r *BackwardRequest) uint64 {
	budget := uint64(maxDSBytes)
	if r.MaxDSBytes != 0 {
		budget = r.MaxDSBytes
	}
	var largest uint64
	for _, heap := range caps.MemoryHeaps {
		if heap.DeviceLocal {
			largest = max(largest, heap.Bytes)
		}
	}
	return min(budget, largest/8)
}

const maxGridY = 65535 // workgroups along y that every device dispatches

// chunksOf decides whether dS is stored, and for how many heads: as many as budget holds. If
// it holds none, or too few to fill a device, S and dP are computed twice instead.
func chunksOf(v *BackwardVariant, tier problem.Tier, f fragment, r *BackwardRequest, budget uint64) (c BackwardChunks) {
	dim, s := max(v.headDim, v.headDimV), &r.Shape
	switch {
	case tier != problem.TierCoopMat2 && !v.inRegisters, dim <= minChunkedDim || dim > maxChunkedDim,
		!r.Want.Q || !r.Want.K || !r.Want.V,
		r.Options.Lengths != 0 || r.Options.mapRows != 0,
		f.M != f.N || f.M != f.K || f.M*f.K != 8*f.Subgroup:
		return c
	}
	rows := (s.Sq*s.Group() + rowUnit - 1) / rowUnit * rowUnit
	keys := (s.Sk + keyUnit - 1) / keyUnit * keyUnit
	heads, headBytes := s.B*s.KVHeads(), hostmem.Product(rows, keys, 2)
	c.Heads = int(min(uint64(heads), budget/headBytes, maxGridY))
	if c.Heads == 0 || !c.fills(c.Heads, r) {
		return BackwardChunks{}
	}
	c.KeyFrags, c.RowFrags = uint32(keys)/f.M, uint32(rows)/f.M
	c.headBytes = headBytes
	c.setHeads(evenChunks(heads, c.Heads))
	return c
}

const markBytes = 16 // of a workgroup

// leaveRareWork fills in the second dispatch, if the kernel of dK and dV leaves rare work.
func (c *BackwardChunks) leaveRareWork(kernels []BackwardKernel) {
	for i := range kernels {
		if v := kernels[i].Variant; v.rareWork == markRareWork {
			c.MarkBytes = markBytes * uint64(kernels[i].Groups[0]) * uint64(c.Heads)
			v.rareWork = onlyRareWork
			c.Rare = v
		}
	}
}

// fills reports whether a chunk of n heads fills a device, or has all heads.
func (c *BackwardChunks) fills(n int, r *BackwardRequest) bool {
	keys := (r.Shape.Sk + keyUnit - 1) / keyUnit * keyUnit
	return n >= r.Shape.B*r.Shape.KVHeads() || r.MaxDSBytes != 0 || n*keys >= minChunkKeys
}

// Times of the kernels of a chunk on an H200, in row x key pairs of the kernel of dK and dV for each head dim of 128.
const (
	dKdVPairs  = 1.0  // of a row and a key that a workgroup of dK and dV owns
	dSKPairs   = 0.33 // of one of dQ = dS K, as long as its core is full
	chunkPairs = 23e3 // starting two dispatches, with their barriers
	unevenEnd  = 0.05 // rounds between the ends of the first and the last workgroup of a dispatch
)

// balance lowers the heads of a chunk where that keeps the cores busier. A barrier follows each dispatch, so that the
// cores are idle until the last workgroup ends: with 3 heads of length 16384 a chunk, 384 workgroups of dQ = dS K take
// two rounds of 264 and use 73 % of them; with 2 or 4 heads 97 %. Of chunks whose estimated times are within 1 % it takes
// the smallest.
func (c *BackwardChunks) balance(caps *vk.Caps, kernels []BackwardKernel, r *BackwardRequest) {
	heads := r.Shape.B * r.Shape.KVHeads()
	if c.Heads == 0 || caps.ShaderCores == 0 {
		return
	}
	most := c.Heads
	best, times := math.Inf(1), make([]float64, most+1)
	for n := 1; n <= most; n++ {
		times[n] = math.Inf(1)
		if n == evenChunks(heads, n) && c.fills(n, r) {
			times[n] = chunksTime(caps, kernels, r, heads, n)
			best = min(best, times[n])
		}
	}
	for n := 1; n <= most; n++ {
		if times[n] <= 1.01*best && times[n] < math.Inf(1) {
			c.setHeads(n)
			return
		}
	}
}

// chunksTime estimates the time of all heads in chunks of n.
func chunksTime(caps *vk.Caps, kernels []BackwardKernel, r *BackwardRequest, heads, n int) (time float64) {
	s := &r.Shape
	for i := range kernels {
		k := &kernels[i]
		var each, streamed float64
		switch k.Variant.Kernel {
		case KernelDKDV:
			each, streamed = dKdVPairs, float64(s.Sq*s.Group())
		case KernelDSK:
			each, streamed = dSKPairs, float64(s.Sk)
		default:
			continue
		}
		resident := max(1, uint64(caps.Limits.MaxSharedBytes)/max(1, k.SharedBytes))
		places := float64(uint64(caps.ShaderCores) * resident)
		round := each * float64(k.Variant.OwnedRows()) * float64(resident) * streamed
		rounds := func(heads int) float64 {
			groups := float64(k.Groups[0]) * float64(heads) / places
			if k.Variant.causal { // the longest workgroup, twice the mean, comes first
				return max(groups, 2) + unevenEnd
			}
			return math.Ceil(groups) + unevenEnd
		}
		full := heads / n
		time += round * float64(full) * rounds(n)
		if rest := heads % n; rest > 0 {
			time += round * rounds(rest)
		}
	}
	return time + chunkPairs*float64((heads+n-1)/n)
}
