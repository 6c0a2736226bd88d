package tests

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"vkattn/attention"
	"vkattn/vk"
)

// turn is every third case. The scalar kernel is one module for the three types,
// which differ in how elements are read and written: on a CPU driver each type
// takes its turn of the table, and together they cover it.
func turn(all []*checkedCase, which int) []*checkedCase {
	var some []*checkedCase
	for i, c := range all {
		if i%3 == which%3 {
			some = append(some, c)
		}
	}
	return some
}

// TestConformance runs the table on every tier that is there, as
// TestConformance/<dtype>/<tier>/<case>. Each case is computed three times:
//
//   - as it is: judged by the three rules; nothing but outputs may be written;
//   - with the keys that no row attends to spoiled: the same bits must come out,
//     which also shows that a second run gives the same bits;
//   - under a causal mask, with half of the keys spoiled: rows that do not see
//     them must keep their bits.
func TestConformance(t *testing.T) {
	s := open(t)
	if s.compileOnly {
		t.Skip("nothing executes on a null device; see TestCompile")
	}
	for _, dtype := range attention.DTypes() {
		var tiers []tierType
		for _, tt := range s.available() {
			if tt.dtype == dtype {
				tiers = append(tiers, tt)
			}
		}
		if len(tiers) == 0 {
			continue
		}
		t.Run(dtype.String(), func(t *testing.T) {
			all := checkedCases(dtype)
			for _, tt := range tiers {
				t.Run(tt.tier.String(), func(t *testing.T) {
					cases := all
					if tt.tier == attention.TierScalar && !full() {
						cases = turn(all, int(dtype))
					}
					if tt.tier == attention.TierCPU {
						cases = slices.DeleteFunc(slices.Clone(all), func(c *checkedCase) bool { return c.cost() > 2e9 })
					}
					start := time.Now()
					results := s.conform(tt, cases)
					t.Logf("%d cases in %v", len(cases), time.Since(start).Round(time.Millisecond))
					for i, c := range cases {
						t.Run(c.String(), func(t *testing.T) {
							if results[i] != nil {
								t.Errorf("seed %d: %v", c.seedValue(), results[i])
							}
						})
					}
				})
			}
		})
	}
}

// checkedCase is a case of the table in one storage type, with what is known of
// it: made when a tier first needs it.
type checkedCase struct {
	testCase
	dtype attention.DType

	made    sync.Once
	makeErr error
	problem *problem
	expectation
}

func checkedCases(dtype attention.DType) []*checkedCase {
	var all []*checkedCase
	for _, c := range table(dtype) {
		all = append(all, &checkedCase{testCase: c, dtype: dtype})
	}
	return all
}

// prepare makes the problem.
func (c *checkedCase) prepare() error {
	c.made.Do(func() {
		if c.problem == nil {
			c.problem, c.makeErr = newProblem(c.testCase, c.dtype)
		}
	})
	return c.makeErr
}

// Work of one submission: enough cases to be efficient, few enough to keep
// memory small and every worker busy.
const (
	batchCases = 8
	batchBytes = 64 << 20
	batchFlops = 40e9
)

// conform runs all cases on a tier, several submissions at once, and returns
// what was wrong with each.
func (s *session) conform(tt tierType, cases []*checkedCase) []error {
	e := s.newEngine(tt)
	workers := runtime.GOMAXPROCS(0)
	work := make(chan []int)
	results := make([]error, len(cases))
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for batch := range work {
				e.conformBatch(tt, cases, batch, results)
			}
		})
	}
	var bytes, flops int64
	var batch []int
	for _, i := range byPipeline(cases) {
		batch = append(batch, i)
		for _, n := range place(cases[i].testCase, int64(tt.dtype.Size())).bytes {
			bytes += n
		}
		flops += 3 * cases[i].flops()
		if len(batch) >= min(batchCases, max(1, len(cases)/workers)) || bytes >= batchBytes || flops >= batchFlops {
			work <- batch
			batch, bytes, flops = nil, 0, 0
		}
	}
	if len(batch) > 0 {
		work <- batch
	}
	close(work)
	wg.Wait()
	if err := e.close(); err != nil {
		results[0] = errors.Join(results[0], err)
	}
	return results
}

// byPipeline orders cases so that those of one pipeline are neighbours, and two
// workers seldom wait for the same one to be compiled.
func byPipeline(cases []*checkedCase) []int {
	order := make([]int, len(cases))
	keys := make([]string, len(cases))
	for i, c := range cases {
		order[i], keys[i] = i, c.pipeline()
	}
	slices.SortStableFunc(order, func(a, b int) int { return strings.Compare(keys[a], keys[b]) })
	return order
}

// conformBatch runs cases in one submission. When that fails each is tried
// alone, so that the others are still judged.
func (e *engine) conformBatch(tt tierType, cases []*checkedCase, batch []int, results []error) {
	jobs := map[int][]*job{}
	var all []*job
	for _, i := range batch {
		jobs[i], results[i] = cases[i].jobs(tt)
		all = append(all, jobs[i]...)
	}
	err := e.run(all)
	for _, i := range batch {
		if results[i] != nil {
			continue
		}
		if err != nil && len(batch) > 1 && !errors.Is(err, vk.ErrDeviceLost) {
			results[i] = e.run(jobs[i])
		} else {
			results[i] = err
		}
		if results[i] == nil {
			results[i] = cases[i].check(jobs[i])
		}
		for _, j := range jobs[i] {
			j.after = nil
		}
	}
}

// jobs are the calls a case is made of.
func (c *checkedCase) jobs(tt tierType) ([]*job, error) {
	if err := c.prepare(); err != nil {
		return nil, err
	}
	p, cfg := c.problem, c.config(tt)
	hidden, half := c.hidden(), c.halfSeen()
	all := []*job{{problem: p, cfg: cfg, before: p.image}}
	for _, first := range []int{hidden, half} {
		j := &job{problem: p, cfg: cfg, before: p.image}
		if first < c.shape.Sk && !c.layout.aliases() {
			var err error
			if j.before, err = p.spoil(first); err != nil {
				return nil, err
			}
		}
		all = append(all, j)
		if c.causal == attention.CausalNone || c.layout.aliases() {
			break // nothing but the second run, of which every bit counts
		}
	}
	return all, nil
}

// hidden is the first key that no row attends to.
func (c *checkedCase) hidden() int {
	return c.causal.Visible(c.shape.Sq-1, c.shape.Sq, c.shape.Sk)
}

// halfSeen is how many keys the middle row attends to.
func (c *checkedCase) halfSeen() int {
	return c.causal.Visible((c.shape.Sq-1)/2, c.shape.Sq, c.shape.Sk)
}

// check judges what the calls of a case left in memory.
func (c *checkedCase) check(jobs []*job) error {
	p := c.problem
	for i, j := range jobs {
		if err := p.trespass(j.before, j.after); err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
	}
	if err := c.judge(p, jobs[0].after); err != nil {
		return err
	}
	if err := p.sameRows(jobs[0].after, jobs[1].after, c.shape.Sk); err != nil {
		if sameMemory(jobs[0].before, jobs[1].before) {
			return fmt.Errorf("a second run gives other bits: %w", err)
		}
		return fmt.Errorf("keys from %d on are attended to by no row, and spoiling them changed the result: %w", c.hidden(), err)
	}
	if len(jobs) > 2 {
		if err := p.sameRows(jobs[0].after, jobs[2].after, c.halfSeen()); err != nil {
			return fmt.Errorf("keys from %d on were spoiled, which rows before them must not notice: %w", c.halfSeen(), err)
		}
	}
	return nil
}
