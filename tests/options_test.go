package tests

import (
	"fmt"
	"os"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/accuracy"
	"vkattn/attention/cases"
)

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
	s := openTiers(t)
	for _, dtype := range attention.DTypes() {
		known := map[string]*checkedOptions{} // shared by several tiers
		t.Run(dtype.String(), func(t *testing.T) {
			t.Parallel()
			for _, tt := range s.available() {
				if tt.DType != dtype {
					continue
				}
				var list []*checkedOptions
				for _, c := range optionsOf(t, s, tt) {
					if known[c.String()] == nil {
						known[c.String()] = &checkedOptions{Case: c, dtype: dtype}
					}
					list = append(list, known[c.String()])
				}
				t.Run(tt.Tier.String(), func(t *testing.T) {
					t.Parallel() // the end of one table would leave processors idle
					start := time.Now()
					results := conform(t, s, tt, list)
					t.Logf("%d cases in %v", len(list), time.Since(start).Round(time.Millisecond))
					for i, c := range list {
						t.Run(c.String(), func(t *testing.T) {
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

// optionTable returns the table of cases of a tier.
func optionTable(tt cases.Target) []cases.Case {
	switch {
	case full():
		return cases.AllOptions()
	case tt.Tier == attention.TierCPU:
		return cases.WideOptions()
	case slowToCompile(tt):
		return cases.CompactOptions()
	}
	return cases.BriefOptions()
}

// optionsOf returns the cases that a tier computes in a storage type: its share of the
// table, or all of it on the CPU tier, which compiles nothing. VKATTN_TEST_CASES may select
// some of them.
func optionsOf(t *testing.T, s *session, tt cases.Target) []cases.Case {
	wanted, err := regexp.Compile(os.Getenv("VKATTN_TEST_CASES"))
	require.NoError(t, err)
	all := optionTable(tt)
	if tt.Tier != attention.TierCPU {
		which, types := 0, 0
		for _, other := range s.available() {
			if other == tt {
				which = types
			}
			if other.Tier == tt.Tier {
				types++
			}
		}
		if full() {
			all = cases.ShareOptions(all, types)[which]
		} else {
			all = cases.DealOptions(all, types)[which]
		}
	}
	all = s.levelShareOf(tt, all)
	var some []cases.Case
	for _, c := range all {
		if wanted.MatchString(c.String()) && (tt.Tier != attention.TierCPU || c.Flops() <= 1e9) {
			some = append(some, c)
		}
	}
	return some
}

// checkedOptions is a case of the table in one storage type, with its problem and
// reference. They are made when a tier first needs them.
type checkedOptions struct {
	cases.Case
	dtype attention.DType

	made    sync.Once
	makeErr error
	problem *cases.Problem
	cases.Truth
}

func (c *checkedOptions) memory(dtype attention.DType) int64 { return 2 * c.Memory(dtype) }

// jobs returns the calls of a case.
func (c *checkedOptions) jobs(tt cases.Target) ([]*job, error) {
	c.made.Do(func() { c.problem, c.makeErr = cases.NewProblem(c.Case, c.dtype) })
	if c.makeErr != nil {
		return nil, c.makeErr
	}
	cfg := c.Config(tt)
	return []*job{
		{Problem: c.problem, cfg: cfg, before: c.problem.Image},
		{Problem: c.problem, cfg: cfg, before: c.problem.Spoiled()},
	}, nil
}

func (c *checkedOptions) reference() error { return c.Expect(c.problem) }

// check judges the memory that the calls of a case wrote.
func (c *checkedOptions) check(jobs []*job) (o accuracy.Report, lse *accuracy.Report, err error) {
	for i, j := range jobs {
		if err := c.problem.Trespass(j.before, j.after); err != nil {
			return o, nil, fmt.Errorf("run %d: %w", i+1, err)
		}
	}
	if o, lse, err = c.Reports(c.problem, jobs[0].after); err == nil {
		err = c.Wrong(o, lse)
	}
	if err != nil {
		return o, lse, err
	}
	if err := c.problem.Same(jobs[0].after, jobs[1].after); err != nil {
		return o, lse, fmt.Errorf("what must not matter was spoiled, and the result changed: %w", err)
	}
	return o, lse, nil
}
