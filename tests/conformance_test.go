package tests

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/cases"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// TestConformance runs the table of dense calls on every available tier, as
// TestConformance/<dtype>/<tier>/<case>. It computes each case three times:
//
//   - unchanged: the three rules judge it, and only outputs may be written;
//   - with all keys spoiled that no row attends to: the result must have the same bits,
//     which also shows that a second run gives the same bits;
//   - under a causal mask, with half of the keys spoiled: rows that do not see them must
//     keep their bits.
func TestConformance(t *testing.T) {
	conformToTable(t, (*session).dense, denseOf, attention.Experiment{})
}

// TestOptionsConformance runs the tables of calls with options, as
// TestOptionsConformance/<dtype>/<tier>/<case>. It computes each case twice, and only
// outputs may be written:
//
//   - unchanged: the three rules judge it;
//   - with everything spoiled that must not matter: keys that no row attends to, unused
//     pages and entries of the block table, memory past the ends of sequences, tokens of
//     no list, bits past the last block, bias and mask of unused slots, scales of keys
//     that no row sees, and the outputs. The result must have the same bits.
func TestOptionsConformance(t *testing.T) {
	conformToTable(t, (*session).available, optionsOf, attention.Experiment{})
}

// conformToTable runs the cases that each of the targets has in a table. VKATTN_TEST_CASES
// may select some of them. more changes the kernels beyond what the targets need.
func conformToTable(t *testing.T, targets func(*session) []cases.Target, casesOf func(*session, cases.Target) []cases.Case, more attention.Experiment) {
	s := openTiers(t)
	wanted, err := regexp.Compile(os.Getenv("VKATTN_TEST_CASES"))
	require.NoError(t, err)
	for _, dtype := range attention.DTypes() {
		known := map[string]*checkedCase{} // shared by several tiers
		t.Run(dtype.String(), func(t *testing.T) {
			t.Parallel()
			for _, tt := range targets(s) {
				if tt.DType != dtype {
					continue
				}
				var list []*checkedCase
				for _, c := range casesOf(s, tt) {
					if !wanted.MatchString(c.String()) {
						continue
					}
					if known[c.String()] == nil {
						known[c.String()] = &checkedCase{Case: c, dtype: dtype}
					}
					list = append(list, known[c.String()])
				}
				t.Run(tt.Tier.String(), func(t *testing.T) {
					t.Parallel() // the end of one table would leave processors idle
					start := time.Now()
					results := conform(t, s, tt, list, more)
					t.Logf("%d cases in %v", len(list), time.Since(start).Round(time.Millisecond))
					for i, c := range list {
						t.Run(c.String(), func(t *testing.T) {
							if !c.dense() && refusedBy(tt, results[i]) {
								t.Skip(results[i])
							}
							if results[i] != nil {
								t.Errorf("seed %d: %v", c.SeedValue(), results[i])
							}
						})
					}
				})
			}
		})
	}
}

// refusedBy reports whether an error is the refusal of a tier that takes some options only.
func refusedBy(tt cases.Target, err error) bool {
	return (tt.Tier == attention.TierCUDA || tt.Tier == attention.TierCubin) && errors.Is(err, attention.ErrUnsupported)
}

// denseTable returns the dense cases that a tier has kernels for in a storage type.
func denseTable(tt cases.Target) []cases.Case {
	all := table(tt.DType)
	if f32OnMatrices(tt) {
		all = slices.DeleteFunc(slices.Clone(all), func(c cases.Case) bool { return max(c.D, c.Dv) > f32OnMatricesDim })
	}
	return all
}

// denseOf returns the cases of the dense table that a tier computes in a storage type.
func denseOf(s *session, tt cases.Target) []cases.Case {
	all := denseTable(tt)
	level := testlevel.Get()
	some := all
	switch {
	case s.experiment(tt).HalfTerms && level != testlevel.All && level != testlevel.Exhaustive:
		return s.halfTermsShare(tt, all)
	case full():
	case tt.Tier == attention.TierScalar:
		some = pipelineTurn(all, int(tt.DType)+s.turn, 3)
	case onMatrices(tt):
		which, tiers := s.matrixTier(tt) // one source
		some = pipelineTurn(all, which, tiers)
	}
	switch first := firstPipelines(all, caseFacets); {
	case level == testlevel.All || level == testlevel.Exhaustive:
	case tt.Tier == attention.TierScalar:
		which, of := s.firstShare(tt)
		some = takeShare(some, first, which, of)
		if level == testlevel.Full {
			some = s.restTurn(some, all, first)
		}
	case onMatrices(tt) && s.name == "lavapipe":
		shown := slices.Concat(first, matrixDims(all))
		some = slices.DeleteFunc(takeShare(some, everyNth(first, 2, 0), 0, 1), func(c cases.Case) bool { return !slices.Contains(shown, c.Pipeline()) })
	default:
		some = takeShare(some, first, 0, 1)
	}
	if tt.Tier == attention.TierCPU {
		some = slices.DeleteFunc(slices.Clone(some), func(c cases.Case) bool { return c.Cost() > 2e9 })
	}
	return some
}

// checkedCase is a case of a table in one storage type, with its problem and reference.
// They are made when a tier first needs them. Several tiers share them.
type checkedCase struct {
	cases.Case
	dtype attention.DType

	made    sync.Once
	makeErr error
	problem *cases.Problem
	cases.Truth
}

// prepare makes the problem.
func (c *checkedCase) prepare() error {
	c.made.Do(func() {
		if c.problem == nil {
			c.problem, c.makeErr = cases.NewProblem(c.Case, c.dtype)
		}
	})
	return c.makeErr
}

// dense reports whether the case is a call without options.
func (c *checkedCase) dense() bool { return !withOptions(c.Case) }

// withOptions reports whether a case takes the path of calls with options. Cases of the
// tables of options list their sequences, each with its lengths; dense cases have none.
// TestEveryTableTakesItsPath checks the path of every case.
func withOptions(c cases.Case) bool { return c.Seqs != nil }

// Bounds of the work in one submission: enough cases to be efficient, few enough to keep
// memory small and every worker busy.
const (
	batchCases = 8
	batchBytes = 64 << 20
	batchFlops = 40e9
)

// memory is about how many bytes a call of the case takes.
func (c *checkedCase) memory() (bytes int64) {
	if !c.dense() {
		return 2 * c.Memory(c.dtype)
	}
	for _, n := range cases.LayOut(c.Case, c.dtype).Bytes {
		bytes += n
	}
	return bytes
}

// slots bounds the submissions of all tables that are in flight: one per processor, since
// compiling them takes most of the time.
var slots = make(chan struct{}, runtime.GOMAXPROCS(0))

// conform runs all cases on a tier, several submissions at once, and returns the error of
// each. It writes each result to the journal of t as soon as it is known.
func conform(t *testing.T, s *session, tt cases.Target, list []*checkedCase, more attention.Experiment) []error {
	e := s.newEngine(tt)
	e.experiment.ConvertKV = more.ConvertKV
	n := cap(slots)
	work := make(chan []int)
	results := make([]error, len(list))
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for batch := range work {
				slots <- struct{}{}
				conformBatch(t.Name(), e, tt, list, batch, results)
				<-slots
			}
		})
	}
	var bytes, flops int64
	var batch []int
	send := func() {
		if len(batch) > 0 {
			work <- batch
		}
		batch, bytes, flops = nil, 0, 0
	}
	for _, i := range byPipeline(list) {
		if len(batch) > 0 && list[i].Pipeline() != list[batch[0]].Pipeline() {
			send() // its results are judged while others compile
		}
		batch = append(batch, i)
		bytes += list[i].memory()
		flops += 3 * list[i].Flops()
		if len(batch) >= min(batchCases, max(1, len(list)/n)) || bytes >= batchBytes || flops >= batchFlops {
			send()
		}
	}
	send()
	close(work)
	wg.Wait()
	if err := e.close(); err != nil {
		results[0] = errors.Join(results[0], err)
	}
	return results
}

// byPipeline orders cases so that cases of one pipeline are neighbours and two workers
// seldom wait for the same pipeline to compile. Long kernels come first: a long one at the
// end would leave the other workers idle.
func byPipeline(list []*checkedCase) []int {
	order := make([]int, len(list))
	keys := make([]string, len(list))
	for i, c := range list {
		order[i], keys[i] = i, c.Pipeline()
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(list[b].Dims(), list[a].Dims()), strings.Compare(keys[a], keys[b]))
	})
	return order
}

// conformBatch runs cases in one submission. If that fails, it runs each case alone, so
// that the others are still judged.
func conformBatch(test string, e *engine, tt cases.Target, list []*checkedCase, batch []int, results []error) {
	jobs := map[int][]*job{}
	entries := map[int]*entry{}
	var all []*job
	for _, i := range batch {
		entries[i] = &entry{Test: test, Case: list[i].String(), Seed: list[i].SeedValue()}
		results[i] = timed(&entries[i].MS.Make, func() (err error) {
			jobs[i], err = list[i].jobs(tt)
			return err
		})
		all = append(all, jobs[i]...)
	}
	var running milliseconds
	err := timed(&running, func() error { return e.run(all) })
	for _, j := range all {
		running -= inMilliseconds(j.recording)
	}
	for _, i := range batch {
		x := entries[i]
		x.MS.Run = running / milliseconds(len(batch))
		for _, j := range jobs[i] {
			x.MS.Compile += inMilliseconds(j.recording)
		}
		if results[i] == nil {
			results[i] = err
			if err != nil && len(batch) > 1 && !errors.Is(err, vk.ErrDeviceLost) {
				results[i] = timed(&x.MS.Run, func() error { return e.run(jobs[i]) })
			}
		}
		if results[i] == nil {
			results[i] = timed(&x.MS.Reference, list[i].reference)
		}
		if results[i] == nil {
			results[i] = timed(&x.MS.Check, func() error {
				v, err := list[i].check(jobs[i])
				x.measured(v)
				return err
			})
		}
		for _, j := range jobs[i] {
			j.after = nil
		}
		if err := x.write(results[i]); err != nil {
			results[i] = errors.Join(results[i], err)
		}
	}
}

// jobs returns the calls of a case.
func (c *checkedCase) jobs(tt cases.Target) ([]*job, error) {
	if err := c.prepare(); err != nil {
		return nil, err
	}
	p, cfg := c.problem, c.Config(tt)
	hidden, half := c.Hidden(), c.HalfSeen()
	all := []*job{{Problem: p, cfg: attention.Config(cfg), before: p.Image}}
	if !c.dense() {
		return append(all, &job{Problem: p, cfg: attention.Config(cfg), before: p.Spoiled()}), nil
	}
	for _, first := range []int{hidden, half} {
		j := &job{Problem: p, cfg: attention.Config(cfg), before: p.Image}
		if first < c.Shape.Sk && !c.Layout.Aliases() {
			var err error
			if j.before, err = p.Spoil(first); err != nil {
				return nil, err
			}
		}
		all = append(all, j)
		if c.Causal == attention.CausalNone || c.Layout.Aliases() {
			break // the second run alone: all its bits must be the same
		}
	}
	return all, nil
}

func (c *checkedCase) reference() error { return c.Expect(c.problem) }

// check judges the memory that the calls of a case wrote.
func (c *checkedCase) check(jobs []*job) (*accuracy.Verdict, error) {
	p := c.problem
	for i, j := range jobs {
		if err := p.Trespass(j.before, j.after); err != nil {
			return nil, fmt.Errorf("run %d: %w", i+1, err)
		}
	}
	v, err := c.Verdict(p, jobs[0].after)
	if err == nil && !v.Pass() {
		err = errors.New(v.String())
	}
	if err != nil {
		return v, err
	}
	if !c.dense() {
		if err := p.Same(jobs[0].after, jobs[1].after); err != nil {
			return v, fmt.Errorf("what must not matter was spoiled, and the result changed: %w", err)
		}
		return v, nil
	}
	if err := p.SameRows(jobs[0].after, jobs[1].after, c.Shape.Sk); err != nil {
		if sameMemory(jobs[0].before, jobs[1].before) {
			return v, fmt.Errorf("a second run gives other bits: %w", err)
		}
		return v, fmt.Errorf("keys from %d on are attended to by no row, and spoiling them changed the result: %w", c.Hidden(), err)
	}
	if len(jobs) > 2 {
		if err := p.SameRows(jobs[0].after, jobs[2].after, c.HalfSeen()); err != nil {
			return v, fmt.Errorf("keys from %d on were spoiled, which rows before them must not notice: %w", c.HalfSeen(), err)
		}
	}
	return v, nil
}

// sameMemory compares the memory of two calls, except the bytes that differed before the
// calls.
func sameMemory(a, b [][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
