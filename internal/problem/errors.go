package problem

import (
	"fmt"
	"os"

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
	Got   any    // the caller's value, or a phrase that describes it
	Want  any    // the accepted value, or a phrase that describes it
}

// Phrase is a text of a ShapeError in which ${HeadDim} stands for the name of a field.
type Phrase string

// String is the text with the names that the fields have in Go.
func (p Phrase) String() string { return p.With(func(field string) string { return field }) }

// With is the text with the names that name returns for fields.
func (p Phrase) With(name func(field string) string) string { return os.Expand(string(p), name) }

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
