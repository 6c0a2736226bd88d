package npy

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"
)

// WriteFloat32 writes a version 1.0 file of float32 values in C order.
// len(values) must be the product of shape.
func WriteFloat32(w io.Writer, shape []int, values []float32) error {
	count := 1
	for _, n := range shape {
		count *= n
	}
	if count != len(values) {
		return fmt.Errorf("npy: %d values for shape %v", len(values), shape)
	}
	out := bufio.NewWriterSize(w, 1<<20)
	if err := writeHeader(out, Float32, shape); err != nil {
		return err
	}
	var word [4]byte
	for _, v := range values {
		binary.LittleEndian.PutUint32(word[:], math.Float32bits(v))
		if _, err := out.Write(word[:]); err != nil {
			return err
		}
	}
	return out.Flush()
}

// Write writes a version 1.0 file of an array.
func Write(w io.Writer, a *Array) error {
	if err := writeHeader(w, a.DType, a.Shape); err != nil {
		return err
	}
	_, err := w.Write(a.Data)
	return err
}

// writeHeader pads the header so that the data begins at a multiple of 64, as
// NumPy does for memory mapping.
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
	text := fmt.Sprintf("{'descr': '<f%d', 'fortran_order': False, 'shape': (%s), }", d.Size(), axes)
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
