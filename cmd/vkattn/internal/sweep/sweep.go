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
		if out = Union(out, values...); len(out) > limit {
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
		out = append(out, v)
		if len(out) > limit {
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

// Union appends those of more to a list that it does not have.
func Union[T comparable](list []T, more ...T) []T {
	for _, x := range more {
		if !slices.Contains(list, x) {
			list = append(list, x)
		}
	}
	return list
}

// Words parses a comma list of names with parse and drops repeated ones.
func Words[T comparable](list string, parse func(string) (T, error)) ([]T, error) {
	var out []T
	for _, item := range strings.Split(list, ",") {
		v, err := parse(strings.TrimSpace(item))
		if err != nil {
			return nil, err
		}
		if out = Union(out, v); len(out) > limit {
			return nil, fmt.Errorf("the list has over %d values", limit)
		}
	}
	return out, nil
}

// UpTo returns a parser of integers from 0 to most.
func UpTo(most int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 0 || n > most {
			return 0, fmt.Errorf("%q is not a number from 0 to %d", s, most)
		}
		return n, nil
	}
}

// Share parses a ratio. A ratio of 1 becomes 0, which means no list at all.
func Share(s string) (float64, error) {
	x, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || !(x > 0 && x <= 1) {
		return 0, fmt.Errorf("%q is not a share above 0 and at most 1", s)
	}
	if x == 1 {
		return 0, nil
	}
	return x, nil
}

// Bool parses true and false.
func Bool(s string) (bool, error) {
	switch s = strings.TrimSpace(s); s {
	case "true", "false":
		return s == "true", nil
	}
	return false, fmt.Errorf("%q is neither true nor false", s)
}

// Either parses one of two names of something: false is the first.
func Either(s, what, no, yes string) (bool, error) {
	switch strings.ToLower(s) {
	case no:
		return false, nil
	case yes:
		return true, nil
	}
	return false, fmt.Errorf("unknown %s %q, want %s or %s", what, s, no, yes)
}

// Pair returns a parser of two numbers with a comma between them, each at least a number.
func Pair(least int) func(string) ([2]int, error) {
	return func(s string) (pair [2]int, err error) {
		first, second, ok := strings.Cut(s, ",")
		a, errA := strconv.Atoi(strings.TrimSpace(first))
		b, errB := strconv.Atoi(strings.TrimSpace(second))
		if !ok || errA != nil || errB != nil || min(a, b) < least || max(a, b) > largest {
			return pair, fmt.Errorf("%q: want two numbers from %d to %d, such as 128,64", s, least, largest)
		}
		return [2]int{a, b}, nil
	}
}

// Positive parses a finite number above 0.
func Positive(s string) (float32, error) {
	v, err := strconv.ParseFloat(s, 32)
	if err != nil || !(float32(v) > 0) || math.IsInf(v, 0) {
		return 0, errors.New("want a finite number above 0 that a float32 holds")
	}
	return float32(v), nil
}

// Probability parses a number from 0 on and below 1.
func Probability(s string) (float32, error) {
	v, err := strconv.ParseFloat(s, 32)
	if err != nil || !(v >= 0 && float32(v) < 1) {
		return 0, errors.New("want a probability of at least 0 and below 1")
	}
	return float32(v), nil
}

// Percentage parses a share above 0 and below 1 that is given as a percentage: "5%" or "5".
func Percentage(s string) (float64, error) {
	v, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(s), "%"), 64)
	if err != nil || !(v > 0 && v < 100) {
		return 0, fmt.Errorf("%q is not a percentage above 0 and below 100, such as 5%%", s)
	}
	return v / 100, nil
}
