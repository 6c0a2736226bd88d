package attention_test

import (
	"encoding/binary"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/accuracy"
	"vkattn/attention/half"
)

// features are compositions of one feature each, and of some that belong together.
func features() map[string]composition {
	base := composition{
		DType: attention.F32, D: 32, Dv: 40, LSE: true, Seed: 7,
		Shape: attention.Shape{B: 3, Hq: 6, Hkv: 2, Sq: 37, Sk: 150},
	}
	list := map[string]composition{"none": base}
	for name, change := range map[string]func(c *composition){
		"packed": func(c *composition) {
			c.PackQ, c.PackK, c.Rows, c.Keys, c.Causal = true, true, []int{37, 0, 9}, []int{1, 30, 150}, attention.BottomRight
		},
		"packed with lengths": func(c *composition) {
			c.PackQ, c.PackK, c.GiveUsedQ, c.GiveUsedK = true, true, true, true
			c.Rows, c.Keys, c.Causal = []int{12, 37, 1}, []int{150, 0, 70}, attention.TopLeft
		},
		"padded": func(c *composition) {
			c.GiveUsedQ, c.GiveUsedK, c.Rows, c.Keys, c.Causal = true, true, []int{0, 37, 20}, []int{80, 17, 150}, attention.BottomRight
		},
		"pages of 1":   func(c *composition) { c.PageSize, c.SharedKeys = 1, 20 },
		"pages of 5":   func(c *composition) { c.PageSize, c.GiveUsedK, c.Keys = 5, true, []int{33, 0, 150} },
		"pages of 16":  func(c *composition) { c.PageSize, c.SharedKeys, c.Layout = 16, 40, 1 },
		"pages of 256": func(c *composition) { c.PageSize, c.Layout = 256, 2 },
		"kept":         func(c *composition) { c.Sparse, c.Kept = keptTokens, 0.5 },
		"kept, little": func(c *composition) { c.Sparse, c.Kept, c.Causal = sortedKept, 0.02, attention.BottomRight },
		"blocks":       func(c *composition) { c.Sparse, c.Kept, c.BlockQ, c.BlockK = blockBits, 0.5, 16, 32 },
		"decode, nothing read twice": func(c *composition) {
			c.Shape.Sq, c.Shape.Hq, c.PageSize, c.Causal = 1, 2, 16, attention.BottomRight
		},
		"decode of kept tokens": func(c *composition) {
			c.Shape.Sq, c.Shape.Hq, c.Sparse, c.Kept, c.PageSize = 1, 2, keptTokens, 0.6, 5
		},
		"many blocks": func(c *composition) {
			c.Sparse, c.Kept, c.BlockQ, c.BlockK, c.Shape.Sk, c.Shape.B = blockBits, 0.5, 32, 16, 700, 1
		},
		"mask": func(c *composition) { c.Sparse, c.Kept = maskBytes, 0.5 },
		"mask of rows": func(c *composition) {
			c.Sparse, c.Kept, c.SparseAt.Batches, c.SparseAt.Heads = maskBytes, 0.1, true, true
		},
		"bias f32":         func(c *composition) { c.Bias, c.BiasType = true, attention.F32 },
		"bias f16 of keys": func(c *composition) { c.Bias, c.BiasAt = true, broadcastKind{Rows: true} },
		"softcap":          func(c *composition) { c.Softcap = 1.5 },
		"alibi":            func(c *composition) { c.ALiBi, c.Align = true, attention.BottomRight },
		"alibi, causal":    func(c *composition) { c.ALiBi, c.Causal = true, attention.TopLeft },
		"sinks":            func(c *composition) { c.Sinks = true },
		"sinks alone": func(c *composition) {
			c.Sinks, c.Causal, c.Shape.Sk = true, attention.BottomRight, 20 // rows that attend to nothing
		},
		"window":             func(c *composition) { c.Window, c.Align = attention.WindowOf(9, 4), attention.BottomRight },
		"window to the left": func(c *composition) { c.Window, c.Causal = attention.WindowOf(5, -1), attention.TopLeft },
		"window beyond": func(c *composition) {
			c.Window, c.Align, c.Shape.Sk = attention.WindowOf(-1, 3), attention.BottomRight, 11
		},
		"int8":           func(c *composition) { c.KV = attention.KVInt8 },
		"int8 in blocks": func(c *composition) { c.KV, c.KVBlock, c.PageSize = attention.KVInt8, 3, 16 },
		"fp8":            func(c *composition) { c.KV, c.Layout = attention.KVFP8, 2 },
		"fp8 in blocks, packed": func(c *composition) {
			c.KV, c.KVBlock, c.PackK, c.Keys = attention.KVFP8, 16, true, []int{50, 99, 13}
		},
		"q8_0":        func(c *composition) { c.KV, c.D, c.Dv = attention.KVQ8_0, 64, 96 },
		"q8_0, paged": func(c *composition) { c.KV, c.D, c.Dv, c.PageSize, c.Layout = attention.KVQ8_0, 64, 32, 5, 2 },
		"q4_0":        func(c *composition) { c.KV, c.D, c.Dv = attention.KVQ4_0, 32, 64 },
	} {
		c := base
		change(&c)
		list[name] = c
	}
	return list
}

// eachComposition runs a test on features alone and on random compositions.
func eachComposition(t *testing.T, random uint64, test func(t *testing.T, c composition)) {
	if os.Getenv("VKATTN_DRIVER") != "" {
		t.Skip("the CPU tier is the same with every driver")
	}
	for name, c := range features() {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
	for seed := range random {
		c := drawComposition(seed, 40, 150)
		if !t.Run("random", func(t *testing.T) { test(t, c) }) {
			t.Logf("composition: %v", &c)
			return
		}
	}
}

func forward(t require.TestingT, p *composed) {
	cfg := p.Config(attention.TierCPU)
	require.NoError(t, attention.CheckArgs(cfg, p.Args), "%v", p)
	require.NoError(t, attention.ForwardCPU(cfg, p.Args), "%v", p)
}

// eachRow visits the rows that exist.
func eachRow(p *composed, visit func(b, h, row int)) {
	for b := range p.Shape.B {
		for h := range p.Shape.Hq {
			for row := range p.RowsOf(b) {
				visit(b, h, row)
			}
		}
	}
}

func TestReferenceOfFeaturesIsTheDefinition(t *testing.T) {
	eachComposition(t, 200, func(t *testing.T, c composition) {
		p := compose(c, 0xff, false)
		o, lse, err := attention.Reference(p.Config(attention.TierCPU), p.Args)
		require.NoError(t, err, "%v", p)
		exist := map[int]bool{}
		eachRow(p, func(b, h, row int) {
			i := (b*p.Shape.Hq+h)*p.Shape.Sq + row
			exist[i] = true
			wantO, wantLSE := p.Define(b, h, row)
			if math.IsInf(wantLSE, -1) {
				require.Equal(t, wantLSE, lse[i], "%v: LSE of %d, %d, %d", p, b, h, row)
			} else {
				require.InDelta(t, wantLSE, lse[i], 1e-9, "%v: LSE of %d, %d, %d", p, b, h, row)
			}
			for d := range wantO {
				require.InDelta(t, wantO[d], o[i*p.Dv+d], 1e-9, "%v: O of %d, %d, %d, %d", p, b, h, row, d)
			}
		})
		for i := range lse {
			require.True(t, exist[i] || math.IsInf(lse[i], -1) && o[i*p.Dv] == 0, "row %d does not exist", i)
		}
	})
}

// unit is what a stored O may be off by, in proportion.
var unit = map[attention.DType]float64{attention.F16: 0x1p-11, attention.BF16: 0x1p-8, attention.F32: 1e-5}

func TestCPUFeaturesMatchReference(t *testing.T) {
	eachComposition(t, 200, func(t *testing.T, c composition) {
		p := compose(c, 0xff, false)
		forward(t, p)
		require.True(t, p.Untouched(), "%v: something besides O and LSE was written", p)
		sample, err := attention.ExistingRows(p.Args)
		require.NoError(t, err)
		o, lse, err := attention.ReferenceSample(p.Config(attention.TierCPU), p.Args, sample)
		require.NoError(t, err)
		i := 0
		eachRow(p, func(b, h, row int) {
			got, gotLSE := p.Read(b, h, row)
			for d, x := range got {
				want := o[i*p.Dv+d]
				require.InDelta(t, want, float64(x), unit[p.DType]*math.Abs(want)+2e-5, "%v: O of %d, %d, %d, %d", p, b, h, row, d)
			}
			if math.IsInf(lse[i], -1) {
				require.Zero(t, got[0])
				require.True(t, !p.LSE || math.IsInf(float64(gotLSE), -1), "%v: LSE of %d, %d, %d is %v", p, b, h, row, gotLSE)
			} else if p.LSE {
				require.InDelta(t, lse[i], float64(gotLSE), 1e-5*(1+math.Abs(lse[i])), "%v: LSE of %d, %d, %d", p, b, h, row)
			}
			i++
		})
		require.Equal(t, i, len(lse))
	})
}

// sameRows requires the same bits in every row of two calls.
func sameRows(t require.TestingT, one, other *composed, what string) {
	eachRow(one, func(b, h, row int) {
		o1, lse1 := one.Read(b, h, row)
		o2, lse2 := other.Read(b, h, row)
		sameBits(t, o1, o2, "%s: %v: O of %d, %d, %d", what, one, b, h, row)
		if one.LSE {
			sameBits(t, []float32{lse1}, []float32{lse2}, "%s: %v: LSE of %d, %d, %d", what, one, b, h, row)
		}
	})
}

// Pages nobody has, rows past a length, entries past a list, keys that no row
// attends to: whatever they hold changes no bit, on the CPU tier and in the reference.
func TestFeaturesPoison(t *testing.T) {
	eachComposition(t, 60, func(t *testing.T, c composition) {
		p := compose(c, 0, false)
		cfg := p.Config(attention.TierCPU)
		forward(t, p)
		refO, refLSE, err := attention.Reference(cfg, p.Args)
		require.NoError(t, err)
		for _, q := range []*composed{compose(c, 0x7c, false), compose(c, 0xff, true)} {
			forward(t, q)
			sameRows(t, p, q, "poisoned")
			o, lse, err := attention.Reference(cfg, q.Args)
			require.NoError(t, err)
			require.Equal(t, refO, o, "%v", p)
			require.Equal(t, refLSE, lse, "%v", p)
		}
	})
}

func TestPagedIsContiguous(t *testing.T) {
	seen := 0
	eachComposition(t, 300, func(t *testing.T, c composition) {
		if c.PageSize == 0 || c.KVBlock > 1 && c.PageSize%c.KVBlock != 0 {
			return
		}
		seen++
		paged, contiguous := compose(c, 0xff, false), compose(c.Contiguous(), 0xff, false)
		require.NotNil(t, paged.Args.Pages)
		require.Nil(t, contiguous.Args.Pages)
		forward(t, paged)
		forward(t, contiguous)
		sameRows(t, paged, contiguous, "paged")
	})
	require.Greater(t, seen, 50)
}

// asMask is a call with a mask in the place of lists or blocks that say the same.
func asMask(p *composed) attention.Args {
	a, s := p.Args, p.Shape
	a.Kept, a.Blocks = nil, nil
	mask := make([]byte, s.B*s.Hq*s.Sq*s.Sk)
	eachRow(p, func(b, h, row int) {
		for key, n := range p.Weights(b, h, row) {
			if n > 0 {
				mask[((b*s.Hq+h)*s.Sq+row)*s.Sk+key] = 1
			}
		}
	})
	a.Mask = &attention.Mask{Tensor: attention.Tensor{Host: mask}}
	return a
}

func TestListsAndBlocksAreMasks(t *testing.T) {
	seen := 0
	eachComposition(t, 300, func(t *testing.T, c composition) {
		if c.Sparse != sortedKept && c.Sparse != blockBits {
			return
		}
		seen++
		p, q := compose(c, 0xff, false), compose(c, 0xff, false)
		forward(t, p)
		q.Args = asMask(q)
		forward(t, q)
		sameRows(t, p, q, "as a mask")
	})
	require.Greater(t, seen, 50)
}

// Each sequence alone, without lengths, gives the bits it has in a batch.
func TestVarlenIsSeparateCalls(t *testing.T) {
	seen := 0
	eachComposition(t, 300, func(t *testing.T, c composition) {
		if c.Rows == nil && c.Keys == nil || c.PageSize > 0 || c.Sparse == blockBits || c.KV.Scaled() {
			return
		}
		seen++
		p := compose(c, 0xff, false)
		forward(t, p)
		sequences, err := attention.Sequences(p.Args)
		require.NoError(t, err)
		for b, s := range sequences {
			require.Equal(t, [2]int{p.RowsOf(b), p.KeysOf(b)}, [2]int{s.Rows, s.Keys})
			if s.Rows == 0 || s.Keys == 0 {
				continue
			}
			a := alone(p, b, s)
			cfg := p.Config(attention.TierCPU)
			require.NoError(t, attention.CheckArgs(cfg, a), "%v", p)
			require.NoError(t, attention.ForwardCPU(cfg, a), "%v", p)
			o, err := attention.ViewHost(a.O, c.DType, a.Hq, a.Sq, c.Dv)
			require.NoError(t, err)
			lse, err := attention.ViewHost(a.LSE, attention.F32, a.Hq, a.Sq, 1)
			require.NoError(t, err)
			for h := range a.Hq {
				for row := range s.Rows {
					want, wantLSE := p.Read(b, h, row)
					got, gotLSE := make([]float32, c.Dv), make([]float32, 1)
					o.ReadRow(got, 0, h, row)
					lse.ReadRow(gotLSE, 0, h, row)
					sameBits(t, got, want, "%v: O of %d, %d, %d", p, b, h, row)
					if c.LSE {
						sameBits(t, gotLSE, []float32{wantLSE}, "%v: LSE of %d, %d, %d", p, b, h, row)
					}
				}
			}
		}
	})
	require.Greater(t, seen, 50)
}

// alone is sequence b of a call as a call of its own.
func alone(p *composed, b int, s attention.Sequence) attention.Args {
	a, full := p.Args, p.Shape
	rows, keys := full.Sq, full.Sk
	batchQ, batchK := b, b
	if p.PackQ {
		rows, batchQ = a.Varlen.TotalQ, 0
	}
	if p.PackK {
		keys, batchK = a.Varlen.TotalK, 0
	}
	move := func(t *attention.Tensor, heads, seq, dim, batch, first int) {
		t.Strides = t.Strides.Resolve(heads, seq, dim)
		t.Offset += int64(batch)*t.Strides.Batch + int64(first)*t.Strides.Seq
	}
	move(&a.Q, full.Hq, rows, p.D, batchQ, s.Row)
	move(&a.K, full.KVHeads(), keys, p.D, batchK, s.Key)
	move(&a.V, full.KVHeads(), keys, p.Dv, batchK, s.Key)
	a.Varlen = nil
	a.B, a.Sq, a.Sk = 1, s.Rows, s.Keys
	a.O = attention.Tensor{Host: make([]byte, full.Hq*s.Rows*p.Dv*p.DType.Size())}
	a.LSE = attention.Tensor{Host: make([]byte, full.Hq*s.Rows*4)}
	one := func(t attention.Tensor, batches, heads, rows int) attention.Tensor {
		t.Strides = t.Strides.Resolve(orAll(heads, full.Hq), orAll(rows, full.Sq), full.Sk)
		if batches != 1 {
			t.Offset += int64(b) * t.Strides.Batch
		}
		return t
	}
	if m := a.Bias; m != nil {
		bias := *m
		bias.Tensor = one(m.Tensor, m.Batches, m.Heads, m.Rows)
		a.Bias = &bias
	}
	if m := a.Mask; m != nil {
		mask := *m
		mask.Tensor = one(m.Tensor, m.Batches, m.Heads, m.Rows)
		a.Mask = &mask
	}
	if a.Kept != nil {
		kept := *a.Kept
		kept.Offsets.Offset += int64(b * full.KVHeads())
		a.Kept = &kept
	}
	return a
}

func orAll(n, all int) int {
	if n == 0 {
		return all
	}
	return n
}

// Numbers that make no sense are read as Sequences and Args say, on both.
func TestNumbersOutOfRange(t *testing.T) {
	base := features()["none"]
	base.Causal = attention.BottomRight
	paged := base
	paged.PageSize = 16
	kept := base
	kept.Sparse, kept.Kept = sortedKept, 0.3
	padded := base
	padded.GiveUsedQ, padded.GiveUsedK = true, true
	packed := base
	packed.PackQ, packed.PackK, packed.Rows, packed.Keys = true, true, []int{37, 0, 9}, []int{1, 30, 150}
	set := func(v attention.Vector, i, x int) {
		binary.LittleEndian.PutUint32(v.Host[4*(int(v.Offset)+i):], uint32(int32(x)))
	}
	for name, c := range map[string]struct {
		composition composition
		wrong, same func(a *attention.Args)
	}{
		"lengths beyond the bound": {padded,
			func(a *attention.Args) { set(a.Varlen.UsedQ, 1, 38); set(a.Varlen.UsedK, 2, math.MaxInt32) },
			func(a *attention.Args) {}},
		"lengths below 0": {padded,
			func(a *attention.Args) { set(a.Varlen.UsedQ, 1, -1); set(a.Varlen.UsedK, 2, math.MinInt32) },
			func(a *attention.Args) { set(a.Varlen.UsedQ, 1, 0); set(a.Varlen.UsedK, 2, 0) }},
		"starts below 0": {packed,
			func(a *attention.Args) { set(a.Varlen.CuQ, 0, -5); set(a.Varlen.CuK, 0, math.MinInt32) },
			func(a *attention.Args) { set(a.Varlen.CuQ, 0, 0); set(a.Varlen.CuK, 0, 0) }},
		"ends beyond the tensor": {packed,
			func(a *attention.Args) { set(a.Varlen.CuQ, 3, math.MaxInt32); set(a.Varlen.CuK, 3, math.MaxInt32) },
			func(a *attention.Args) { set(a.Varlen.CuQ, 3, a.Varlen.TotalQ); set(a.Varlen.CuK, 3, a.Varlen.TotalK) }},
		"ends before starts": {packed,
			func(a *attention.Args) { set(a.Varlen.CuK, 2, math.MinInt32) },
			func(a *attention.Args) { set(a.Varlen.CuK, 2, 0) }},
		"pages that are none": {paged,
			func(a *attention.Args) { set(a.Pages.Table, 0, -1); set(a.Pages.Table, 3, a.Pages.Count) },
			func(a *attention.Args) { set(a.Pages.Table, 0, 0); set(a.Pages.Table, 3, 0) }},
		"lists beyond the tokens": {kept,
			func(a *attention.Args) { set(a.Kept.Offsets, 0, -9); set(a.Kept.Offsets, 6, math.MaxInt32) },
			func(a *attention.Args) { set(a.Kept.Offsets, 0, 0); set(a.Kept.Offsets, 6, a.Kept.Total) }},
	} {
		t.Run(name, func(t *testing.T) {
			p, q := compose(c.composition, 0, false), compose(c.composition, 0, false)
			c.wrong(&p.Args)
			c.same(&q.Args)
			cfg := p.Config(attention.TierCPU)
			forward(t, p)
			forward(t, q)
			require.Equal(t, q.Args.O.Host, p.Args.O.Host)
			require.Equal(t, q.Args.LSE.Host, p.Args.LSE.Host)
			o, lse, err := attention.Reference(cfg, p.Args)
			require.NoError(t, err)
			wantO, wantLSE, err := attention.Reference(cfg, q.Args)
			require.NoError(t, err)
			require.Equal(t, wantO, o)
			require.Equal(t, wantLSE, lse)
		})
	}
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
			x := features()["none"]
			x.Shape = attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: 100}
			if c.attendNothing {
				x.GiveUsedK, x.Keys = true, []int{0}
			}
			p := compose(x, 0, false)
			p.Args.Sinks = attention.Vector{Host: make([]byte, 4)}
			half.EncodeF32(p.Args.Sinks.Host, []float32{c.sink})
			bias := make([]float32, 100)
			for i := range bias {
				bias[i] = c.bias
			}
			p.Args.Bias = &attention.Bias{Tensor: attention.Tensor{Host: make([]byte, 400)}, DType: attention.F32}
			half.EncodeF32(p.Args.Bias.Host, bias)
			forward(t, p)
			o, lse := p.Read(0, 0, 0)
			require.True(t, c.o0(float64(o[0])), "O is %v", o[0])
			require.True(t, c.lse(float64(lse)), "LSE is %v", lse)
			refO, refLSE, err := attention.Reference(p.Config(attention.TierCPU), p.Args)
			require.NoError(t, err)
			require.True(t, c.o0(refO[0]), "O of the reference is %v", refO[0])
			require.True(t, c.lse(refLSE[0]), "LSE of the reference is %v", refLSE[0])
		})
	}
}

// The rules of package accuracy hold what has features too: right results pass, and
// each row that is left out of a result fails.
func TestAccuracyOfFeatures(t *testing.T) {
	eachComposition(t, 60, func(t *testing.T, c composition) {
		p := compose(c, 0xff, false)
		cfg := p.Config(attention.TierCPU)
		forward(t, p)
		require.NoError(t, p.Judge(), "%v", p)
		rows := 0
		eachRow(p, func(int, int, int) { rows++ })
		if rows == 0 || c.Scale == attention.ScaleOf(0) {
			return
		}
		for i := range p.Args.O.Host {
			p.Args.O.Host[i] = 0x7c // no result
		}
		v, err := accuracy.Verify(cfg, p.Args, accuracy.Options{Rows: 1})
		require.NoError(t, err)
		require.False(t, v.Pass(), "%v: %v", p, v)
	})
}
