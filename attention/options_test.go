package attention_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/cases"
	"vkattn/internal/half"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/internal/testlevel"
)

// The CPU tier and the reference on cases with options. Package cases tests that the
// reference is the definition; package tests runs the whole tables.

// eachOptions runs a test on a table with every option and on random compositions. Their
// numbers do not depend on their layout in memory.
func eachOptions(t *testing.T, random int, test func(t *testing.T, c cases.Case, dtype attention.DType)) {
	testlevel.OnceOnly(t)
	list := cases.CompactOptions()
	for n := range random {
		list = append(list, cases.RandomOptions(n))
	}
	for i, c := range list {
		c.Seed = c.SeedValue()
		t.Run(c.String(), func(t *testing.T) { test(t, c, attention.DTypes()[i%3]) })
	}
}

func newOptions(t *testing.T, c cases.Case, dtype attention.DType) *cases.Problem {
	p, err := cases.NewProblem(c, dtype)
	require.NoError(t, err)
	return p
}

func onCPU(p *cases.Problem) attention.Config {
	return attention.Config(p.Config(cases.On(attention.TierCPU, p.DType)))
}

func cloned(images [][]byte) [][]byte {
	var list [][]byte
	for _, b := range images {
		list = append(list, bytes.Clone(b))
	}
	return list
}

// computed is the memory of a problem after the CPU tier has computed it.
func computed(t *testing.T, p *cases.Problem, before [][]byte) [][]byte {
	after := cloned(before)
	compute(t, p, p.HostArgs(after))
	require.NoError(t, p.Trespass(before, after))
	return after
}

func compute(t *testing.T, p *cases.Problem, a attention.Args) {
	require.NoError(t, attention.CheckArgs(onCPU(p), a))
	require.NoError(t, attention.ForwardCPU(onCPU(p), a))
}

// unit is the relative error that a stored O may have.
var unit = map[attention.DType]float64{attention.F16: 0x1p-11, attention.BF16: 0x1p-8, attention.F32: 1e-5}

func TestCPUOptionsMatchReference(t *testing.T) {
	eachOptions(t, 100, func(t *testing.T, c cases.Case, dtype attention.DType) {
		p := newOptions(t, c, dtype)
		after := computed(t, p, p.Image)
		sample, err := tensors.ExistingRows(p.HostArgs(p.Image))
		require.NoError(t, err)
		require.Equal(t, tensors.CountRows(p.SampleRows()), tensors.CountRows(sample))
		wantO, wantLSE, err := attention.ReferenceSample(onCPU(p), p.HostArgs(p.Image), sample)
		require.NoError(t, err)
		roundedP := roomForRoundedP(t, p, sample, len(wantO))
		o, lse := p.Gather(after, sample)
		for i, want := range wantO {
			if math.Abs(want-float64(o[i])) > unit[dtype]*math.Abs(want)+roundedP[i]+2e-5 {
				require.Failf(t, "wrong O", "element %d of row %d is %v, want %v", i%c.Dv, i/c.Dv, o[i], want)
			}
		}
		for i, want := range wantLSE {
			if math.IsInf(want, -1) {
				require.Zero(t, o[i*c.Dv])
				require.True(t, !c.LSE || math.IsInf(float64(lse[i]), -1), "LSE of row %d is %v", i, lse)
			} else if c.LSE {
				require.InDelta(t, want, float64(lse[i]), 1e-5*(1+math.Abs(want)), "LSE of row %d", i)
			}
		}
	})
}

// roomForRoundedP is the most that rounding P to bfloat16 may change in O: 2^-8 of the mean of |V|. It is 0 where tier cpu
// does not round P.
func roomForRoundedP(t *testing.T, p *cases.Problem, sample []problem.Rows, n int) []float64 {
	cfg, a := onCPU(p), p.HostArgs(p.Image)
	if cfg.DType != attention.BF16 || cfg.ValueType != attention.KVSame || cfg.OType() != attention.BF16 {
		return make([]float64, n)
	}
	a.V.Host = bytes.Clone(a.V.Host)
	for i := 1; i < len(a.V.Host); i += 2 {
		a.V.Host[i] &= 0x7f
	}
	room, _, err := attention.ReferenceSample(cfg, a, sample)
	require.NoError(t, err)
	for i := range room {
		room[i] *= 0x1p-8
	}
	return room
}

// Unused pages, rows past a length, entries past a list, and keys that no row attends to:
// their content changes no bit, on the CPU tier and in the reference.
func TestOptionsPoison(t *testing.T) {
	eachOptions(t, 40, func(t *testing.T, c cases.Case, dtype attention.DType) {
		p := newOptions(t, c, dtype)
		require.NoError(t, p.Same(computed(t, p, p.Image), computed(t, p, p.Spoiled())))
		o, lse, err := attention.ReferenceSample(onCPU(p), p.HostArgs(p.Image), p.SampleRows())
		require.NoError(t, err)
		o2, lse2, err := attention.ReferenceSample(onCPU(p), p.HostArgs(p.Spoiled()), p.SampleRows())
		require.NoError(t, err)
		require.Equal(t, o, o2)
		require.Equal(t, lse, lse2)
	})
}

// sameRows requires the same bits in all rows of two problems with the same rows.
func sameRows(t *testing.T, p *cases.Problem, after [][]byte, q *cases.Problem, other [][]byte) {
	o1, lse1 := p.Gather(after, p.SampleRows())
	o2, lse2 := q.Gather(other, q.SampleRows())
	sameBits(t, o1, o2, "O")
	sameBits(t, lse1, lse2, "LSE")
}

func TestPagedIsContiguous(t *testing.T) {
	seen := 0
	eachOptions(t, 120, func(t *testing.T, c cases.Case, dtype attention.DType) {
		if c.PageSize == 0 || c.KVBlock > 1 && c.PageSize%c.KVBlock != 0 {
			return
		}
		seen++
		contiguous := c
		contiguous.PageSize = 0
		p, q := newOptions(t, c, dtype), newOptions(t, contiguous, dtype)
		require.NotNil(t, p.HostArgs(p.Image).Pages)
		require.Nil(t, q.HostArgs(q.Image).Pages)
		sameRows(t, p, computed(t, p, p.Image), q, computed(t, q, q.Image))
	})
	require.Greater(t, seen, 50)
}

// asMask is a mask equivalent to the lists or blocks of a problem.
func asMask(p *cases.Problem, s attention.Shape) *attention.Mask {
	mask := make([]byte, s.Rows()*int64(s.Sk))
	for b, q := range p.Seqs {
		for h := range s.Hq {
			for row := range q.Rows {
				for key := range q.Keys {
					mask[((b*s.Hq+h)*s.Sq+row)*s.Sk+key] = byte(p.Weight(b, h, row, key))
				}
			}
		}
	}
	return &attention.Mask{Tensor: attention.Tensor{Host: mask}}
}

func TestListsAndBlocksAreMasks(t *testing.T) {
	seen := 0
	eachOptions(t, 160, func(t *testing.T, c cases.Case, dtype attention.DType) {
		if c.SparseRatio == 0 && c.BlockQ == 0 || c.Shuffled {
			return
		}
		seen++
		without := c
		without.SparseRatio, without.BlockQ = 0, 0
		p, q := newOptions(t, c, dtype), newOptions(t, without, dtype)
		masked := cloned(q.Image)
		a := q.HostArgs(masked)
		a.Mask = asMask(p, a.Shape)
		compute(t, q, a)
		sameRows(t, p, computed(t, p, p.Image), q, masked)
	})
	require.Greater(t, seen, 25)
}

// A sequence computed alone, without lengths, has the bits that it has in a batch. With
// dropout it has another mask: that depends on its index in the batch.
func TestVarlenIsSeparateCalls(t *testing.T) {
	seen := 0
	eachOptions(t, 100, func(t *testing.T, c cases.Case, dtype attention.DType) {
		if len(c.Seqs) < 2 || c.Dropout != 0 || c.KVBlock > 1 || c.KVBlock < 0 { // whose scales go across sequences
			return
		}
		seen++
		p := newOptions(t, c, dtype)
		o, lse := p.Gather(computed(t, p, p.Image), p.SampleRows())
		var o1, lse1 []float32
		for _, s := range c.Seqs {
			alone := c
			alone.Seqs, alone.PackedQ, alone.PackedK, alone.LooseQ, alone.LooseK = []cases.Seq{s}, false, false, false, false
			q := newOptions(t, alone, dtype)
			rows, logs := q.Gather(computed(t, q, q.Image), q.SampleRows())
			o1, lse1 = append(o1, rows...), append(lse1, logs...)
		}
		sameBits(t, o1, o, "O")
		sameBits(t, lse1, lse, "LSE")
	})
	require.Greater(t, seen, 50)
}

// smallOptions is a case with few options, to which tests add.
func smallOptions(seqs ...cases.Seq) cases.Case {
	return cases.Case{
		Name: "small", D: 32, Dv: 40, Shape: attention.Shape{Hq: 6, Hkv: 2}, LSE: true, Causal: attention.BottomRight, Seqs: seqs, Seed: 7, Layout: cases.Packed,
	}
}

// In host memory a number out of its range is an error that names it, and nothing is written.
func TestNumbersOutOfRange(t *testing.T) {
	for _, c := range cases.OutOfRange() {
		t.Run(c.Name, func(t *testing.T) {
			p := newOptions(t, c.Of, attention.F32)
			before := p.Changed(c.Wrong)
			images := cloned(before)
			a := p.HostArgs(images)
			if c.Field == "" {
				compute(t, p, a)
				same := p.Changed(c.Same)
				compute(t, p, p.HostArgs(same))
				require.NoError(t, p.Same(images, same))
				return
			}
			for _, err := range []error{attention.CheckArgs(onCPU(p), a), forward(onCPU(p), a), referenceError(onCPU(p), a)} {
				require.ErrorIs(t, err, attention.ErrInvalid)
				require.ErrorContains(t, err, c.Field+" is ")
			}
			require.Equal(t, before, images)
		})
	}
}

func forward(cfg attention.Config, a attention.Args) error {
	op, err := attention.New(nil, cfg)
	if err != nil {
		return err
	}
	return op.Forward(nil, a)
}

func referenceError(cfg attention.Config, a attention.Args) error {
	_, _, err := attention.Reference(cfg, a)
	return err
}

// Sinks and biases follow the rules of scores.
func TestSinksAndBiasesThatAreNotFinite(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		name          string
		sink, bias    float32 // bias of every key
		o0, lse       func(float64) bool
		attendNothing bool
	}{
		{"sink NaN", nan, 0, math.IsNaN, math.IsNaN, false},
		{"sink +Inf", inf, 0, math.IsNaN, math.IsNaN, false},
		{"sink -Inf", -inf, 0, isFinite, isFinite, false},
		{"sink NaN and no keys", nan, 0, math.IsNaN, math.IsNaN, true},
		{"sink -Inf and no keys", -inf, 0, isZero, isMinusInf, true},
		{"sink and no keys", 2, 0, isZero, func(x float64) bool { return x == 2 }, true},
		{"bias -Inf", 2, -inf, isZero, func(x float64) bool { return x == 2 }, false},
		{"bias -Inf, sink -Inf", -inf, -inf, isZero, isMinusInf, false},
		{"bias NaN", 2, nan, math.IsNaN, math.IsNaN, false},
		{"bias +Inf", 2, inf, math.IsNaN, math.IsNaN, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			seq := cases.Seq{Rows: 1, Keys: 100}
			if c.attendNothing {
				seq.Keys = 0
			}
			x := smallOptions(seq)
			x.Hq, x.Hkv, x.Sk = 1, 1, 100
			p := newOptions(t, x, attention.F32)
			after := cloned(p.Image)
			a := p.HostArgs(after)
			a.Sinks = attention.Vector{Host: make([]byte, 4)}
			half.EncodeF32(a.Sinks.Host, []float32{c.sink})
			bias := make([]float32, 100)
			for i := range bias {
				bias[i] = c.bias
			}
			a.Bias = &attention.Bias{Tensor: attention.Tensor{Host: make([]byte, 400)}, DType: attention.F32}
			half.EncodeF32(a.Bias.Host, bias)
			compute(t, p, a)
			o, lse := p.Gather(after, p.SampleRows())
			require.True(t, c.o0(float64(o[0])), "O is %v", o[0])
			require.True(t, c.lse(float64(lse[0])), "LSE is %v", lse[0])
			refO, refLSE, err := attention.Reference(onCPU(p), a)
			require.NoError(t, err)
			require.True(t, c.o0(refO[0]), "O of the reference is %v", refO[0])
			require.True(t, c.lse(refLSE[0]), "LSE of the reference is %v", refLSE[0])
		})
	}
}

// The rules of package accuracy work with options too: right results pass, wrong ones fail.
func TestAccuracyOfOptions(t *testing.T) {
	eachOptions(t, 40, func(t *testing.T, c cases.Case, dtype attention.DType) {
		p := newOptions(t, c, dtype)
		after := computed(t, p, p.Image)
		a := p.HostArgs(after)
		v, err := accuracy.Verify(problem.Config(onCPU(p)), a, accuracy.Options{Rows: -1})
		require.NoError(t, err)
		require.True(t, v.Pass(), "%v", v)
		if v.Rows == 0 {
			return
		}
		for i := range a.O.Host {
			a.O.Host[i] = 0x7c
		}
		v, err = accuracy.Verify(problem.Config(onCPU(p)), a, accuracy.Options{Rows: 1})
		require.NoError(t, err)
		require.False(t, v.Pass(), "%v", v)
	})
}
