package npy

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// file builds a .npy file from its parts.
func file(major byte, dict string, data []byte) []byte {
	out := append([]byte("\x93NUMPY"), major, 0)
	dict += "\n"
	if major == 1 {
		out = binary.LittleEndian.AppendUint16(out, uint16(len(dict)))
	} else {
		out = binary.LittleEndian.AppendUint32(out, uint32(len(dict)))
	}
	return append(append(out, dict...), data...)
}

func read(b []byte) (*Array, error) {
	f, err := open(bytes.NewReader(b), int64(len(b)), nil)
	if err != nil {
		return nil, err
	}
	return f.Load()
}

func TestWriteThenReadIsTheSameArray(t *testing.T) {
	for _, shape := range [][]int{{}, {3}, {2, 3}, {1, 2, 3, 4}, {0, 5}} {
		for _, dtype := range []DType{Float16, Float32, BFloat16, Int8, UInt8, Bool, Int32, Int64} {
			size := dtype.Size()
			for _, n := range shape {
				size *= n
			}
			want := &Array{DType: dtype, Shape: shape, Data: make([]byte, size)}
			for i := range want.Data {
				want.Data[i] = byte(i)
			}
			var buf bytes.Buffer
			require.NoError(t, Write(&buf, want))
			require.Zero(t, (buf.Len()-size)%64, "data must begin at a multiple of 64")
			got, err := read(buf.Bytes())
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
	require.Error(t, Write(&bytes.Buffer{}, &Array{DType: Float32, Shape: []int{2}, Data: make([]byte, 7)}))
}

func TestReadTakesEveryVersionOrderAndSpelling(t *testing.T) {
	data := []byte{1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0}
	for name, b := range map[string][]byte{
		"1.0":           file(1, "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3), }", data),
		"2.0":           file(2, "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3), }", data),
		"3.0":           file(3, "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3), }", data),
		"other order":   file(1, `{"shape":(2,3),"fortran_order":False,"descr":"<f2"}`, data),
		"python 2 long": file(1, "{'descr': '<f2', 'fortran_order': False, 'shape': (2L, 3L), }", data),
		"big-endian":    file(1, "{'descr': '>f2', 'fortran_order': False, 'shape': (2, 3), }", []byte{0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6}),
		"fortran":       file(1, "{'descr': '<f2', 'fortran_order': True, 'shape': (2, 3), }", []byte{1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6, 0}),
	} {
		t.Run(name, func(t *testing.T) {
			a, err := read(b)
			require.NoError(t, err)
			require.Equal(t, &Array{DType: Float16, Shape: []int{2, 3}, Data: data}, a)
		})
	}
}

func TestReadFortranRank4(t *testing.T) {
	shape := []int{2, 3, 4, 5}
	data := make([]byte, 4*2*3*4*5)
	for b := range 2 {
		for h := range 3 {
			for s := range 4 {
				for d := range 5 {
					at := b + 2*(h+3*(s+4*d))
					binary.LittleEndian.PutUint32(data[4*at:], uint32(d+5*(s+4*(h+3*b))))
				}
			}
		}
	}
	a, err := read(file(1, "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3, 4, 5), }", data))
	require.NoError(t, err)
	require.Equal(t, shape, a.Shape)
	for i := range 2 * 3 * 4 * 5 {
		require.EqualValues(t, i, binary.LittleEndian.Uint32(a.Data[4*i:]))
	}
}

func TestReadRefusesWhatIsNotAnArray(t *testing.T) {
	const good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"
	shape := func(s string) string { return "{'descr': '<f4', 'fortran_order': False, 'shape': " + s + ", }" }
	huge := append([]byte("\x93NUMPY\x02\x00"), 0xff, 0xff, 0xff, 0xff)
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"empty":                {nil, "not a .npy file"},
		"other magic":          {[]byte("PK\x03\x04 a zip file"), "not a .npy file"},
		"version 4":            {file(4, good, make([]byte, 8)), "version 4.0"},
		"ends in the length":   {[]byte("\x93NUMPY\x01\x00\x10"), "truncated in the header"},
		"ends in the header":   {file(1, good, nil)[:30], "truncated in the header"},
		"header of 4 GiB":      {huge, "over the limit"},
		"truncated data":       {file(1, good, make([]byte, 7)), "needs 8 bytes of data, the file has 7"},
		"no data":              {file(1, shape("(1000000000000, 4)"), nil), "truncated"},
		"trailing bytes":       {file(1, good, make([]byte, 9)), "1 bytes follow"},
		"overflowing shape":    {file(1, shape("(4611686018427387904, 4611686018427387904)"), nil), "larger than any file"},
		"overflowing axis":     {file(1, shape("(99999999999999999999,)"), nil), "larger than any file"},
		"negative axis":        {file(1, shape("(-2,)"), nil), "malformed"},
		"no shape":             {file(1, "{'descr': '<f4', 'fortran_order': False}", nil), `no "shape"`},
		"shape twice":          {file(1, "{'shape': (2,), 'shape': (2,)}", nil), "twice"},
		"unknown key":          {file(1, "{'extra': (2,)}", nil), "unknown key"},
		"float64":              {file(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", make([]byte, 8)), "'<f4'"},
		"structured":           {file(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", nil), "structured"},
		"order is a number":    {file(1, "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }", nil), "malformed"},
		"words after the dict": {file(1, good+" x", make([]byte, 8)), "malformed"},
		"not closed":           {file(1, strings.TrimSuffix(good, "}"), make([]byte, 8)), "malformed"},
		"not a dict":           {file(1, "[1, 2]", nil), "malformed"},
		"quote not closed":     {file(1, "{'descr", nil), "malformed"},
		"no header text":       {file(1, "", nil), "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(c.file)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestOpenReadsTheHeaderAndLoadTheRest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.npy")
	require.NoError(t, os.WriteFile(path, file(1, "{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }", []byte{1, 0, 2, 0, 3, 0}), 0o644))
	f, err := Open(path)
	require.NoError(t, err)
	require.Equal(t, []int{3}, f.Shape)
	a, err := f.Load()
	require.NoError(t, err)
	require.Equal(t, []byte{1, 0, 2, 0, 3, 0}, a.Data)
	require.NoError(t, f.Close())
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "absent.npy"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Open(t.TempDir())
	require.ErrorContains(t, err, "not a regular file")
}
