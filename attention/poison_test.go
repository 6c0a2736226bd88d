package attention_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
)

// newProblem leaves NaN between rows, before the first and after the last.
// Whatever lies there or in masked slots changes no bit of the result.
func TestPoisonWhereNothingIsAttended(t *testing.T) {
	check(t, func(t *rapid.T) {
		p := drawProblem(t)
		o, lse := p.run(t)
		refO, refLSE, err := attention.Reference(p.cfg, p.Args)
		require.NoError(t, err)
		for i := range o {
			require.False(t, math.IsNaN(float64(o[i])))
		}
		seen := 0 // keys before this are attended to by some row
		for r := range p.Sq {
			seen = max(seen, p.cfg.Causal.Visible(r, p.Sq, p.Sk))
		}
		poison := rapid.SampledFrom([]float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32}).Draw(t, "poison")
		for _, v := range []attention.HostView{p.viewK(), p.viewV()} {
			row := make([]float32, v.Dim())
			for i := range row {
				row[i] = poison
			}
			for b := range p.B {
				for h := range p.KVHeads() {
					for c := seen; c < p.Sk; c++ {
						v.WriteRow(row, b, h, c)
					}
				}
			}
		}
		o2, lse2 := p.run(t)
		sameBits(t, o, o2, "O")
		sameBits(t, lse, lse2, "LSE")
		refO2, refLSE2, err := attention.Reference(p.cfg, p.Args)
		require.NoError(t, err)
		require.Equal(t, refO, refO2)
		require.Equal(t, refLSE, refLSE2)
	})
}

// Under a causal mask a poisoned key reaches the rows that see it and no other.
func TestPoisonStaysBehindTheDiagonal(t *testing.T) {
	for _, causal := range []attention.Causal{attention.TopLeft, attention.BottomRight} {
		for _, poisoned := range []int{0, 1, 63, 64, 65, 100, 149} {
			cfg := attention.Config{DType: attention.F32, HeadDim: 8, Causal: causal}
			p := newProblem(cfg, attention.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 140, Sk: 150}, attention.BHSD, 6)
			o, lse := p.run(t)
			nan := make([]float32, 8)
			for i := range nan {
				nan[i] = float32(math.NaN())
			}
			for h := range 2 {
				p.viewK().WriteRow(nan, 0, h, poisoned)
				p.viewV().WriteRow(nan, 0, h, poisoned)
			}
			o2, lse2 := p.run(t)
			verify(t, p)
			for h := range 4 {
				for r := range p.Sq {
					i := h*p.Sq + r
					if causal.Visible(r, p.Sq, p.Sk) > poisoned {
						require.True(t, math.IsNaN(float64(o2[i*8])) && math.IsNaN(float64(lse2[i])), "row %d sees key %d", r, poisoned)
						continue
					}
					sameBits(t, o[i*8:][:8], o2[i*8:][:8], "row %d does not see key %d", r, poisoned)
					sameBits(t, lse[i:i+1], lse2[i:i+1], "row %d does not see key %d", r, poisoned)
				}
			}
		}
	}
}

// Nothing but the rows of O and LSE is written.
func TestOnlyOutputsAreWritten(t *testing.T) {
	check(t, func(t *rapid.T) {
		p := drawProblem(t)
		before := [][]byte{bytes.Clone(p.Q.Host), bytes.Clone(p.K.Host), bytes.Clone(p.V.Host)}
		p.run(t)
		for i, after := range [][]byte{p.Q.Host, p.K.Host, p.V.Host} {
			require.True(t, bytes.Equal(before[i], after), "input %d", i)
		}
		// Blank the rows: what is left of O must be as newProblem made it.
		row := make([]float32, p.cfg.ValueDim())
		blank := make([]byte, len(p.O.Host))
		for i := range blank {
			blank[i] = 0xff
		}
		q := *p
		q.O.Host = blank
		for _, v := range []attention.HostView{p.viewO(), q.viewO()} {
			for b := range p.B {
				for h := range p.Hq {
					for r := range p.Sq {
						v.WriteRow(row, b, h, r)
					}
				}
			}
		}
		require.True(t, bytes.Equal(blank, p.O.Host), "memory between rows of O")
	})
}
