package cases

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/par"
	"vkattn/internal/testlevel"
)

// oneRounding is a kernel that computes in float64 and rounds P, O, dS and the results once, as
// FlashAttention-2 does.
type oneRounding struct {
	// dS is multiplied by factor before it is rounded, and divided by it afterwards. A kernel
	// may as well round dS with the scale or with log2 e, so all factors are equally right.
	factor float64

	// Faults.
	wrongP, wrongDS float64 // factors of P in dV, and of dS; 0: none
	noDLSE          bool    // the gradient of LSE is left out
	twice           bool    // dS takes rounded P, and so is rounded twice
	slot            func(x *faultySlot)
}

// faultySlot is a row and a key of a query head, and what a fault changes there: P and delta before dS is computed, and
// the factors of what the slot adds to each gradient.
type faultySlot struct {
	h, row, key      int
	p, delta         float64
	toDQ, toDK, toDV float64
	sum              float64 // of the row's exponentials, by which P is divided
}

// matrix reads the rows of a tensor.
type matrix struct {
	view attention.HostView
	dim  int
}

func (m matrix) row(batch, h, at int) []float64 {
	stored, row := make([]float32, m.dim), make([]float64, m.dim)
	m.view.ReadRow(stored, batch, h, at)
	for i, x := range stored {
		row[i] = float64(x)
	}
	return row
}

// compute returns the memory of a case without options after the call.
func (k oneRounding) compute(t *testing.T, b *Backward) [][]byte {
	t.Helper()
	after := make([][]byte, len(b.Image))
	for i, image := range b.Image {
		after[i] = bytes.Clone(image)
	}
	a := b.BackwardHostArgs(after)
	rows, keys := b.tensors[TensorQ].seq, b.tensors[TensorK].seq
	open := func(x attention.Tensor, dtype attention.DType, heads, extent, dim int) matrix {
		v, err := attention.ViewHost(x, dtype, heads, extent, dim)
		require.NoError(t, err)
		return matrix{v, dim}
	}
	hkv := b.KVHeads()
	q, dO, dLSE := open(a.Q, b.DType, b.Hq, rows, b.D), open(a.DO, b.DType, b.Hq, rows, b.Dv), open(a.DLSE, attention.F32, b.Hq, rows, 1)
	keyOf, valueOf := open(a.K, b.DType, hkv, keys, b.D), open(a.V, b.DType, hkv, keys, b.Dv)
	dQ, dK, dV := open(a.DQ, b.DType, b.Hq, rows, b.D), open(a.DK, b.DType, hkv, keys, b.D), open(a.DV, b.DType, hkv, keys, b.Dv)
	scale := float64(b.Config(Target{DType: b.DType}).ScaleValue())
	round := func(x float64) float64 { return float64(b.stored(x)) }
	write := func(m matrix, sums []float64, batch, h, at int) {
		row := make([]float32, len(sums))
		for i, x := range sums {
			row[i] = b.stored(x)
		}
		m.view.WriteRow(row, batch, h, at)
	}
	par.Each(int64(a.B*hkv), func() func(int64) {
		return func(unit int64) {
			seq, kv := int(unit)/hkv, int(unit)%hkv
			n := b.seq(seq).Keys
			keys, values, sumK, sumV := make([][]float64, n), make([][]float64, n), make([][]float64, n), make([][]float64, n)
			for j := range n {
				batch, at := b.kvRow(seq, j)
				keys[j], values[j] = keyOf.row(batch, kv, at), valueOf.row(batch, kv, at)
				sumK[j], sumV[j] = make([]float64, b.D), make([]float64, b.Dv)
			}
			for h := kv * b.Group(); h < (kv+1)*b.Group(); h++ {
				for i := range b.seq(seq).Rows {
					batch, at := b.queryRow(seq, i)
					sumQ := make([]float64, b.D)
					from, to := b.span(seq, i)
					if from = max(from, 0); from < to {
						qi, dOi := q.row(batch, h, at), dO.row(batch, h, at)
						p, most, sum := make([]float64, to), math.Inf(-1), 0.0
						for j := from; j < to; j++ {
							p[j] = scale * dot(qi, keys[j])
							most = max(most, p[j])
						}
						for j := from; j < to; j++ {
							p[j] = math.Exp(p[j] - most)
							sum += p[j]
						}
						o := make([]float64, b.Dv)
						for j := from; j < to; j++ {
							p[j] /= sum
							addTo(o, p[j], values[j])
						}
						for c := range o {
							o[c] = round(o[c])
						}
						delta := dot(dOi, o)
						if !k.noDLSE {
							delta -= dLSE.row(batch, h, at)[0]
						}
						for j := from; j < to; j++ {
							x := faultySlot{h, i, j, p[j], delta, 1, 1, 1, sum}
							if k.slot != nil {
								k.slot(&x)
							}
							factor := x.p
							if k.twice {
								factor = round(x.p)
							}
							dS := round(k.factor*orOne(k.wrongDS)*factor*(dot(dOi, values[j])-x.delta)) / k.factor
							addTo(sumQ, x.toDQ*scale*dS, keys[j])
							addTo(sumK[j], x.toDK*scale*dS, qi)
							addTo(sumV[j], x.toDV*round(orOne(k.wrongP)*x.p), dOi)
						}
					}
					write(dQ, sumQ, batch, h, at)
				}
			}
			for j := range n {
				batch, at := b.kvRow(seq, j)
				write(dK, sumK[j], batch, kv, at)
				write(dV, sumV[j], batch, kv, at)
			}
		}
	})
	return after
}

// stored is a number rounded to the storage type.
func (b *Backward) stored(x float64) float32 {
	y, bytes := []float32{float32(x)}, make([]byte, b.DType.Size())
	b.DType.Encode(bytes, y)
	b.DType.Decode(y, bytes)
	return y[0]
}

func dot(x, y []float64) (sum float64) {
	for i := range x {
		sum += x[i] * y[i]
	}
	return sum
}

func addTo(sums []float64, factor float64, row []float64) {
	for i, x := range row {
		sums[i] += factor * x
	}
}

func orOne(x float64) float64 {
	if x == 0 {
		return 1
	}
	return x
}

// In these problems one rounding of dS, or of the result, decides the error of a block: a row attends
// to one key, or one key takes nearly all of P. Plain attention may round that one well. Kernels
// that round once pass, however they do it. Faults of 2 % do not.
func TestRulesOfGradientsWhereOneRoundingDecides(t *testing.T) {
	names := map[string]bool{ // whether it is cheap to compute
		"d1.none.B3.H32k8.1023x1023.padded.falling.lse.descriptors":             false,
		"d8.bottom-right.B2.H32k8.512x129.odd.large.scale-0.31.lse.descriptors": true,
		"d40.bottom-right.B2.H32k8.64x1.odd.falling.lse.addresses":              true,
		"crowd.d64.H4k2.none.144seqs.packedq.packedk.looseq.loosek.packed.lse":  true,
	}
	found := 0
	for _, c := range append(All(), AllOptions()...) {
		c.LSE = true
		cheap, listed := names[c.String()]
		if !listed {
			continue
		}
		found++
		if !testlevel.Share(cheap) {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			b, err := NewBackward(c, attention.BF16)
			require.NoError(t, err)
			cfg := b.Config(Target{DType: b.DType})
			verify := func(after [][]byte) []*accuracy.Verdict {
				var list []*accuracy.Verdict
				for _, rows := range []int{0, 200} {
					v, err := accuracy.VerifyBackward(cfg, b.BackwardHostArgs(after), accuracy.Options{Rows: rows, Seed: b.SeedValue()})
					require.NoError(t, err)
					list = append(list, v)
				}
				return list
			}
			factors := []float64{1, 1.1, 1.3, 1.4427, 1.6, 1.8}
			if !cheap {
				factors = factors[3:4]
			}
			for _, factor := range factors {
				after := oneRounding{factor: factor}.compute(t, b)
				require.NoError(t, b.BackwardJudge(after), "factor %v", factor)
				for _, v := range verify(after) {
					require.True(t, v.Pass(), "factor %v: %v", factor, v)
				}
			}
			for name, k := range map[string]oneRounding{
				"dS":   {factor: 1, wrongDS: 1.02},
				"P":    {factor: 1, wrongP: 1.02},
				"dLSE": {factor: 1, noDLSE: true},
			} {
				if !cheap && name != "dS" {
					continue
				}
				after := k.compute(t, b)
				require.Error(t, b.BackwardJudge(after), name)
				if k.wrongP != 0 {
					continue // P of large scores in bf16 is further off in the keys of the sample
				}
				for _, v := range verify(after) {
					require.False(t, v.Pass(), "%s: %v", name, v)
				}
			}
		})
	}
	require.Equal(t, len(names), found)
}
