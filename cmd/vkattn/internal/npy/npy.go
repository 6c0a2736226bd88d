// Package npy reads and writes NumPy .npy files of arrays of numbers.
//
// The format is NEP 1 (numpy/lib/format.py), versions 1.0, 2.0 and 3.0. Nothing in a file
// is trusted: the length of the header is bounded, and the size of the data must equal
// the rest of the file. docs/design.md says why no library does this.
package npy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"strings"

	"vkattn/internal/atomicfile"
	"vkattn/internal/hostmem"
)

// Array is the content of a file: little-endian elements, the last axis contiguous.
type Array struct {
	DType DType
	Shape []int
	Data  []byte
}

// File is an open file whose header was read and agrees with its size.
type File struct {
	DType DType
	Shape []int

	header header
	r      io.Reader
	close  func() error
}

// maxHeader bounds the dictionary. NumPy itself refuses to parse over 10000.
const maxHeader = 64 << 10

var magic = []byte("\x93NUMPY")

// Open opens a regular file and reads its header, so that a file of gigabytes is checked
// before its data is read. It refuses pipes without waiting for a writer, and elements of
// other types than those of want if any are given. Errors do not have the path, which the
// caller adds.
func Open(path string, want ...DType) (*File, error) {
	f, err := atomicfile.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	var out *File
	if err == nil {
		out, err = open(f, info.Size(), want)
	}
	if err != nil {
		_ = f.Close()
		return nil, pathless(err)
	}
	out.close = f.Close
	return out, nil
}

// Close closes the file. Shape and DType stay valid.
func (f *File) Close() error {
	if f.close == nil {
		return nil
	}
	return f.close()
}

// Bytes is the size of the data.
func (f *File) Bytes() uint64 {
	n, _ := dataBytes(f.header) // Open has checked it
	return n
}

// LoadBytes is the memory that Load allocates: twice the data if the file is in Fortran
// order.
func (f *File) LoadBytes() uint64 {
	if f.header.fortran {
		return hostmem.Product(f.Bytes(), 2)
	}
	return f.Bytes()
}

// Load reads the data. It can be called once. If the data does not fit the memory, Load
// allocates nothing and returns an error that matches hostmem.ErrOutOfMemory: a sparse
// file may be larger than any memory.
func (f *File) Load() (*Array, error) {
	if err := hostmem.Check(f.LoadBytes()); err != nil {
		return nil, err
	}
	data := make([]byte, f.Bytes())
	if _, err := io.ReadFull(f.r, data); err != nil {
		return nil, fmt.Errorf("reading the data: %w", pathless(err))
	}
	if f.header.bigEndian {
		swap(data, f.DType.Size())
	}
	if f.header.fortran {
		data = fromFortran(data, f.Shape, f.DType.Size())
	}
	return &Array{DType: f.DType, Shape: f.Shape, Data: data}, nil
}

// Int32s are the elements of an array of Int32 or Int64.
func (a *Array) Int32s() ([]int32, error) {
	size := a.DType.Size()
	out := make([]int32, len(a.Data)/size)
	for i := range out {
		v := int64(int32(binary.LittleEndian.Uint32(a.Data[i*size:])))
		if size == 8 {
			v = int64(binary.LittleEndian.Uint64(a.Data[i*size:]))
		}
		out[i] = int32(v)
		if int64(out[i]) != v {
			return nil, fmt.Errorf("%d does not fit 32 bits", v)
		}
	}
	return out, nil
}

func open(r io.Reader, size int64, want []DType) (*File, error) {
	h, used, err := readHeader(r, size, want)
	if err != nil {
		return nil, err
	}
	need, err := dataBytes(h)
	if err != nil {
		return nil, err
	}
	switch have := uint64(size - used); {
	case have < need:
		return nil, fmt.Errorf("truncated: shape %v of %s needs %d bytes of data, the file has %d", h.shape, h.dtype, need, have)
	case have > need:
		return nil, fmt.Errorf("%d bytes follow the data of shape %v of %s", have-need, h.shape, h.dtype)
	}
	return &File{DType: h.dtype, Shape: h.shape, header: h, r: r}, nil
}

// readHeader reads the header and returns it with the number of bytes read.
func readHeader(r io.Reader, size int64, want []DType) (header, int64, error) {
	var start [8]byte
	if _, err := io.ReadFull(r, start[:]); errors.Is(err, io.EOF) {
		return header{}, 0, errors.New("not a .npy file: it is empty")
	} else if err != nil || string(start[:6]) != string(magic) {
		return header{}, 0, errors.New("not a .npy file (no NUMPY magic)")
	}
	var length [4]byte
	width := 4
	switch major := start[6]; major {
	case 1:
		width = 2
	case 2, 3:
	default:
		return header{}, 0, fmt.Errorf(".npy version %d.%d is not known (1.0, 2.0 and 3.0 are)", major, start[7])
	}
	if _, err := io.ReadFull(r, length[:width]); err != nil {
		return header{}, 0, errors.New("truncated in the header")
	}
	n := int64(binary.LittleEndian.Uint32(length[:]))
	if n > maxHeader {
		return header{}, 0, fmt.Errorf("header of %d bytes is over the limit of %d", n, maxHeader)
	}
	used := int64(len(start)+width) + n
	if used > size {
		return header{}, 0, errors.New("truncated in the header")
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return header{}, 0, errors.New("truncated in the header")
	}
	h, err := parseHeader(string(text), want)
	return h, used, err
}

// dataBytes is the size of the data by the header.
func dataBytes(h header) (uint64, error) {
	total := uint64(h.dtype.Size())
	for _, n := range h.shape {
		hi, lo := bits.Mul64(total, uint64(n))
		if hi != 0 || lo>>62 != 0 {
			return 0, fmt.Errorf("shape %v is larger than any file", h.shape)
		}
		total = lo
	}
	return total, nil
}

func swap(data []byte, size int) {
	for i := 0; i+size <= len(data); i += size {
		e := data[i : i+size]
		for a, b := 0, size-1; a < b; a, b = a+1, b-1 {
			e[a], e[b] = e[b], e[a]
		}
	}
}

// fromFortran converts elements from Fortran order, where the first axis is contiguous, to
// C order.
func fromFortran(data []byte, shape []int, size int) []byte {
	out := make([]byte, len(data))
	strides := make([]int, len(shape))
	step := size
	for axis, n := range shape {
		strides[axis] = step
		step *= n
	}
	index := make([]int, len(shape))
	from := 0
	for to := 0; to < len(out); to += size {
		copy(out[to:to+size], data[from:from+size])
		for axis := len(shape) - 1; axis >= 0; axis-- {
			index[axis]++
			from += strides[axis]
			if index[axis] < shape[axis] {
				break
			}
			from -= strides[axis] * shape[axis]
			index[axis] = 0
		}
	}
	return out
}

// pathless drops the path from an error of package os.
func pathless(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// Write writes a version 1.0 file of an array in C order.
func Write(w io.Writer, a *Array) error {
	size := a.DType.Size()
	for _, n := range a.Shape {
		size *= n
	}
	if size != len(a.Data) {
		return fmt.Errorf("npy: %d bytes for shape %v of %s", len(a.Data), a.Shape, a.DType)
	}
	if err := writeHeader(w, a.DType, a.Shape); err != nil {
		return err
	}
	_, err := w.Write(a.Data)
	return err
}

// writeHeader writes the header, padded so that the data begins at a multiple of 64 bytes,
// as NumPy does for memory mapping.
func writeHeader(w io.Writer, d DType, shape []int) error {
	var tuple strings.Builder
	for i, n := range shape {
		if i > 0 {
			tuple.WriteByte(' ')
		}
		fmt.Fprintf(&tuple, "%d,", n)
	}
	axes := tuple.String()
	if len(shape) > 1 {
		axes = strings.TrimSuffix(axes, ",")
	}
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", d.descr(), axes)
	start := len(magic) + 4
	pad := 63 - (start+len(text))%64
	text += strings.Repeat(" ", pad) + "\n"
	prefix := append(append([]byte{}, magic...), 1, 0)
	prefix = binary.LittleEndian.AppendUint16(prefix, uint16(len(text)))
	if _, err := w.Write(prefix); err != nil {
		return err
	}
	_, err := io.WriteString(w, text)
	return err
}
