package plan

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"vkattn/internal/arith"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Which tier is the fastest for a call: the one whose kernel has the least estimated time. A table has the pace of each
// kernel, and one function estimates a time from it.

// withoutSPIRV are the tiers whose kernels are CUDA's.
var withoutSPIRV = []struct {
	tier problem.Tier
	here func() bool                                                // whether the program has the tier
	plan func(*chosen, *vk.Device, *problem.Config, *Request) error // fills in a plan, or says why it cannot
}{
	{problem.TierCUDA, func() bool { return RegisteredCUDA() != nil }, planCUDA},
	{problem.TierCubin, func() bool { return registeredCubins() != nil }, planCubin},
}

// WithTiles returns TierNoCUDA for TierAuto, for what only tiers with tiles have, and every other tier as it is.
func WithTiles(tier problem.Tier) problem.Tier {
	if tier == problem.TierAuto {
		return problem.TierNoCUDA
	}
	return tier
}

// pace is how long a kernel takes.
type pace struct {
	tier   problem.Tier
	family string // of tier cuda that of the kernel, of its smaller tiles and of decode tiles with their rows; of a SPIR-V module its suffix
	maxDim uint32 // the larger head dim
	causal bool   // of the decode and general kernels false

	launch float64 // us: begin and end
	block  float64 // us: a row block without keys
	load   float64 // ns: a key of a row block; of a SPIR-V module, if one subgroup loads it
	gemm   float64 // ps: a key and a row; of a SPIR-V module, if one subgroup multiplies them
}

// paces was fitted to 70 % of the cells of docs/results/2026-11-29-h200/tiers-2.jsonl.gz (f16, NVIDIA H200), all tiers
// interleaved: first to their times, then so that the estimates of a cell are in the order of its times.
// TestAutoIsTheFastest judges by all cells. The rows of head dim 576 are of latent attention (docs/log/cuda-latent.md). The row of fa3 for head dim 64 without a mask is of the race before, in which it
// had small problems too. The rows of fa2 and of tiers coopmat and scalar are from
// lengths 2048 to 16384 (docs/results/2026-11-27-h200/cuda-forward-race.jsonl.gz, docs/log/vulkan.md). Rows of a kernel
// and mask are in the order of head dims, and the last holds for larger ones too.
var paces = []pace{
	{problem.TierCoopMat2, "", 64, false, 0.881, 4.1, 6.82, 975},
	{problem.TierCoopMat2, "", 64, true, 0.116, 2.83, 144, 393},
	{problem.TierCoopMat2, "", 96, false, 4.94, 1.48, 4.87, 1100},
	{problem.TierCoopMat2, "", 96, true, 4.93, 1.47, 4.92, 1506},
	{problem.TierCoopMat2, "", 128, false, 2.25, 0.401, 2.2, 3975},
	{problem.TierCoopMat2, "", 128, true, 0.987, 3.35, 1.13, 2806},
	{problem.TierCoopMat2, "", 192, false, 4.98, 1.49, 4.95, 2625},
	{problem.TierCoopMat2, "", 192, true, 4.98, 1.49, 4.98, 3550},
	{problem.TierCoopMat2, "", 256, false, 5, 1.5, 4.99, 4356},
	{problem.TierCoopMat2, "_decode 16", 64, false, 11, 0, 6.56, 1931},
	{problem.TierCoopMat2, "_decode 16", 128, false, 13.1, 0.117, 8.12, 4200},
	{problem.TierCoopMat2, "_decode 16", 576, false, 22, 0, 8, 27000},
	{problem.TierCoopMat2, "_decode 8", 64, false, 10.2, 0.0954, 1.87, 1238},
	{problem.TierCoopMat2, "_decode 8", 128, false, 10.6, 0.9, 6.91, 2231},
	{problem.TierCoopMat2, "_general", 64, false, 12.8, 2.29, 4.56, 912},
	{problem.TierCoopMat2, "_general", 128, false, 13, 1.56, 0, 1594},
	{problem.TierCubin, "", 64, false, 4.52, 2.46, 5.99, 33.2},
	{problem.TierCubin, "", 64, true, 5.21, 2.3, 6.84, 34.8},
	{problem.TierCubin, "", 96, false, 4.99, 1.49, 4.68, 66.8},
	{problem.TierCubin, "", 96, true, 4.98, 1.49, 4.77, 70.2},
	{problem.TierCubin, "", 128, false, 7.13, 0, 8.5, 54.9},
	{problem.TierCubin, "", 128, true, 2.77, 5.22, 7.62, 60.7},
	{problem.TierCubin, "", 192, false, 5.01, 1.51, 5.26, 89.2},
	{problem.TierCubin, "", 192, true, 5.05, 1.52, 5.43, 96.7},
	{problem.TierCubin, shortFamily, 64, false, 5, 2.5, 4.5, 37},
	{problem.TierCubin, shortFamily, 64, true, 5, 2.5, 4.5, 35.5},
	{problem.TierCubin, shortFamily, 128, false, 5, 3.4, 7.3, 58.6},
	{problem.TierCubin, shortFamily, 128, true, 5, 3.4, 7.6, 60.7},
	{problem.TierCUDA, "fa3", 64, false, 5.17, 1.85, 4.57, 28.8},
	{problem.TierCUDA, "fa3", 64, true, 5.09, 1.76, 3.47, 37.4},
	{problem.TierCUDA, "fa3", 96, false, 4.94, 1.47, 4, 47.8},
	{problem.TierCUDA, "fa3", 96, true, 4.91, 1.45, 4.12, 50.6},
	{problem.TierCUDA, "fa3", 128, false, 6.22, 2.22, 4.44, 59},
	{problem.TierCUDA, "fa3", 128, true, 8.12, 1.8, 6.02, 43.3},
	{problem.TierCUDA, "fa3", 192, false, 4.99, 1.5, 4.82, 74.3},
	{problem.TierCUDA, "fa3", 192, true, 5, 1.5, 5.04, 81.2},
	{problem.TierCUDA, "fa3", 256, false, 5.04, 1.51, 5.77, 115},
	{problem.TierCUDA, "fa3 128", 64, false, 4.89, 1.58, 3.2, 45.5},
	{problem.TierCUDA, "fa3 128", 64, true, 6.66, 1.46, 3.11, 46.7},
	{problem.TierCUDA, "fa3 128", 128, false, 6.21, 1.49, 3.12, 63.5},
	{problem.TierCUDA, "fa3 64", 64, false, 4.54, 1.22, 3.47, 49.4},
	{problem.TierCUDA, "fa3 64", 64, true, 5.16, 1.28, 3.23, 53.4},
	{problem.TierCUDA, "fa3 64", 128, false, 6.59, 0.0286, 4.18, 63.8},
	{problem.TierCUDA, "fa3 64", 128, true, 5.02, 2.1, 4.25, 64.6},
	{problem.TierCUDA, "fa2", 64, false, 5, 3, 0, 87},
	{problem.TierCUDA, "fa2", 64, true, 5, 3, 0, 98},
	{problem.TierCUDA, "fa2", 128, false, 5, 3, 0, 160},
	{problem.TierCUDA, "fa2", 128, true, 5, 3, 0, 181},
	{problem.TierCUDA, "fa2", 256, false, 5, 3, 0, 342},
	{problem.TierCUDA, "fa2", 256, true, 5, 3, 0, 366},
	{problem.TierCUDA, latentFamily, 576, false, 5, 15, 33.7, 0},
	{problem.TierCoopMat, "", 64, false, 5, 2, 5, 1440},
	{problem.TierCoopMat, "", 64, true, 5, 2, 5, 1750},
	{problem.TierCoopMat, "", 128, false, 5, 2, 5, 2750},
	{problem.TierCoopMat, "", 128, true, 5, 2, 5, 3380},
	{problem.TierScalar, "", 64, false, 5, 2, 5, 6880},
	{problem.TierScalar, "", 64, true, 5, 2, 5, 7500},
	{problem.TierScalar, "", 128, false, 5, 2, 5, 1.35e+04},
	{problem.TierScalar, "", 128, true, 5, 2, 5, 1.38e+04},
}

// paceOf returns the pace of a kernel, nil if it was not measured. Where no general kernel was, the dense one stands for
// it.
func paceOf(w *work, dim uint32, causal bool) (p *pace) {
	for i := range paces {
		x := &paces[i]
		masked := x.causal == (causal && !w.general())
		if x.tier == w.tier && x.family == w.family && masked && (p == nil || p.maxDim < dim) {
			p = x
		}
	}
	if p == nil && w.family == "_general" {
		dense := *w
		dense.family = ""
		return paceOf(&dense, dim, causal)
	}
	return p
}

// latentFamily is the family of tier cuda's kernels of latent attention: tileFamily of package cudapath.
const latentFamily = "fa3 latent"

// shortFamily is that of tier cubin's tiles of 128 rows for options (docs/log/cubin.md, 11). The longer ones have the pace of dense calls.
const shortFamily = "short"

// memoryPace is the bytes that an H200 reads or writes in a microsecond.
const memoryPace = 4.2e6

// work is what the time of a kernel depends on, other than the call.
type work struct {
	tier      problem.Tier
	family    string
	rows      uint32 // of a row block
	subgroups uint32 // of a workgroup; 0: the CTA's of CUDA's kernels
	blocks    uint64 // of all heads and batches, with splits
	splits    int
}

// time estimates how long a kernel takes for a call, in us; 0 if it was not measured. Multiprocessors that take one row
// block after another take as long as the one with the most of them, but no kernel is faster than the memory.
func (w *work) time(cfg *problem.Config, r *Request, cores uint64) float64 {
	p := paceOf(w, uint32(max(cfg.HeadDim, cfg.ValueDim())), cfg.Causal != problem.CausalNone)
	if p == nil {
		return 0
	}
	s := &r.Shape
	keys := float64(r.keys())
	mean := keys // of the row blocks
	if cfg.Causal == problem.TopLeft {
		keys = float64(min(s.Sk, s.Sq))
	}
	if cfg.Causal != problem.CausalNone {
		mean = min(float64(s.Cells(cfg.Causal))/float64(s.Sq)+float64(min(int(w.rows), s.Sq))/2, keys)
	}
	var busy float64
	switch causal := cfg.Causal != problem.CausalNone; {
	case w.family == latentFamily: // its CTAs share the keys of all sequences
		tiles := arith.CeilDiv64(uint64(s.Sq)*uint64(s.Hq), uint64(w.rows)) * uint64(s.B)
		busy = w.block(p, s, float64(tiles)*keys/float64(cores))
	case w.subgroups == 0 && causal && w.blocks <= cores: // each is a CTA's
		busy = w.block(p, s, keys)
	case w.subgroups == 0 && causal && r.Options.Lengths&LengthCuQ == 0:
		busy = float64(pairedBlocks(s, w.rows, cores)) * w.block(p, s, mean)
	case w.subgroups == 0:
		busy = float64(arith.CeilDiv64(w.blocks, cores)) * w.block(p, s, mean)
	default:
		resident := cores * uint64(max(8/w.subgroups, 1))
		n := float64(w.splits)
		if !causal || w.decodes() {
			busy = float64(arith.CeilDiv64(w.blocks, resident)) * w.block(p, s, mean/n)
		} else { // the longest begin first
			busy = max(w.block(p, s, keys/n), float64(w.blocks)*w.block(p, s, mean/n)/float64(resident))
		}
	}
	bytes := float64(tensorBytes(*cfg, *s, false))
	if r.VInK { // V is read with K
		bytes -= float64(s.B) * float64(s.Sk) * float64(cfg.ValueDim()*cfg.DType.Size())
	}
	return p.launch + max(busy, bytes/memoryPace)
}

// block is the time of a row block with a number of keys, in us.
func (w *work) block(p *pace, s *problem.Shape, keys float64) float64 {
	if w.subgroups == 0 { // a warpgroup without rows multiplies nothing
		rows := min(w.rows, arith.CeilDiv32(uint32(s.Sq), 64)*64)
		return p.block + 1e-3*keys*(p.load+1e-3*p.gemm*float64(rows))
	}
	return p.block + 1e-3*keys*(p.load+1e-3*p.gemm*float64(w.rows))/float64(w.subgroups)
}

// pairedBlocks is the number of row blocks of the busiest CTA of a persistent kernel under a causal mask, if there are
// more blocks than CTAs: these take pairs of blocks of a head in turn, a long and a short one, then the middle blocks (cudapath/kernels/fa3_work.h).
func pairedBlocks(s *problem.Shape, rows uint32, cores uint64) uint64 {
	heads, n := uint64(s.B)*uint64(s.Hq), uint64(arith.CeilDiv32(uint32(s.Sq), rows))
	pairs, middle := n/2*heads, n%2*heads
	rounds, more := pairs/cores, pairs%cores
	most := 2*rounds + arith.CeilDiv64(middle, cores)
	if more > 0 {
		after := uint64(0) // middle blocks of the first CTA, which has a pair more
		if idle := cores - more; middle > idle {
			after = arith.CeilDiv64(middle-idle, cores)
		}
		most = max(most, 2*(rounds+1)+after)
	}
	return most
}

// workOf is the work of a plan for a request.
func workOf(plan *chosen, r *Request) work {
	if plan.Tier.WithoutSPIRV() {
		return work{tier: plan.Tier, family: plan.family, rows: plan.rows, blocks: plan.Workgroups, splits: 1}
	}
	v := &plan.Variant
	w := work{tier: plan.Tier, family: v.family(), rows: v.Tile.Rows(), blocks: plan.Workgroups, splits: 1,
		subgroups: v.Tile.LocalSize() / max(v.Tile.SubgroupSize(), 32)}
	if w.decodes() {
		w.family = decodeFamily(w.rows)
	}
	if v.Options.Any() {
		splits := plan.Splitting.Of(r)
		w.blocks, w.splits = v.workgroups(r, splits), splits*v.Tile.Splits()
	}
	return w
}

// seeOctant notes that a plan depends on Sk by its first four bits, and returns the request with the Sk that stands for
// those: the tier is the same for neighbouring lengths, so that steps of decoding share a plan.
func (r *Request) seeOctant() Request {
	of := *r
	octave := 1 << (bits.Len(uint(r.Shape.Sk)) - 1)
	step := max(octave/8, 1)
	of.Shape.Sk = (r.Shape.Sk + step/2) / step * step
	r.skAtLeast(max(octave, of.Shape.Sk-step/2))
	r.skAtLeast(min(2*octave, of.Shape.Sk-step/2+step))
	return of
}

// decodes and general report whether a kernel is the decode kernel, and whether it takes every option.
func (w *work) decodes() bool { return strings.HasPrefix(w.family, "_decode") }
func (w *work) general() bool {
	return w.decodes() || w.family == "_general" || w.family == latentFamily
}

// decodeFamily is the family of the decode kernel with so many rows in a tile.
func decodeFamily(rows uint32) string { return fmt.Sprintf("_decode %d", min(rows, 16)) }

// leavesFewRows reports whether a kernel is the decode kernel for a call with options, which was faster than tier cubin's with 16 rows over 4096 keys.
func (w *work) leavesFewRows(r *Request) bool { return w.decodes() && r.Options.Any() }

// decodesOneRow reports whether the decode kernel computes a call of one row.
func (w *work) decodesOneRow(r *Request) bool { return w.decodes() && r.Shape.Sq == 1 }

// fastestOf returns which of some kernels takes the least time, by estimate, and the estimates in us. A kernel that was
// not measured is not taken before another. One row is the decode kernel's: but for those of latent attention, the others
// neither pack heads nor split keys.
func fastestOf(list []work, cfg *problem.Config, r *Request, cores uint64) (best int, times []float64) {
	times = make([]float64, len(list))
	latent := slices.ContainsFunc(list, func(w work) bool { return w.family == latentFamily })
	for i := range list {
		if list[i].decodesOneRow(r) && !latent {
			return i, times
		}
		times[i] = list[i].time(cfg, r, cores)
		if times[i] > 0 && (times[best] == 0 || times[i] < times[best]) {
			best = i
		}
	}
	return best, times
}

// fastest returns the plan of the fastest tier: vulkan, unless err says why there is none, or that of a tier whose
// kernels are CUDA's. plan is the plan so far.
func fastest(plan, vulkan chosen, err error, dev *vk.Device, cfg *problem.Config, r *Request) (chosen, error) {
	r.seen = &vulkan.Range
	var list []chosen
	if err == nil {
		if w := workOf(&vulkan, r); w.decodesOneRow(r) && !r.mayBeLatent() { // without an estimate
			if decodesFaster(cfg, r) && registeredCubins() != nil {
				p := plan
				why := planCubin(&p, dev, cfg, r)
				if why == nil {
					p.Range, p.Reason = vulkan.Range, "the fastest of those that were timed"
					return p, nil
				}
				vulkan.Rejected = append([]problem.Rejection{{Tier: problem.TierCubin, Reason: why.Error()}}, vulkan.Rejected...)
			}
			return vulkan, nil
		}
		list = append(list, vulkan)
	}
	var rejected []problem.Rejection
	for _, x := range withoutSPIRV {
		if !x.here() {
			continue
		}
		p := plan
		why := x.plan(&p, dev, cfg, r)
		if why == nil && x.tier == problem.TierCubin && err == nil {
			if w := workOf(&vulkan, r); w.leavesFewRows(r) {
				why = noCubin("its row tiles were slower than the decode kernel")
			}
		}
		if why != nil {
			rejected = append(rejected, problem.Rejection{Tier: x.tier, Reason: why.Error()})
			continue
		}
		list = append(list, p)
	}
	switch {
	case len(list) == 0, len(list) == 1 && err == nil:
		vulkan.Rejected = append(rejected, vulkan.Rejected...)
		return vulkan, err
	}
	of := r.seeOctant()
	works := make([]work, len(list))
	for i := range list {
		works[i] = workOf(&list[i], &of)
	}
	best, times := fastestOf(works, cfg, &of, coresOf(dev.Caps()))
	for i := range list {
		reason := fmt.Sprintf("slower, %.3g us by estimate", times[i])
		if times[i] == 0 {
			reason = "its kernel was not measured"
		}
		if i != best {
			rejected = append(rejected, problem.Rejection{Tier: list[i].Tier, Reason: reason})
		}
	}
	taken := list[best]
	taken.Range, taken.Rejected = vulkan.Range, append(rejected, taken.Rejected...)
	taken.Reason = fmt.Sprintf("the fastest, %.3g us by estimate", times[best])
	return taken, nil
}
