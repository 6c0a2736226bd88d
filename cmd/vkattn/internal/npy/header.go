package npy

import (
	"errors"
	"fmt"
	"math"
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

// parseHeader reads the Python literal
//
//	{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 3, 4), }
//
// with its keys in any order and each exactly once. Its type has to be one of want.
func parseHeader(text string, want []DType) (header, error) {
	var h header
	s := scanner{rest: text}
	seen := map[string]bool{}
	err := s.expect('{')
	for err == nil && !s.accept('}') {
		var key string
		if key, err = s.quoted(); err != nil {
			break
		}
		if seen[key] {
			return h, fmt.Errorf("header names %q twice", key)
		}
		seen[key] = true
		if err = s.expect(':'); err != nil {
			break
		}
		switch key {
		case "descr":
			err = h.readDescr(&s, want)
		case "fortran_order":
			h.fortran, err = s.boolean()
		case "shape":
			h.shape, err = s.tuple()
		default:
			return h, fmt.Errorf("header has an unknown key %q", key)
		}
		if err == nil && !s.accept(',') {
			if err = s.expect('}'); err == nil {
				break
			}
		}
	}
	if err != nil {
		return h, err
	}
	if strings.TrimSpace(s.rest) != "" {
		return h, errMalformed
	}
	for _, key := range []string{"descr", "fortran_order", "shape"} {
		if !seen[key] {
			return h, fmt.Errorf("header has no %q", key)
		}
	}
	return h, nil
}

func (h *header) readDescr(s *scanner, want []DType) error {
	if s.peek() == '[' {
		return fmt.Errorf("structured arrays are not supported: %s is needed", alternatives(want))
	}
	descr, err := s.quoted()
	if err != nil {
		return err
	}
	h.descr = descr
	h.dtype, h.bigEndian, err = parseDescr(descr, want)
	return err
}

var errMalformed = errors.New("malformed header")

// scanner reads the Python literals that a header may have.
type scanner struct{ rest string }

func (s *scanner) peek() byte {
	s.rest = strings.TrimLeft(s.rest, " \t\r\n")
	if s.rest == "" {
		return 0
	}
	return s.rest[0]
}

func (s *scanner) accept(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

func (s *scanner) expect(c byte) error {
	if !s.accept(c) {
		return errMalformed
	}
	return nil
}

func (s *scanner) quoted() (string, error) {
	quote := s.peek()
	if quote != '\'' && quote != '"' {
		return "", errMalformed
	}
	value, rest, ok := strings.Cut(s.rest[1:], string(quote))
	if !ok || strings.Contains(value, `\`) {
		return "", errMalformed
	}
	s.rest = rest
	return value, nil
}

func (s *scanner) boolean() (bool, error) {
	s.peek()
	if rest, ok := strings.CutPrefix(s.rest, "True"); ok {
		s.rest = rest
		return true, nil
	}
	if rest, ok := strings.CutPrefix(s.rest, "False"); ok {
		s.rest = rest
		return false, nil
	}
	return false, errMalformed
}

// tuple reads (), (n,) or (n, m, ...). Python 2 wrote a long as 3L.
func (s *scanner) tuple() ([]int, error) {
	shape := []int{}
	if err := s.expect('('); err != nil {
		return nil, err
	}
	for !s.accept(')') {
		s.peek()
		digits := len(s.rest) - len(strings.TrimLeft(s.rest, "0123456789"))
		n, err := strconv.ParseInt(s.rest[:digits], 10, 64)
		if errors.Is(err, strconv.ErrRange) || n > math.MaxInt {
			return nil, fmt.Errorf("axis of %s elements is larger than any file", s.rest[:digits])
		}
		if err != nil {
			return nil, errMalformed
		}
		s.rest = s.rest[digits:]
		s.accept('L')
		shape = append(shape, int(n))
		if !s.accept(',') && s.peek() != ')' {
			return nil, errMalformed
		}
	}
	return shape, nil
}
