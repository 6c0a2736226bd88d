package problem

import (
	"fmt"
	"os"

	"vkattn/internal/errs"
)

// ErrUnsupported is attention.ErrUnsupported.
var ErrUnsupported error = errs.ErrUnsupported

// ErrInvalid is attention.ErrInvalid.
var ErrInvalid error = errs.ErrInvalid

// ShapeError is attention.ShapeError.
type ShapeError struct {
	Field string
	Got   any
	Want  any
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
