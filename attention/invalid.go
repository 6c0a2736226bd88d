package attention

import (
	"fmt"
	"vkattn/vk"
)

// errInvalid is the error that attention.ErrInvalid names.
var errInvalid = fmt.Errorf("attention: %w", vk.ErrInvalid)

// isInvalid reports whether every invalid argument's error matches target.
func isInvalid(target error) bool { return target == errInvalid || target == vk.ErrInvalid }

// invalidError is an error of one line that matches errInvalid.
type invalidError string

func (e invalidError) Error() string { return string(e) }

func (e invalidError) Is(target error) bool { return isInvalid(target) }

// invalid returns an error of one line that matches errInvalid.
func invalid(format string, args ...any) error {
	return invalidError("attention: " + fmt.Sprintf(format, args...))
}

// unmade is the error of a nil or zero operation.
func unmade(constructor string) error {
	return invalid("the operation is nil, or was not made by %s", constructor)
}
