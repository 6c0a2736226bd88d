package attention

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// tuneTile is a tile of the table with what a tuning needs of it.
type tuneTile struct {
	plan.Judgement
	entry           plan.TuningEntry // its key and name, and of candidates the hash
	local, subgroup uint32           // sizes; subgroup 0: the kernel needs none
}

// forwardTile describes an option of the forward kernels.
func forwardTile(o plan.Option) tuneTile {
	return tuneTile{o.Judgement, plan.TuningEntry{Tile: plan.KeyOf(o.V.Tile), Name: o.V.Describe()}, o.V.Tile.LocalSize(), o.V.Tile.SubgroupSize()}
}

// candidate is a tile that may be compiled and run.
type candidate struct {
	tuneTile
	op       *Op                          // plans every call with the tile
	pipeline func() (*vk.Pipeline, error) // compiles the kernel with the tile
	built    bool                         // compiled; if not, err may say why
	compile  time.Duration
	stats    compilerStats
	err      error
}

// newCandidate makes a candidate of the forward kernels with an operation that uses only
// o's tile. cfg names its tier.
func newCandidate(dev *vk.Device, cfg problem.Config, o plan.Option, r plan.Request) *candidate {
	c := &candidate{tuneTile: forwardTile(o), op: newOp(dev, cfg, o.V.Experiment, plan.PickOnly(o.V.Tile))}
	c.entry.SPIRV = o.V.SPIRV()
	c.pipeline = func() (*vk.Pipeline, error) {
		p, err := c.op.prepare(r)
		if err != nil {
			return nil, err
		}
		return p.pipeline, nil
	}
	return c
}

// close releases the pipeline: a tuning makes dozens.
func (c *candidate) close() {
	for _, p := range c.op.pipelines.All() {
		_ = p.Close()
	}
	_ = c.op.Close()
}

// build compiles the candidate's pipeline and reads the compiler's statistics of it.
func (c *candidate) build() {
	start := time.Now()
	p, err := c.pipeline()
	c.compile = time.Since(start)
	if err != nil {
		c.err = err
		return
	}
	c.built = true
	if list, err := p.Statistics(); err == nil {
		subgroup := c.subgroup
		if subgroup == 0 {
			subgroup = c.op.dev.Caps().SubgroupSize
		}
		c.stats = readStats(list, c.Shared, c.local, subgroup)
	}
}

// buildAll compiles candidates in parallel, in order, until over reports that no time is
// left. The remaining candidates have neither a pipeline nor an error. The driver of an
// H200 takes 1 to 2 s on one core for a pipeline: 40 pipelines take about 5 s on 16 cores.
// With two cores, or with a driver that compiles one pipeline at a time, the likely
// candidates are compiled first.
func buildAll(ctx context.Context, list []*candidate, over func() bool, built func()) {
	next := make(chan *candidate)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range min(len(list), runtime.GOMAXPROCS(0), 16) {
		wg.Go(func() {
			for c := range next {
				c.build()
				mu.Lock()
				built()
				mu.Unlock()
			}
		})
	}
	for i, c := range list {
		if ctx.Err() != nil || i > 0 && over() {
			break
		}
		next <- c
	}
	close(next)
	wg.Wait()
}

// compilerStats holds the statistics of a pipeline that several drivers report under
// different names.
type compilerStats struct {
	registers int // per invocation; 0: not reported
	spills    int // bytes per invocation spilled to memory
	inShared  int // bytes of spills that are in shared memory
}

// readStats reads the statistics of VK_KHR_pipeline_executable_properties by the names
// that NVIDIA, RADV (ACO), ANV, NVK, Turnip and Honeykrisp give them. Registers count as registers
// of 32 bits; Turnip reports vectors of four, and Honeykrisp halves. Where a driver tells no size
// of its scratch memory, each spill instruction counts as one register. shared is the shared
// memory that the SPIR-V declares for a workgroup.
//
// NVIDIA (driver 580.159) reports "Register Count", "Binary Size", "Stack Size", "Local
// Memory Size" and "Shared Memory Size". The upper half of its local memory size holds
// 0x10. Its compiler also spills into unused shared memory: all that it reports beyond the
// declared size.
func readStats(list []vk.Statistic, shared uint64, local, subgroup uint32) compilerStats {
	var s compilerStats
	for _, x := range list {
		n := int(x.Value)
		if strings.Contains(x.Description, "in bytes per subgroup") { // RADV's scratch
			n /= int(max(subgroup, 1))
		}
		switch strings.ToLower(x.Name) {
		case "register count", "vgprs", "max live registers", "number of gprs":
			s.registers = max(s.registers, n)
		case "registers used":
			s.registers = max(s.registers, 4*n)
		case "gprs":
			s.registers = max(s.registers, (n+1)/2)
		case "local memory size", "scratch size", "scratch memory size", "slm size", "scratch":
			s.spills = max(s.spills, int(uint32(n)))
		case "spilled vgprs", "spill count", "fill count", "stp count", "ldp count":
			s.spills = max(s.spills, 4*n)
		case "shared memory size":
			s.inShared = max(0, n-int(shared)) / int(max(local, 1))
		}
	}
	s.spills += s.inShared
	return s
}

// dropSpills returns the compiled candidates that spill more than SpillSlack while others
// do not spill, with the reason. It never drops the first, the heuristic's.
func dropSpills(list []*candidate) map[*candidate]string {
	clean := false
	for _, c := range list {
		clean = clean || c.err == nil && c.stats.registers > 0 && c.stats.spills == 0
	}
	out := map[*candidate]string{}
	for i, c := range list {
		if clean && i > 0 && c.err == nil && c.stats.spills > plan.SpillSlack {
			out[c] = fmt.Sprintf("%d bytes an invocation in memory for want of registers", c.stats.spills)
		}
	}
	return out
}
