package parallel

import (
	"errors"
	"fmt"

	"vkattn/attention"
	"vkattn/internal/errs"
	"vkattn/vk"
)

// Reasons of a [RankError].
var (
	ErrTimeout        = errors.New("no response within the timeout")
	ErrLeft           = errors.New("left the group")
	ErrMismatch error = mismatch{} // matches attention.ErrInvalid
	ErrFailed         = errors.New("failed")
)

// mismatch is the type of ErrMismatch.
type mismatch struct{}

func (mismatch) Error() string        { return "disagrees with the other ranks" }
func (mismatch) Is(target error) bool { return errs.IsInvalid(target) }

// errClosed is the error of an operation that is closed.
var errClosed = errs.ClosedOp

// RankError names the rank that ended a call and the reason.
type RankError struct {
	Rank int
	Err  error
}

// Error is one line with the rank and the reason.
func (e *RankError) Error() string {
	if e == nil {
		return "parallel: no error"
	}
	return fmt.Sprintf("parallel: rank %d: %v", e.Rank, e.Err)
}

// Unwrap returns the reason.
func (e *RankError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

// ModeError says what a mode cannot compute. It matches [attention.ErrUnsupported].
type ModeError struct {
	Mode   Mode
	Reason string
}

// Error is one line with the mode and the reason.
func (e *ModeError) Error() string {
	if e == nil {
		return "parallel: no error"
	}
	return fmt.Sprintf("parallel: mode %v: %s", e.Mode, e.Reason)
}

// Is reports whether target is [attention.ErrUnsupported] or [vk.ErrUnsupported].
func (e *ModeError) Is(target error) bool {
	return target == attention.ErrUnsupported || target == vk.ErrUnsupported
}
