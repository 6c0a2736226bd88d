package bench

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/npy"
)

// tableOf writes a file of a table and returns its path.
func tableOf(t *testing.T, name string, dtype npy.DType, shape []int, data []byte) string {
	path := filepath.Join(t.TempDir(), name+".npy")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, npy.Write(f, &npy.Array{DType: dtype, Shape: shape, Data: data}))
	require.NoError(t, f.Close())
	return path
}

// Tables of files and of random floats are those of calls, in both passes, and the keys that a mask leaves are counted by them.
func TestTablesOfModifiers(t *testing.T) {
	const rows = 70
	var doc []byte
	cells := 0
	for i := range rows {
		doc = binary.LittleEndian.AppendUint64(doc, uint64(i/9))
		cells += min(9, rows-i/9*9)
	}
	half := make([]byte, 2*2*3)
	attention.BF16.Encode(half, []float32{1, -2, 0.5, 0.25, 4, -1})
	sweep := Sweep{}
	for _, x := range [][2]string{
		{"table", "doc=" + tableOf(t, "doc", npy.Int64, []int{rows}, doc) + ",bias=" + tableOf(t, "bias", npy.BFloat16, []int{2, 3}, half) + ",far=140"},
		{"score-mod", "s + bias[h, j % 3] + far[i - j + 69]"}, {"mask-mod", "doc[i] == doc[j]"},
	} {
		values, err := AxisOf(x[0]).Parse(x[1], sweep)
		require.NoError(t, err)
		sweep[x[0]] = values
	}
	list, err := Lists("batch-size=2 nheads=2 seqlen=70 headdim=16 dtype=f32 pass=fwd,bwd").With(sweep).Problems()
	require.NoError(t, err)
	require.Len(t, list, 2)
	for _, p := range list {
		require.InDelta(t, 2*cells, p.cells(), 0)
		require.InDelta(t, 2*cells, p.cells(), 0, "counted before")
		d := newData(p, 3)
		require.Len(t, d.args.Tables, 3)
		require.Equal(t, [3]int{2, 3}, d.args.Tables[1].Dims)
		b := &Bench{CPU: "cpu", Seed: 3, Timing: Timing{Repeats: 1}, Specs: Specs([]attention.Tier{attention.TierCPU}, nil, nil, nil, nil, nil)}
		row := measured(t, b, p)[0]
		require.Equal(t, OK, row.Status, row.Reason)
	}
}

func TestTablesThatAreRefused(t *testing.T) {
	large := tableOf(t, "large", npy.Int64, []int{1}, binary.LittleEndian.AppendUint64(nil, 1<<40))
	for text, want := range map[string]string{
		"bias":             "want name=file.npy",
		"=3":               "want name=file.npy",
		"bias=3,bias=4":    "given twice",
		"bias=0":           "sizes of at least 1",
		"bias=2x2x2x2":     "4 axes",
		"bias=none.npy":    "none.npy",
		"bias=70000x70000": "at most",
		"x=" + large:       "does not fit 32 bits",
	} {
		_, err := ParseTables(text)
		require.ErrorContains(t, err, want, text)
	}
	values, err := AxisOf("table").Parse("bias=3", Sweep{})
	require.NoError(t, err)
	_, err = AxisOf("score-mod").Parse("s + bias[h, j]", Sweep{"table": values})
	require.Error(t, err, "another number of axes")
	_, err = AxisOf("score-mod").Parse("s + other[j]", Sweep{"table": values})
	require.Error(t, err)
}
