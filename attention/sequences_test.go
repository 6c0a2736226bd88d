package attention_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

func TestSequencesOfACallWithoutLengths(t *testing.T) {
	s := attention.Shape{B: 2, Hq: 3, Sq: 4, Sk: 5}
	list, err := tensors.Sequences(attention.Args{Shape: s})
	require.NoError(t, err)
	require.Equal(t, []problem.Sequence{{Rows: 4, Keys: 5}, {Rows: 4, Keys: 5}}, list)
	rows, err := tensors.ExistingRows(attention.Args{Shape: s})
	require.NoError(t, err)
	require.Equal(t, attention.AllRows(s), rows)
}

func TestExistingRowsAreThoseOfSequences(t *testing.T) {
	c := smallOptions(cases.Seq{ID: 0, Rows: 37, Keys: 1}, cases.Seq{ID: 1, Rows: 0, Keys: 30}, cases.Seq{ID: 2, Rows: 9, Keys: 150})
	c.PackedQ, c.PackedK = true, true
	p := newOptions(t, c, attention.F16)
	a := p.HostArgs(p.Image)
	rows, err := tensors.ExistingRows(a)
	require.NoError(t, err)
	require.Equal(t, (37+9)*a.Hq, tensors.CountRows(rows), "rows 37, 0, 9")
	for _, r := range rows {
		require.NotEqual(t, 1, r.B, "sequence 1 is empty")
	}
}

func TestSequencesRefuses(t *testing.T) {
	a := attention.Args{Shape: attention.Shape{B: 2, Hq: 1, Sq: 4, Sk: 4}}
	for _, c := range []struct {
		varlen attention.Varlen
		field  string
	}{
		{attention.Varlen{CuQ: vector(3), TotalQ: -1}, "Varlen.TotalQ"},
		{attention.Varlen{CuQ: vector(2), TotalQ: 3}, "Varlen.CuQ"},
		{attention.Varlen{UsedK: attention.Vector{Offset: 1}}, "Varlen.UsedK"},
	} {
		a.Varlen = &c.varlen
		_, err := tensors.Sequences(a)
		var shape *attention.ShapeError
		require.ErrorAs(t, err, &shape)
		require.Equal(t, c.field, shape.Field)
		_, err = tensors.ExistingRows(a)
		require.Error(t, err)
	}
	a.Varlen = &attention.Varlen{UsedQ: attention.Vector{Buffer: &vk.Buffer{}}}
	_, err := tensors.Sequences(a)
	require.ErrorIs(t, err, attention.ErrUnsupported)
	_, err = tensors.Sequences(attention.Args{})
	require.Error(t, err)
}
