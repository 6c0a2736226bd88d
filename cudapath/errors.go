package cudapath

import (
	"errors"
	"fmt"

	"vkattn/internal/problem"
	"vkattn/vk"
)

// Error is a failed operation of the CUDA driver, or one that was refused before the driver
// was called. With errors.Is it matches vk.ErrOutOfMemory, vk.ErrDeviceLost,
// vk.ErrUnsupported, vk.ErrClosed or vk.ErrInvalid.
type Error struct {
	Op     string // the operation, such as "cuMemCreate" or "Alloc"
	Code   int    // CUresult; 0 when the driver had no part in it
	Name   string // of the code, such as "CUDA_ERROR_OUT_OF_MEMORY"
	Detail string // the reason; may be empty
	Err    error  // a sentinel or a cause; may be nil
}

func (e *Error) Error() string {
	if e == nil {
		return "cudapath: no error"
	}
	s := "cudapath: " + e.Op
	if e.Code != 0 {
		s += ": " + e.Name
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	} else if e.Code == 0 && e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

// Is reports whether target is the sentinel of Code.
func (e *Error) Is(target error) bool {
	return e != nil && target != nil && target == sentinel(e.Code)
}

// sentinel returns the sentinel of a CUresult. The context keeps a result that loses the
// device, and every later call returns it.
func sentinel(code int) error {
	switch code {
	case 1, 101, 400: // INVALID_VALUE, INVALID_DEVICE, INVALID_HANDLE
		return vk.ErrInvalid
	case 2: // OUT_OF_MEMORY
		return vk.ErrOutOfMemory
	case 3, 34, 35, 100, 200, 209, 218, 221, 222, 223, 500, 801, 803, 804:
		// NOT_INITIALIZED, STUB_LIBRARY, INSUFFICIENT_DRIVER, NO_DEVICE, INVALID_IMAGE,
		// NO_BINARY_FOR_GPU, INVALID_PTX, JIT_COMPILER_NOT_FOUND, UNSUPPORTED_PTX_VERSION,
		// JIT_COMPILATION_DISABLED, NOT_FOUND, NOT_SUPPORTED, SYSTEM_DRIVER_MISMATCH,
		// COMPAT_NOT_SUPPORTED_ON_DEVICE
		return vk.ErrUnsupported
	case 4, 46, 201, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999:
		// DEINITIALIZED, DEVICE_UNAVAILABLE, INVALID_CONTEXT, ECC_UNCORRECTABLE,
		// NVLINK_UNCORRECTABLE, CONTAINED, ILLEGAL_ADDRESS, LAUNCH_TIMEOUT,
		// CONTEXT_IS_DESTROYED, ASSERT, HARDWARE_STACK_ERROR, ILLEGAL_INSTRUCTION,
		// MISALIGNED_ADDRESS, INVALID_ADDRESS_SPACE, INVALID_PC, LAUNCH_FAILED,
		// EXTERNAL_DEVICE, UNKNOWN
		return vk.ErrDeviceLost
	}
	return nil
}

func lost(err error) bool { return errors.Is(err, vk.ErrDeviceLost) }

func refuse(op string, err error, format string, args ...any) error {
	return &Error{Op: op, Detail: fmt.Sprintf(format, args...), Err: err}
}

func invalid(op, format string, args ...any) error {
	return refuse(op, vk.ErrInvalid, format, args...)
}

func unsupported(op, format string, args ...any) error {
	return refuse(op, vk.ErrUnsupported, format, args...)
}

// notComputed is the error of a call that its kernel does not compute, which only its memory tells.
func notComputed(format string, args ...any) error {
	return fmt.Errorf("%w: %w", problem.ErrUnsupported, unsupported(launchOp, format, args...))
}

func closed(op string) error { return &Error{Op: op, Err: vk.ErrClosed} }

// unmade is the error of a nil pointer or of an object that no function of this package
// returned.
func unmade(op string) error {
	return invalid(op, "the object is nil, or was not made by this package")
}
