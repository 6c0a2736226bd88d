package npy

import (
	"fmt"
	"slices"
	"strings"
)

// DType is the element type of an array.
type DType uint8

// The element types vkattn takes. BFloat16 is what NumPy saves of the bfloat16 of
// package ml_dtypes: two bytes without a type. Bool is one byte, 0 or not.
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

// kinds are the names, how a header spells them (without the byte order) and the
// bytes of one element.
var kinds = []struct {
	name, code string
	size       int
}{
	{"float16", "f2", 2}, {"float32", "f4", 4}, {"bfloat16", "V2", 2}, {"int8", "i1", 1},
	{"uint8", "u1", 1}, {"bool", "b1", 1}, {"int32", "i4", 4}, {"int64", "i8", 8},
}

// Size is the bytes of one element.
func (d DType) Size() int { return kinds[d].size }

func (d DType) String() string { return kinds[d].name }

// descr is how NumPy spells the type, little-endian.
func (d DType) descr() string {
	order := "<"
	if d.Size() == 1 {
		order = "|"
	}
	return order + kinds[d].code
}

// parseDescr reads a type's spelling.
func parseDescr(descr string) (d DType, bigEndian bool, err error) {
	code := descr
	if descr != "" && strings.IndexByte("<>=|", descr[0]) >= 0 {
		bigEndian = descr[0] == '>'
		code = descr[1:]
	}
	for i, k := range kinds {
		if k.code == code || code == "?" && DType(i) == Bool {
			return DType(i), bigEndian, nil
		}
	}
	return 0, false, notTaken(descr, []DType{Float16, Float32})
}

// notTaken says which types are.
func notTaken(descr string, want []DType) error {
	var names []string
	for _, d := range want {
		names = append(names, fmt.Sprintf("%s ('%s')", d, d.descr()))
	}
	list := names[0]
	if n := len(names) - 1; n > 0 {
		list = strings.Join(names[:n], ", ") + " or " + names[n]
	}
	return fmt.Errorf("element type %q is not taken: %s is needed", descr, list)
}

// Want reports a file of none of the given types.
func (f *File) Want(types ...DType) error {
	if slices.Contains(types, f.DType) {
		return nil
	}
	return notTaken(f.header.descr, types)
}
