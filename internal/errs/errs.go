// Package errs makes errors that match attention.ErrInvalid, attention.ErrUnsupported and
// vk.ErrClosed.
package errs

import (
	"fmt"
	"strings"

	"vkattn/vk"
)

// ErrInvalid is the error that attention.ErrInvalid names.
var ErrInvalid = Sentinel("attention: invalid use", vk.ErrInvalid)

// ErrUnsupported is the error that attention.ErrUnsupported names.
var ErrUnsupported = Sentinel("attention: unsupported", vk.ErrUnsupported)

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

// refusal is an error that also matches ErrUnsupported.
type refusal struct{ cause error }

func (e refusal) Error() string {
	return ErrUnsupported.Error() + ": " + strings.TrimPrefix(e.cause.Error(), "attention: ")
}

func (e refusal) Unwrap() []error { return []error{ErrUnsupported, e.cause} }

// Refuse returns an error that matches cause and ErrUnsupported: that of fields which are
// well-formed, but no tier, or no device, computes.
func Refuse(cause error) error { return refusal{cause} }

// Closed is the error of something that is closed: the operation, the device or a buffer.
func Closed(what string) error { return Sentinel("attention: "+what+" is closed", vk.ErrClosed) }

// ClosedOp is the error of a closed operation.
var ClosedOp = Closed("the operation")

// CheckCommands refuses commands of another device than the operation's, which is nil on the CPU.
func CheckCommands(method string, c *vk.Commands, dev *vk.Device) error {
	switch of := c.Device(); {
	case dev == nil:
		return fmt.Errorf("%w: only a Vulkan device records into a command buffer", ErrUnsupported)
	case of == nil:
		return Invalid("%s: no command buffer", method)
	case of != dev:
		return Invalid("%s: the commands are of another device", method)
	}
	return nil
}
