package tests

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/half"
)

// Golden arrays are .npy files, version 1.0, of float16, float32 or float64 in C
// order. github.com/sbinet/npyio reads no float16 and writes no more than two
// dimensions.

const npyMagic = "\x93NUMPY\x01\x00"

// writeNpy writes x with elements of a NumPy type: "f2", "f4" or "f8".
func writeNpy(file, kind string, shape []int, x []float64) error {
	dims := ""
	for _, n := range shape {
		dims += fmt.Sprintf("%d, ", n)
	}
	header := fmt.Sprintf("{'descr': '<%s', 'fortran_order': False, 'shape': (%s), }", kind, strings.TrimSuffix(dims, " "))
	pad := 63 - (len(npyMagic)+2+len(header))%64
	header += strings.Repeat(" ", pad) + "\n"
	var b bytes.Buffer
	b.WriteString(npyMagic)
	b.Write(binary.LittleEndian.AppendUint16(nil, uint16(len(header))))
	b.WriteString(header)
	for _, v := range x {
		var raw []byte
		switch kind {
		case "f2":
			raw = binary.LittleEndian.AppendUint16(nil, half.F16FromFloat32(float32(v)))
		case "f4":
			raw = binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(v)))
		case "f8":
			raw = binary.LittleEndian.AppendUint64(nil, math.Float64bits(v))
		default:
			return fmt.Errorf("%s: type %q", file, kind)
		}
		b.Write(raw)
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// NumPy writes bytes as |u1.
var npyHeader = regexp.MustCompile(`^\{'descr': '[<|](f[248]|u1)', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \} *\n$`)

// readNpy reads what writeNpy writes.
func readNpy(file string) (shape []int, x []float64, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	return parseNpy(file, b)
}

// parseNpy reads the contents of a .npy file.
func parseNpy(file string, b []byte) (shape []int, x []float64, err error) {
	const fixed = len(npyMagic) + 2
	if len(b) < fixed || string(b[:len(npyMagic)]) != npyMagic {
		return nil, nil, fmt.Errorf("%s: not a .npy file of version 1.0", file)
	}
	n := int(binary.LittleEndian.Uint16(b[len(npyMagic):]))
	if len(b) < fixed+n {
		return nil, nil, fmt.Errorf("%s: too short", file)
	}
	m := npyHeader.FindSubmatch(b[fixed : fixed+n])
	if m == nil {
		return nil, nil, fmt.Errorf("%s: header %q", file, b[fixed:fixed+n])
	}
	b = b[fixed+n:]
	count := 1
	for _, s := range strings.FieldsFunc(string(m[2]), func(r rune) bool { return r == ',' || r == ' ' }) {
		d, err := strconv.Atoi(s)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", file, err)
		}
		shape = append(shape, d)
		count *= d
	}
	size := int(m[1][1] - '0')
	if len(b) != count*size {
		return nil, nil, fmt.Errorf("%s: %d bytes of data, want %d", file, len(b), count*size)
	}
	x = make([]float64, count)
	for i := range x {
		switch e := b[i*size:]; size {
		case 1:
			x[i] = float64(e[0])
		case 2:
			x[i] = float64(half.F16ToFloat32(binary.LittleEndian.Uint16(e)))
		case 4:
			x[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(e)))
		default:
			x[i] = math.Float64frombits(binary.LittleEndian.Uint64(e))
		}
	}
	return shape, x, nil
}

// readNpz reads the arrays of a file that NumPy's savez_compressed writes: a zip archive of
// .npy files.
func readNpz(file string) (map[string]npyArray, error) {
	z, err := zip.OpenReader(file)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	arrays := map[string]npyArray{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return nil, err
		}
		var a npyArray
		if a.shape, a.data, err = parseNpy(file+"/"+f.Name, b); err != nil {
			return nil, err
		}
		arrays[strings.TrimSuffix(f.Name, ".npy")] = a
	}
	return arrays, nil
}

type npyArray struct {
	shape []int
	data  []float64
}

func TestNpyRoundTrip(t *testing.T) {
	for _, kind := range []string{"f2", "f4", "f8"} {
		file := filepath.Join(t.TempDir(), kind+".npy")
		want := []float64{0, 1, -2.5, math.Inf(-1), 0.25, 1024}
		for _, shape := range [][]int{{6}, {1, 2, 3, 1}} {
			require.NoError(t, writeNpy(file, kind, shape, want))
			gotShape, got, err := readNpy(file)
			require.NoError(t, err)
			require.Equal(t, shape, gotShape)
			require.Equal(t, want, got)
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Zero(t, bytes.IndexByte(b, '\n')%64-63, "data starts at a multiple of 64")
		}
	}
}
