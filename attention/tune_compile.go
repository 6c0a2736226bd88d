package attention

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"vkattn/vk"
)

// candidate is an option with what it takes to run it.
type candidate struct {
	option
	op      *Op  // whose every plan has the option's tile
	built   bool // or err says why not
	compile time.Duration
	stats   compilerStats
	err     error
}

// newCandidate makes an operation of one tile. cfg names its tier.
func newCandidate(dev *vk.Device, cfg Config, o option) *candidate {
	return &candidate{option: o, op: newOp(dev, cfg, o.v.experiment, pickOnly(o.v.tile))}
}

// close gives the pipeline back; a tuning makes dozens.
func (c *candidate) close() {
	for _, p := range c.op.pipelines.made {
		_ = p.Close()
	}
	_ = c.op.Close()
}

// build compiles the candidate's pipeline and asks the compiler about it.
func (c *candidate) build(r request) {
	start := time.Now()
	p, err := c.op.prepare(r)
	c.compile = time.Since(start)
	if err != nil {
		c.err = err
		return
	}
	c.built = true
	if list, err := p.pipeline.Statistics(); err == nil {
		subgroup := c.v.tile.subgroupSize()
		if subgroup == 0 {
			subgroup = c.op.dev.Caps().SubgroupSize
		}
		c.stats = readStats(list, c.shared, c.v.tile.invocations(), subgroup)
	}
}

// buildAll compiles candidates side by side, in order, until over says that there is
// no time left. Those it did not come to have neither a pipeline nor an error. A
// pipeline takes a core for 1 to 2 s with an H200's driver: 40 on 16 cores take about
// 5 s; on 2, or in a driver that compiles one at a time, the likely ones come first.
func buildAll(ctx context.Context, list []*candidate, r request, over func() bool, built func()) {
	next := make(chan *candidate)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range min(len(list), runtime.GOMAXPROCS(0), 16) {
		wg.Go(func() {
			for c := range next {
				c.build(r)
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

// compilerStats is what drivers say of a pipeline, in their words made one.
type compilerStats struct {
	registers int // of an invocation; 0: not said
	spills    int // bytes of an invocation that live in memory for want of registers
	inShared  int // of these, in shared memory
}

// readStats understands the statistics of VK_KHR_pipeline_executable_properties as
// NVIDIA, RADV (ACO), ANV and Turnip name them. shared is what the SPIR-V declares
// for a workgroup.
//
// NVIDIA (driver 580.159) says "Register Count", "Binary Size", "Stack Size", "Local
// Memory Size" and "Shared Memory Size". It leaves 0x10 in the upper half of local
// memory, and its compiler spills into shared memory that nobody uses, too: what it
// says beyond the declared is that.
func readStats(list []vk.Statistic, shared uint64, local, subgroup uint32) compilerStats {
	var s compilerStats
	for _, x := range list {
		n := int(x.Value)
		if strings.Contains(x.Description, "in bytes per subgroup") { // RADV's scratch
			n /= int(max(subgroup, 1))
		}
		switch strings.ToLower(x.Name) {
		case "register count", "vgprs", "max live registers", "number of registers":
			s.registers = max(s.registers, n)
		case "local memory size", "scratch size", "scratch memory size":
			s.spills = max(s.spills, int(uint32(n)))
		case "spilled vgprs", "spill count", "fill count":
			s.spills = max(s.spills, 4*n)
		case "shared memory size":
			s.inShared = max(0, n-int(shared)) / int(max(local, 1))
		}
	}
	s.spills += s.inShared
	return s
}

// spillSlack is what a compiler may keep in memory without being dropped for it: on
// an H200 the best tiles of head dims 128 and 256 have 130 to 230 bytes an
// invocation, one within 3 % has 252, and those of 300 to 350 took 1.3 times as long.
const spillSlack = 256

// dropSpills says which of the compiled candidates are dropped because they spill
// where others do not. The first, the heuristic's, stays.
func dropSpills(list []*candidate) map[*candidate]string {
	clean := false
	for _, c := range list {
		clean = clean || c.err == nil && c.stats.registers > 0 && c.stats.spills == 0
	}
	out := map[*candidate]string{}
	for i, c := range list {
		if clean && i > 0 && c.err == nil && c.stats.spills > spillSlack {
			out[c] = fmt.Sprintf("%d bytes an invocation in memory for want of registers", c.stats.spills)
		}
	}
	return out
}
