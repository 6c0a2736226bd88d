package npy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// header is the header of a file.
type header struct {
	descr     string // type as the file spells it
	dtype     DType
	bigEndian bool
	fortran   bool
	shape     []int
}

// keys are those of a header.
var keys = []string{"descr", "fortran_order", "shape"}

var errMalformed = errors.New("malformed header")

// entry is an entry of a dictionary: a key and a string, a boolean, a tuple or a list.
var entry = regexp.MustCompile(`^\s*(?:'(\w+)'|"(\w+)")\s*:\s*('[^'"\\]*'|"[^'"\\]*"|True|False|\([^()]*\)|\[.*\])\s*(,|$)`)

// dictionary is a Python dictionary in braces.
var dictionary = regexp.MustCompile(`(?s)^\s*\{(.*)\}\s*$`)

// parseHeader reads the Python literal
//
//	{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 3, 4), }
//
// with its keys in any order and each exactly once. Its type has to be one of want.
func parseHeader(text string, want []DType) (h header, err error) {
	body := dictionary.FindStringSubmatch(text)
	if body == nil {
		return h, errMalformed
	}
	values := map[string]string{}
	for rest := body[1]; strings.TrimSpace(rest) != ""; {
		m := entry.FindStringSubmatch(rest)
		if m == nil {
			return h, errMalformed
		}
		rest = rest[len(m[0]):]
		key := m[1] + m[2]
		switch _, twice := values[key]; {
		case twice:
			return h, fmt.Errorf("header names %q twice", key)
		case !slices.Contains(keys, key):
			return h, fmt.Errorf("header has an unknown key %q", key)
		}
		values[key] = m[3]
	}
	for _, key := range keys {
		if values[key] == "" {
			return h, fmt.Errorf("header has no %q", key)
		}
	}
	if h.shape, err = tuple(values["shape"]); err != nil {
		return h, err
	}
	h.descr = values["descr"]
	order := values["fortran_order"]
	h.fortran = order == "True"
	switch {
	case h.descr[0] == '[':
		return h, fmt.Errorf("structured arrays are not supported: %s is needed", alternatives(want))
	case !strings.ContainsAny(h.descr[:1], `'"`), !h.fortran && order != "False":
		return h, errMalformed
	}
	h.descr = h.descr[1 : len(h.descr)-1]
	h.dtype, h.bigEndian, err = parseDescr(h.descr, want)
	return h, err
}

// tuple reads (), (n,) or (n, m, ...). Python 2 wrote a long as 3L.
func tuple(text string) ([]int, error) {
	shape := []int{}
	if text[0] != '(' {
		return nil, errMalformed
	}
	items := strings.Split(text[1:len(text)-1], ",")
	if strings.TrimSpace(items[len(items)-1]) == "" {
		items = items[:len(items)-1]
	}
	for _, item := range items {
		digits := strings.TrimSuffix(strings.TrimSpace(item), "L")
		n, err := strconv.ParseUint(digits, 10, strconv.IntSize-1)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return nil, fmt.Errorf("axis of %s elements is larger than any file", digits)
		case err != nil:
			return nil, errMalformed
		}
		shape = append(shape, int(n))
	}
	return shape, nil
}

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
