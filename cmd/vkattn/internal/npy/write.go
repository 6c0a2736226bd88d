package npy

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

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
