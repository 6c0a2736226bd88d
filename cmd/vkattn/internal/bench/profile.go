package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"vkattn/attention"
	"vkattn/internal/hostmem"
	"vkattn/vk"
)

// Profile says where the time of one problem goes.
type Profile struct {
	Run     *RunInfo `json:"run"`
	Problem string   `json:"problem"`
	Row     *Row     `json:"row"` // verified and timed as by Group, without timestamps between dispatches

	Dispatches []ProfiledDispatch `json:"dispatches"`
	// OtherUs is the median time that no dispatch takes: barriers, fills and gaps. It
	// includes what the observation itself adds.
	OtherUs  float64         `json:"other_us"`
	Ceilings ProfileCeilings `json:"ceilings"`

	Bytes       uint64  `json:"bytes"`                 // of the tensors that must be read and written, each once
	TBs         float64 `json:"tb_per_s"`              // Bytes over the median time
	OfCopy      float64 `json:"of_copy"`               // TBs over the TBs of a copy
	OfPeak      float64 `json:"of_peak,omitzero"`      // TFLOP/s over the peak
	OfLaunches  float64 `json:"of_launches"`           // share of the time that as many empty dispatches and barriers take
	Bound       string  `json:"bound"`                 // what bounds the speed: memory, compute, launches or latency
	Explanation string  `json:"explanation,omitempty"` // the numbers that Bound follows from

	Trace []TracedDispatch `json:"-"`
}

// ProfiledDispatch is a dispatch of one run. Dispatches are serialized by barriers.
type ProfiledDispatch struct {
	Pipeline   string      `json:"pipeline"`
	Groups     [3]uint32   `json:"groups"`
	LocalSize  uint32      `json:"local_size"` // invocations of a workgroup
	Us         float64     `json:"us"`         // median
	MinUs      float64     `json:"us_min"`
	MaxUs      float64     `json:"us_max"`
	Share      float64     `json:"share"` // of the time of all dispatches
	Statistics []Statistic `json:"statistics,omitempty"`
	Occupancy  *Estimate   `json:"occupancy,omitempty"`
}

// Statistic is a statistic of the driver's compiler.
type Statistic struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Estimate is the occupancy of a multiprocessor of an NVIDIA GPU, computed from registers
// and shared memory.
type Estimate struct {
	Workgroups int     `json:"workgroups"` // of one multiprocessor at a time
	Subgroups  int     `json:"subgroups"`
	Share      float64 `json:"share"` // of the subgroups that a multiprocessor can hold
	Limit      string  `json:"limit"` // "registers", "shared memory", "invocations" or "workgroups"
}

// ProfileCeilings are the highest speeds of the device.
type ProfileCeilings struct {
	CopyTBs    float64 `json:"copy_tb_per_s"`        // read and written
	DispatchUs float64 `json:"dispatch_us"`          // of an empty dispatch in a row of them
	BarrierUs  float64 `json:"barrier_us"`           // that a barrier between two adds
	PeakTFLOPs float64 `json:"peak_tflops,omitzero"` // products from registers, of the tier and storage type; 0: not known
	PeakGiven  bool    `json:"peak_given,omitzero"`  // by the caller; otherwise it was measured
	CopyBytes  uint64  `json:"copy_bytes"`           // of one copy, read and written
}

// TracedDispatch is a dispatch with its times since the first of the trace.
type TracedDispatch struct {
	Run        int
	Name       string
	Groups     [3]uint32
	Begin, End time.Duration
}

const profileRuns = 10

// Profile verifies and times a problem on one tier that records dispatches, or launches of cubins, and then times these one
// by one. peak is the speed of the device's matrix products in TFLOP/s; 0: it is measured.
func (b *Bench) Profile(ctx context.Context, p Problem, peak float64) (*Profile, error) {
	if b.Device == nil || len(b.Specs) != 1 || b.Specs[0].Tier == attention.TierCUDA {
		return nil, fmt.Errorf("%w: a profile needs a tier in a Vulkan command buffer", attention.ErrUnsupported)
	}
	if b.Device.Vulkan().Caps().Limits.TimestampValidBits == 0 {
		return nil, fmt.Errorf("%w: the queue has no timestamps", attention.ErrUnsupported)
	}
	if err := errors.Join(p.Shape.Validate(), b.pause(ctx)); err != nil {
		return nil, err
	}
	g := &group{Bench: b, problem: p}
	defer g.close()
	c, row := g.candidate(ctx, b.Specs[0])
	out := &Profile{Row: row, Problem: p.String()}
	if c == nil {
		return out, errors.Join(ctx.Err(), g.lost)
	}
	if row.Tier == attention.TierCUDA.String() {
		row.Status, row.Reason = Unsupported, "tier cuda records no Vulkan dispatch: name a Vulkan tier"
		return out, nil
	}
	if err := g.time(ctx, []*candidate{c}); err != nil || row.Status != OK {
		return out, err
	}
	if err := g.observe(ctx, c, out); err != nil {
		if errors.Is(err, vk.ErrTimestamps) {
			err = fmt.Errorf("%w: the device's timestamps are unusable", attention.ErrUnsupported)
		}
		return out, err
	}
	var err error
	if out.Ceilings, err = b.ceilings(ctx, row.Tier, p.Config.DType, peak); err != nil {
		return out, err
	}
	q, _, _, o := p.tensors()
	out.Bytes = hostmem.Sum(hostmem.Product(hostmem.Sum(q, o), uint64(p.Config.DType.Size())), row.KVBytes)
	if p.LSE {
		out.Bytes = hostmem.Sum(out.Bytes, p.footprint().lse)
	}
	if p.Pass != PassForward {
		out.Bytes = row.Memory
	}
	out.judge()
	return out, nil
}

// observe times the dispatches of a few runs.
func (g *group) observe(ctx context.Context, c *candidate, out *Profile) error {
	stream := g.setups[0].runner.Stream
	var seen []vk.Dispatched
	var local []uint32
	var stats [][]Statistic
	warm := false
	see := func(d vk.Dispatched) {
		i := len(seen)
		seen = append(seen, d)
		if warm { // later runs have the same pipelines as the first
			return
		}
		local = append(local, d.LocalSize[0]*d.LocalSize[1]*d.LocalSize[2])
		stats = append(stats, nil)
		if f := d.Function; f != nil {
			stats[i] = []Statistic{{registerCount, float64(f.Registers())}, {"Local Memory Size", float64(f.LocalBytes())},
				{sharedMemorySize, float64(f.StaticSharedBytes() + int(d.SharedBytes))}}
			return
		}
		list, err := d.Pipeline.Statistics()
		if err != nil {
			return
		}
		for _, s := range list {
			stats[i] = append(stats[i], Statistic{s.Name, s.Value})
		}
	}
	defer func() { _ = stream.Observe(nil) }()
	times := [][]float64{}
	var other []float64
	var origin vk.Mark
	observed := func() (total []time.Duration, err error) {
		seen = seen[:0]
		err = g.within(ctx, func(ctx context.Context) (err error) {
			total, err = c.run(ctx, 1)
			return err
		})
		return total, err
	}
	// The first run asks for statistics, which takes so long that the clocks of an idle device fall.
	if err := stream.Observe(see); err != nil {
		return err
	}
	if _, err := observed(); err != nil {
		return err
	}
	warm = true
	if err := errors.Join(stream.Observe(nil), g.warm(ctx, c), stream.Observe(see)); err != nil {
		return err
	}
	for run := range profileRuns {
		total, err := observed()
		if err != nil {
			return err
		}
		if run == 0 {
			times = make([][]float64, len(seen))
			if len(seen) == 0 {
				return fmt.Errorf("%w: tier %s records no Vulkan dispatch", attention.ErrUnsupported, out.Row.Tier)
			}
			origin = seen[0].Begin
		}
		if c.clock.broken {
			return vk.ErrTimestamps
		}
		rest := total[0]
		for i, d := range seen {
			begin, err := stream.Elapsed(origin, d.Begin)
			if err != nil {
				return err
			}
			took, err := stream.Elapsed(d.Begin, d.End)
			if err != nil {
				return err
			}
			rest -= took
			times[i] = append(times[i], microseconds(took))
			out.Trace = append(out.Trace, TracedDispatch{Run: run, Name: d.Name, Groups: d.Groups, Begin: begin, End: begin + took})
		}
		other = append(other, microseconds(max(rest, 0)))
	}
	var sum float64
	for i, d := range seen {
		s := Summarize(times[i])
		sum += s.Median
		p := ProfiledDispatch{Pipeline: d.Name, Groups: d.Groups, LocalSize: local[i], Us: s.Median, MinUs: s.Min,
			MaxUs: s.Max, Statistics: stats[i]}
		if g.Device.Vulkan().Info().VendorID == vendorNVIDIA {
			p.Occupancy = estimate(local[i], stats[i])
		}
		out.Dispatches = append(out.Dispatches, p)
	}
	if sum <= 0 {
		return vk.ErrTimestamps
	}
	for i := range out.Dispatches {
		out.Dispatches[i].Share = out.Dispatches[i].Us / sum
	}
	out.OtherUs = Summarize(other).Median
	return nil
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// vendorNVIDIA is the PCI vendor ID of NVIDIA.
const vendorNVIDIA = 0x10de

// Limits of a multiprocessor of NVIDIA GPUs of compute capability 8.0 and 9.0. All
// workgroups of a multiprocessor together have about 48 KiB of shared memory in Vulkan
// (H200, driver 580.159).
const (
	smRegisters  = 65536
	smSubgroups  = 64
	smWorkgroups = 32
	smShared     = 48 << 10
)

// Statistics of NVIDIA's compiler that estimate reads.
const (
	registerCount    = "Register Count"
	sharedMemorySize = "Shared Memory Size"
)

// estimate computes the occupancy. It returns nil if the driver reports no registers.
func estimate(local uint32, stats []Statistic) *Estimate {
	var registers, shared float64
	for _, s := range stats {
		switch {
		case strings.EqualFold(s.Name, registerCount):
			registers = max(registers, s.Value)
		case strings.EqualFold(s.Name, sharedMemorySize):
			shared = max(shared, s.Value)
		}
	}
	if registers == 0 || local == 0 {
		return nil
	}
	subgroups := (int(local) + 31) / 32
	perSubgroup := (int(registers) + 7) / 8 * 8 * 32 // registers are allocated in units of 8 per invocation
	e := &Estimate{Workgroups: smRegisters / perSubgroup / subgroups, Limit: "registers"}
	for _, limit := range []struct {
		workgroups int
		name       string
	}{{smSubgroups / subgroups, "invocations"}, {smWorkgroups, "workgroups"}} {
		if limit.workgroups < e.Workgroups {
			e.Workgroups, e.Limit = limit.workgroups, limit.name
		}
	}
	if shared > 0 {
		if n := max(1, int(smShared/shared)); n < e.Workgroups {
			e.Workgroups, e.Limit = n, "shared memory"
		}
	}
	e.Subgroups = e.Workgroups * subgroups
	e.Share = float64(e.Subgroups) / smSubgroups
	return e
}

// ceilings measures the ceilings of the device as suite ceilings does; the products are those
// of a tier and a storage type. peak takes the place of the measured products unless it is
// 0. What the device cannot measure stays 0.
func (b *Bench) ceilings(ctx context.Context, tier string, dtype attention.DType, peak float64) (out ProfileCeilings, err error) {
	out.PeakTFLOPs, out.PeakGiven = peak, peak > 0
	if tier == attention.TierScalar.String() {
		dtype = attention.F32 // it multiplies in float32
	}
	list := []Problem{{Ceiling: CeilingCopy}, {Ceiling: CeilingDispatch}, {Ceiling: CeilingBarrier}}
	if peak == 0 {
		list = append(list, productsOf(dtype))
	}
	var rows []*Row
	for _, p := range list {
		more, err := b.Group(ctx, p)
		if err != nil {
			return out, err
		}
		for _, r := range more {
			if r.Status != OK && r.Status != Unsupported {
				return out, fmt.Errorf("ceiling %v: %s", p, r.Note())
			}
		}
		rows = append(rows, more...)
	}
	for _, r := range rows {
		switch {
		case r.Status != OK:
		case r.Ceiling == CeilingCopy:
			out.CopyTBs, out.CopyBytes = r.TBs, r.Bytes
		case r.Ceiling == CeilingDispatch:
			out.DispatchUs = r.Ms.Median * 1e3
		case r.Ceiling.typed():
			out.PeakTFLOPs = r.TFLOPs
		}
	}
	out.BarrierUs = barrierMs(rows) * 1e3
	return out, nil
}

// bounded is the share of a ceiling from which on it bounds the speed.
const bounded = 0.6

// judge says what bounds the speed.
func (p *Profile) judge() {
	us := p.Row.Ms.Median * 1e3
	if us <= 0 {
		return
	}
	p.TBs = float64(p.Bytes) / us / 1e6
	if p.Ceilings.CopyTBs > 0 {
		p.OfCopy = p.TBs / p.Ceilings.CopyTBs
	}
	if p.Ceilings.PeakTFLOPs > 0 {
		p.OfPeak = p.Row.TFLOPs / p.Ceilings.PeakTFLOPs
	}
	p.OfLaunches = float64(len(p.Dispatches)) * (p.Ceilings.DispatchUs + p.Ceilings.BarrierUs) / us
	peak := "no peak is known"
	if p.OfPeak > 0 {
		peak = fmt.Sprintf("%.3g %% of the peak of matrix products", 100*p.OfPeak)
	}
	p.Explanation = fmt.Sprintf("%.3g %% of a copy's bandwidth, %s, launches take %.3g %% of the time", 100*p.OfCopy,
		peak, 100*p.OfLaunches)
	highest := max(p.OfCopy, p.OfPeak, p.OfLaunches)
	switch {
	case highest < bounded && p.OfPeak == 0:
		p.Bound = "compute or latency"
	case highest < bounded:
		p.Bound = "latency"
	case highest == p.OfLaunches:
		p.Bound = "launches"
	case highest == p.OfCopy:
		p.Bound = "memory"
	default:
		p.Bound = "compute"
	}
}
