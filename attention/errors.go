package attention

import (
	"fmt"

	"vkattn/vk"
)

// ErrUnsupported is matched by errors for problems that are well-formed but
// that the tier or device at hand cannot compute. It also matches
// [vk.ErrUnsupported].
var ErrUnsupported error = fmt.Errorf("attention: %w", vk.ErrUnsupported)

// ErrInvalid is matched by errors for arguments that no tier takes, [ShapeError]s
// among them, and by those of objects that are nil or that no function of this
// package made. It also matches [vk.ErrInvalid].
var ErrInvalid error = fmt.Errorf("attention: %w", vk.ErrInvalid)

// invalidError is an error of one line that matches ErrInvalid.
type invalidError string

func (e invalidError) Error() string        { return string(e) }
func (e invalidError) Is(target error) bool { return target == ErrInvalid || target == vk.ErrInvalid }

func invalid(format string, args ...any) error {
	return invalidError("attention: " + fmt.Sprintf(format, args...))
}

// unmade refuses a nil pointer and the zero value of an operation.
func unmade(constructor string) error {
	return invalid("the operation is nil, or was not made by %s", constructor)
}

// ShapeError says which field of a Config, Shape or Args is wrong.
type ShapeError struct {
	Field string // such as "HeadDim", "Sq" or "O.Strides.Seq"
	Got   any    // what the caller gave
	Want  any    // what would have been accepted, a value or a phrase
}

// Error is one line: the field, what it is and what it should be.
func (e *ShapeError) Error() string {
	if e == nil {
		return "attention: no error"
	}
	return fmt.Sprintf("attention: %s is %v, want %v", e.Field, e.Got, e.Want)
}

// Is reports whether target is [ErrInvalid] or [vk.ErrInvalid], which every ShapeError
// matches.
func (e *ShapeError) Is(target error) bool { return invalidError("").Is(target) }
