// Package errs makes errors that match attention.ErrInvalid.
package errs

import (
	"fmt"

	"vkattn/vk"
)

// ErrInvalid is the error that attention.ErrInvalid names.
var ErrInvalid = Sentinel("attention: invalid use", vk.ErrInvalid)

// sentinel is an error with a text of its own that also matches another one.
type sentinel struct {
	text  string
	cause error
}

func (s *sentinel) Error() string { return s.text }

func (s *sentinel) Unwrap() error { return s.cause }

// Sentinel returns an error with a text that matches itself and cause.
func Sentinel(text string, cause error) error { return &sentinel{text, cause} }

// IsInvalid reports whether every invalid argument's error matches target.
func IsInvalid(target error) bool { return target == ErrInvalid || target == vk.ErrInvalid }

// invalidError is an error of one line that matches ErrInvalid.
type invalidError string

func (e invalidError) Error() string { return string(e) }

func (e invalidError) Is(target error) bool { return IsInvalid(target) }

// Invalid returns an error of one line that matches ErrInvalid.
func Invalid(format string, args ...any) error {
	return invalidError("attention: " + fmt.Sprintf(format, args...))
}

// Unmade is the error of a nil or zero operation.
func Unmade(constructor string) error {
	return Invalid("the operation is nil, or was not made by %s", constructor)
}
