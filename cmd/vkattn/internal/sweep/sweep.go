// Package sweep parses the lists of a benchmark's flags.
package sweep

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// limit bounds one list, and so the memory that a mistake such as 1-99999999+1 takes.
const limit = 4096

// Ints parses a comma list of positive integers and ranges:
//
//	64,128          64 and 128
//	1024-16384*2    1024, 2048, 4096, 8192, 16384
//	64-256+64       64, 128, 192, 256
//
// A range ends at its last term that is not over its end. Repeated values are dropped.
func Ints(list string) ([]int, error) {
	var out []int
	for _, item := range strings.Split(list, ",") {
		values, err := term(strings.TrimSpace(item))
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			if !slices.Contains(out, v) {
				out = append(out, v)
			}
		}
		if len(out) > limit {
			return nil, fmt.Errorf("%q has over %d values", list, limit)
		}
	}
	return out, nil
}

func term(item string) ([]int, error) {
	first, rest, isRange := strings.Cut(item, "-")
	if !isRange || first == "" {
		v, err := positive(item, item)
		return []int{v}, err
	}
	at := strings.IndexAny(rest, "*+")
	if at < 0 {
		return nil, fmt.Errorf("%q: a range is first-last*mult or first-last+step", item)
	}
	lo, err := positive(first, item)
	if err != nil {
		return nil, err
	}
	hi, err := positive(rest[:at], item)
	if err != nil {
		return nil, err
	}
	step, err := positive(rest[at+1:], item)
	if err != nil {
		return nil, err
	}
	if hi < lo {
		return nil, fmt.Errorf("%q: the range ends before it begins", item)
	}
	multiply := rest[at] == '*'
	if multiply && step < 2 {
		return nil, fmt.Errorf("%q: the multiplier must be at least 2", item)
	}
	var out []int
	for v := lo; v <= hi; {
		if out = append(out, v); len(out) > limit {
			return nil, fmt.Errorf("%q has over %d values", item, limit)
		}
		if multiply {
			v *= step
		} else {
			v += step
		}
	}
	return out, nil
}

// largest is the largest value of a list. It fits 31 bits, so that no term of a range
// overflows an int.
const largest = math.MaxInt32

// positive parses one number.
func positive(text, item string) (int, error) {
	v, err := strconv.ParseUint(text, 10, 31)
	// ParseUint reports ErrRange before it has read the rest, which may not be digits.
	if errors.Is(err, strconv.ErrRange) && strings.Trim(text, "0123456789") == "" {
		return 0, fmt.Errorf("%q: %s is over %d", item, text, largest)
	}
	switch {
	case (err != nil || v == 0) && text == item:
		return 0, fmt.Errorf("%q is not a positive number", item)
	case err != nil || v == 0:
		return 0, fmt.Errorf("%q: %q is not a positive number", item, text)
	}
	return int(v), nil
}

// Words parses a comma list of names with parse and drops repeated ones.
func Words[T comparable](list string, parse func(string) (T, error)) ([]T, error) {
	var out []T
	for _, item := range strings.Split(list, ",") {
		v, err := parse(strings.TrimSpace(item))
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
		if len(out) > limit {
			return nil, fmt.Errorf("the list has over %d values", limit)
		}
	}
	return out, nil
}
