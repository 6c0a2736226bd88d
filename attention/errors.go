package attention

import (
	"fmt"

	"vkattn/vk"
)

// ErrUnsupported is matched by errors for problems that are well-formed but
// that the tier or device at hand cannot compute. It also matches
// [vk.ErrUnsupported].
var ErrUnsupported error = fmt.Errorf("attention: %w", vk.ErrUnsupported)

// ShapeError says which field of a Config, Shape or Args is wrong.
type ShapeError struct {
	Field string // such as "HeadDim", "Sq" or "O.Strides.Seq"
	Got   any    // what the caller gave
	Want  any    // what would have been accepted, a value or a phrase
}

// Error is one line: the field, what it is and what it should be.
func (e *ShapeError) Error() string {
	return fmt.Sprintf("attention: %s is %v, want %v", e.Field, e.Got, e.Want)
}
