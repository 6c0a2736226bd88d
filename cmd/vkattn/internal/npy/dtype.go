package npy

import (
	"fmt"
	"slices"
	"strings"
)

// DType is the element type of an array.
type DType uint8

// The supported element types. NumPy saves bfloat16 of package ml_dtypes as two bytes
// without a type, which is BFloat16. A Bool is a byte, false if 0.
const (
	Float16 DType = iota
	Float32
	BFloat16
	Int8
	UInt8
	Bool
	Int32
	Int64
)

// kinds has for each type its name, its code in a header without the byte order, and the
// bytes of an element.
var kinds = []struct {
	name, code string
	size       int
}{
	{"float16", "f2", 2}, {"float32", "f4", 4}, {"bfloat16", "V2", 2}, {"int8", "i1", 1},
	{"uint8", "u1", 1}, {"bool", "b1", 1}, {"int32", "i4", 4}, {"int64", "i8", 8},
}

// Size is the number of bytes of an element.
func (d DType) Size() int { return kinds[d].size }

func (d DType) String() string { return kinds[d].name }

// descr is NumPy's code of the type, little-endian.
func (d DType) descr() string {
	order := "<"
	if d.Size() == 1 {
		order = "|"
	}
	return order + kinds[d].code
}

// parseDescr parses the code of a type, which has to be one of want: of all without any.
func parseDescr(descr string, want []DType) (d DType, bigEndian bool, err error) {
	code := descr
	if descr != "" && strings.IndexByte("<>=|", descr[0]) >= 0 {
		bigEndian = descr[0] == '>'
		code = descr[1:]
	}
	for i, k := range kinds {
		d = DType(i)
		if (k.code == code || code == "?" && d == Bool) && (len(want) == 0 || slices.Contains(want, d)) {
			return d, bigEndian, nil
		}
	}
	return 0, false, fmt.Errorf("element type %q is not supported: %s is needed", descr, alternatives(want))
}

// alternatives lists types with their codes, all of them for none.
func alternatives(types []DType) string {
	if len(types) == 0 {
		for i := range kinds {
			types = append(types, DType(i))
		}
	}
	var names []string
	for _, d := range types {
		names = append(names, fmt.Sprintf("%s ('%s')", d, d.descr()))
	}
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
