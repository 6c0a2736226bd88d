package npy

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// headers are dictionaries that NumPy writes, and damaged ones.
var headers = []string{
	"{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 3, 4), }",
	"{'descr': '>f4', 'fortran_order': True, 'shape': (3, 2), }",
	"{'descr': '|V2', 'fortran_order': False, 'shape': (), }",
	"{'shape': (2L,), 'fortran_order': False, 'descr': '|i1'}",
	"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
	"{'descr': '<i8', 'fortran_order': False, 'shape': (0, 9223372036854775807, 3), }",
	"{'descr': '<f2', 'fortran_order': False, 'shape': (99999999999999999999,), }",
	"{'descr': '<f2', 'descr': '<f4', 'fortran_order': Fals",
	"{", "", "\x00",
}

// framed is a file with a header of one of the versions.
func framed(major byte, header string, data []byte) []byte {
	file := append(bytes.Clone(magic), major, 0)
	if major == 1 {
		file = binary.LittleEndian.AppendUint16(file, uint16(len(header)))
	} else {
		file = binary.LittleEndian.AppendUint32(file, uint32(len(header)))
	}
	return append(append(file, header...), data...)
}

// A header is refused in one line, or means what it says.
func FuzzHeader(f *testing.F) {
	for _, h := range headers {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h, err := parseHeader(text, nil)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		for _, n := range h.shape {
			require.GreaterOrEqual(t, n, 0)
		}
		require.Contains(t, h.descr, kinds[h.dtype].code[1:])
		require.Equal(t, h.bigEndian, strings.HasPrefix(h.descr, ">"))
	})
}

// A file is refused in one line, or has as many bytes of data as its shape takes and
// comes out of Write as it went in.
func FuzzRead(f *testing.F) {
	for i, h := range headers {
		f.Add(framed(byte(1+i%3), h, make([]byte, 48)))
	}
	f.Add(framed(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", make([]byte, 24)))
	f.Add(framed(2, "{'descr': '>f2', 'fortran_order': True, 'shape': (2, 3, 1), }\n", []byte("abcdefghijkl")))
	f.Add(framed(2, "{'descr': '>f4', 'fortran_order': False, 'shape': (), }", make([]byte, 4)))
	f.Add(framed(9, headers[0], nil))
	f.Add([]byte("\x93NUMPY\x02\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, file []byte) {
		a, err := read(file)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		n := a.DType.Size()
		for _, axis := range a.Shape {
			n *= axis
		}
		require.Len(t, a.Data, n)
		var out bytes.Buffer
		if err := Write(&out, a); err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		again, err := read(out.Bytes())
		require.NoError(t, err)
		require.Equal(t, a.DType, again.DType)
		require.True(t, slices.Equal(a.Shape, again.Shape))
		require.True(t, bytes.Equal(a.Data, again.Data))
	})
}
