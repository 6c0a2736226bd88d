package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
)

// wildCases together read every vector of integers that a call may have.
func wildCases() []cases.Case {
	seqs := []cases.Seq{{ID: 0, Rows: 9, Keys: 140}, {ID: 1, Rows: 1, Keys: 33}, {ID: 2, Rows: 40, Keys: 70}}
	base := cases.Case{
		Name: "wild", D: 64, Dv: 64, Shape: attention.Shape{Hq: 4, Hkv: 2}, LSE: true, Layout: cases.Packed, Seqs: seqs,
		Causal: attention.BottomRight, PackedQ: true, LooseQ: true,
	}
	packed, padded, paged, sparse, split := base, base, base, base, base
	packed.PackedK, packed.LooseK = true, true
	padded.PackedQ, padded.LooseK = false, true
	paged.PageSize = 16
	sparse.LooseK, sparse.SparseRatio = true, 0.5
	split.PageSize, split.FixedSplit = 5, 3
	sparsePaged := sparse
	sparsePaged.PageSize, sparsePaged.LooseK = 16, false
	all := []cases.Case{packed, sparsePaged, split, padded, paged, sparse}
	if full() {
		for n := range 8 {
			all = append(all, cases.RandomOptions(3000+n))
		}
	}
	return all
}

// Wrong numbers in the vectors that a call reads may give wrong results, but no write
// outside of O and LSE and no lost device.
func TestOptionsWildNumbers(t *testing.T) {
	s := openTiers(t)
	runs := 6
	if full() {
		runs = 20
	}
	for _, tt := range s.available() {
		if tt.DType != attention.F16 {
			continue // all types read the numbers alike
		}
		t.Run(tt.String(), func(t *testing.T) {
			e := s.newEngine(tt)
			list := wildCases()
			if slowToCompile(tt) && fewPipelines() {
				list = list[:3] // all tiers share the code that bounds the numbers
			}
			t.Run("cases", func(t *testing.T) { // t.Run returns when all cases have ended
				for _, c := range list {
					t.Run(c.String(), func(t *testing.T) {
						t.Parallel()
						surviveWild(t, e, c, tt, runs)
					})
				}
			})
			require.NoError(t, e.close())
		})
	}
}

// surviveWild computes a case with wild numbers, and then with its own.
func surviveWild(t *testing.T, e *engine, c cases.Case, tt cases.Target, runs int) {
	p, err := cases.NewProblem(c, tt.DType)
	require.NoError(t, err)
	var jobs []*job
	for i := range runs {
		jobs = append(jobs, &job{Problem: p, cfg: attention.Config(c.Config(tt)), before: p.Wild(uint64(i))})
	}
	for i, j := range jobs {
		if e.dev != nil {
			break
		}
		err := e.run([]*job{j})
		if err != nil { // in host memory a call refuses what it sees
			require.ErrorIs(t, err, attention.ErrInvalid)
			require.Equal(t, j.before, j.after)
			continue
		}
		require.NoError(t, p.TrespassTensors(j.before, j.after), "wild numbers %d", i)
	}
	if e.dev != nil {
		require.NoError(t, e.run(jobs))
		for i, j := range jobs {
			require.NoError(t, p.TrespassTensors(j.before, j.after), "wild numbers %d", i)
		}
	}
	// The device still works and computes the right result.
	good := &job{Problem: p, cfg: attention.Config(c.Config(tt)), before: p.Image}
	require.NoError(t, e.run([]*job{good}))
	var x cases.Truth
	require.NoError(t, x.Judge(p, good.after))
}

// Devices read numbers out of their ranges as the docs of Config and Args say.
func TestOptionsNumbersOutOfRange(t *testing.T) {
	s := openTiers(t)
	for _, tt := range s.available() {
		if tt.Tier != attention.TierScalar || tt.DType != attention.F16 {
			continue // all types and tiers read the numbers by the same code
		}
		t.Run(tt.String(), func(t *testing.T) {
			e := s.newEngine(tt)
			for _, c := range cases.OutOfRange() {
				p, err := cases.NewProblem(c.Of, tt.DType)
				require.NoError(t, err)
				jobs := []*job{{Problem: p, cfg: attention.Config(p.Config(tt)), before: p.Changed(c.Wrong)}, {Problem: p, cfg: attention.Config(p.Config(tt)), before: p.Changed(c.Same)}}
				require.NoError(t, e.run(jobs))
				require.NoError(t, p.Same(jobs[0].after, jobs[1].after), c.Name)
			}
			require.NoError(t, e.close())
		})
	}
}
