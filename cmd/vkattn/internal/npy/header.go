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
