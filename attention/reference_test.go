package attention_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
)

// plain is attention written from its definition. It shares nothing with the package but
// the reading of rows.
func plain(p *hostProblem, b, h, row int) (o []float64, lse float64) {
	d, dv := p.cfg.HeadDim, p.cfg.ValueDim()
	kv := h / (p.Hq / p.KVHeads())
	q, k, v := make([]float32, d), make([]float32, d), make([]float32, dv)
	p.viewQ().ReadRow(q, b, h, row)
	o = make([]float64, dv)
	var sum float64
	for c := range p.Sk {
		if !sees(p.cfg.Causal, row, c, p.Sq, p.Sk) {
			continue
		}
		p.viewK().ReadRow(k, b, kv, c)
		p.viewV().ReadRow(v, b, kv, c)
		var s float64
		for i := range q {
			s += float64(q[i]) * float64(k[i])
		}
		w := math.Exp(s * float64(p.cfg.ScaleValue()))
		sum += w
		for i := range v {
			o[i] += w * float64(v[i])
		}
	}
	for i := range o {
		if sum > 0 {
			o[i] /= sum
		}
	}
	return o, math.Log(sum)
}

func TestReferenceIsTheDefinition(t *testing.T) {
	check(t, func(t *rapid.T) {
		p := drawProblem(t)
		o, lse, err := attention.Reference(p.cfg, p.Args)
		require.NoError(t, err)
		dv := p.cfg.ValueDim()
		b, h := rapid.IntRange(0, p.B-1).Draw(t, "which b"), rapid.IntRange(0, p.Hq-1).Draw(t, "which h")
		row := rapid.IntRange(0, p.Sq-1).Draw(t, "row")
		wantO, wantLSE := plain(p, b, h, row)
		i := (b*p.Hq+h)*p.Sq + row
		if math.IsInf(wantLSE, -1) {
			require.Equal(t, wantLSE, lse[i])
		} else {
			require.InDelta(t, wantLSE, lse[i], 1e-11)
		}
		for c := range wantO {
			require.InDelta(t, wantO[c], o[i*dv+c], 1e-11)
		}
	})
}

func TestReferenceRowsAreThoseOfReference(t *testing.T) {
	p := newProblem(attention.Config{HeadDim: 24, HeadDimV: 40, Causal: attention.BottomRight},
		attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 90, Sk: 70}, attention.BSHD, 8)
	o, lse, err := attention.Reference(p.cfg, p.Args)
	require.NoError(t, err)
	rows := []int{89, 0, 20, 19, 64, 64}
	some, someLSE, err := oracle.ReferenceRows(problem.Config(p.cfg), p.Args, 1, 2, rows)
	require.NoError(t, err)
	for i, r := range rows {
		at := (1*4+2)*90 + r
		require.Equal(t, lse[at], someLSE[i])
		require.Equal(t, o[at*40:][:40], some[i*40:][:40])
	}
	none, _, err := oracle.ReferenceRows(problem.Config(p.cfg), p.Args, 0, 0, nil)
	require.NoError(t, err)
	require.Empty(t, none)
	for _, bad := range []attention.Rows{{B: 2}, {B: -1}, {H: 4}, {Rows: []int{90}}, {Rows: []int{-1}}} {
		_, _, err := oracle.ReferenceRows(problem.Config(p.cfg), p.Args, bad.B, bad.H, bad.Rows)
		var shape *attention.ShapeError
		require.ErrorAs(t, err, &shape)
	}
}

// A shape of more rows than memory holds is refused for the missing tensors, before anything
// is allocated per row.
func TestReferenceRefusesBeforeItListsRows(t *testing.T) {
	huge := attention.Shape{B: attention.MaxLength, Hq: attention.MaxLength, Sq: 1, Sk: 1}
	_, _, err := attention.Reference(attention.Config{HeadDim: 1}, attention.Args{Shape: huge})
	require.ErrorIs(t, err, attention.ErrInvalid)
	var field *attention.ShapeError
	require.ErrorAs(t, err, &field)
	require.Equal(t, "Q", field.Field)
}
