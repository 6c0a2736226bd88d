package problem

import (
	"fmt"

	"vkattn/internal/errs"
)

// ErrUnsupported matches errors for well-formed problems that the tier or the device
// cannot compute. Such errors also match [vk.ErrUnsupported]. Options that no tier computes
// together match ErrInvalid too.
var ErrUnsupported error = errs.ErrUnsupported

// ErrInvalid matches errors for arguments that no tier accepts, every [ShapeError] among
// them, and errors of objects that are nil or not made by this package. Such errors also
// match [vk.ErrInvalid].
var ErrInvalid error = errs.ErrInvalid

// ShapeError says which field of a Config, Shape or Args is wrong.
type ShapeError struct {
	Field string // for example "HeadDim", "Sq" or "O.Strides.Seq"
	Got   any    // the caller's value
	Want  any    // the accepted value, or a phrase that describes it
}

// Error is one line with the field, its value and the accepted value.
func (e *ShapeError) Error() string {
	if e == nil {
		return "attention: no error"
	}
	return fmt.Sprintf("attention: %s is %v, want %v", e.Field, e.Got, e.Want)
}

// Is reports whether target is [ErrInvalid] or [vk.ErrInvalid], which every ShapeError
// matches.
func (e *ShapeError) Is(target error) bool { return errs.IsInvalid(target) }
