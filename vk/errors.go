package vk

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"vkattn/internal/hostmem"
)

// Sentinels, matched with errors.Is.
var (
	// ErrDeviceLost: the device is lost (VK_ERROR_DEVICE_LOST). Only Close still works.
	ErrDeviceLost = errors.New("vk: device lost")
	// ErrOutOfMemory: host or device memory, or an allocation limit, is exhausted.
	ErrOutOfMemory = hostmem.ErrOutOfMemory
	// ErrUnsupported: this device, driver or machine lacks something; the text says what.
	ErrUnsupported = errors.New("vk: unsupported")
	// ErrClosed: the object, or the device it came from, is closed.
	ErrClosed = errors.New("vk: closed")
	// ErrNoDevice: no Vulkan loader, no device, or none that matches the request.
	ErrNoDevice = errors.New("vk: no device")
	// ErrTimeout: submitted work did not finish within Options.Timeout, in a call that takes no context.
	ErrTimeout = errors.New("vk: timeout")
	// ErrTimestamps: the device's clock gave no time, as it ran backwards or beyond the host's.
	ErrTimestamps = errors.New("vk: unusable timestamps")
	// ErrInvalid: an argument breaks a rule of this package or a limit of Vulkan.
	ErrInvalid = errors.New("vk: invalid use")
)

// Error is a failed operation. Result is the result of Vulkan, or the code that fits best
// if the operation was refused before Vulkan was called.
type Error struct {
	Op     string // the operation, e.g. "vkAllocateMemory" or "Dispatch"
	Result Result // ResultSuccess if Vulkan was not involved
	Detail string // the reason; may be empty
	Err    error  // a sentinel or a cause; may be nil
}

func (e *Error) Error() string {
	if e == nil {
		return "vk: no error"
	}
	s := "vk: " + e.Op
	if e.Result != ResultSuccess {
		s += ": " + ResultName(e.Result)
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	} else if e.Result == ResultSuccess && e.Err != nil {
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

// Is reports whether target is the sentinel of Result.
func (e *Error) Is(target error) bool {
	return e != nil && target != nil && target == sentinel(e.Result)
}

func sentinel(r Result) error {
	switch r {
	case ResultDeviceLost:
		return ErrDeviceLost
	case ResultOutOfHostMemory, ResultOutOfDeviceMemory, ResultOutOfPoolMemory,
		ResultFragmentedPool, ResultFragmentation, ResultTooManyObjects:
		return ErrOutOfMemory
	case ResultExtensionNotPresent, ResultFeatureNotPresent, ResultLayerNotPresent,
		ResultFormatNotSupported, ResultIncompatibleDriver:
		return ErrUnsupported
	case ResultInvalidExternalHandle:
		return ErrInvalid
	}
	return nil
}

// Result is a VkResult. Package vk/goki converts it to the type of goki/vulkan.
type Result int32

// Results that this package has a use for. ResultName knows more of them.
const (
	ResultSuccess               Result = 0
	ResultTimeout               Result = 2
	ResultOutOfHostMemory       Result = -1
	ResultOutOfDeviceMemory     Result = -2
	ResultInitializationFailed  Result = -3
	ResultDeviceLost            Result = -4
	ResultLayerNotPresent       Result = -6
	ResultExtensionNotPresent   Result = -7
	ResultFeatureNotPresent     Result = -8
	ResultIncompatibleDriver    Result = -9
	ResultTooManyObjects        Result = -10
	ResultFormatNotSupported    Result = -11
	ResultFragmentedPool        Result = -12
	ResultOutOfPoolMemory       Result = -1000069000
	ResultInvalidExternalHandle Result = -1000072003
	ResultFragmentation         Result = -1000161000
)

func (r Result) String() string { return ResultName(r) }

// resultNames has the codes that this package may get.
var resultNames = map[Result]string{
	0: "VK_SUCCESS", 1: "VK_NOT_READY", 2: "VK_TIMEOUT", 5: "VK_INCOMPLETE",
	-1: "VK_ERROR_OUT_OF_HOST_MEMORY", -2: "VK_ERROR_OUT_OF_DEVICE_MEMORY",
	-3: "VK_ERROR_INITIALIZATION_FAILED", -4: "VK_ERROR_DEVICE_LOST", -5: "VK_ERROR_MEMORY_MAP_FAILED",
	-6: "VK_ERROR_LAYER_NOT_PRESENT", -7: "VK_ERROR_EXTENSION_NOT_PRESENT", -8: "VK_ERROR_FEATURE_NOT_PRESENT",
	-9: "VK_ERROR_INCOMPATIBLE_DRIVER", -10: "VK_ERROR_TOO_MANY_OBJECTS", -11: "VK_ERROR_FORMAT_NOT_SUPPORTED",
	-12: "VK_ERROR_FRAGMENTED_POOL", -13: "VK_ERROR_UNKNOWN", -1000069000: "VK_ERROR_OUT_OF_POOL_MEMORY",
	-1000072003: "VK_ERROR_INVALID_EXTERNAL_HANDLE", -1000161000: "VK_ERROR_FRAGMENTATION",
	-1000257000: "VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS", -1000011001: "VK_ERROR_VALIDATION_FAILED",
	-1000012000: "VK_ERROR_INVALID_SHADER_NV", 1000297000: "VK_PIPELINE_COMPILE_REQUIRED",
	-1000174001: "VK_ERROR_NOT_PERMITTED",
}

// ResultName is the name of a result in the Vulkan specification.
func ResultName(r Result) string {
	if s, ok := resultNames[r]; ok {
		return s
	}
	return fmt.Sprintf("VkResult(%d)", int32(r))
}

func refuse(op string, err error, format string, args ...any) error {
	return &Error{Op: op, Detail: fmt.Sprintf(format, args...), Err: err}
}

// joinErrors makes one Error of several of one operation, which matches what they match.
func joinErrors(list []error) error {
	var causes []error
	var details []string
	for _, err := range list {
		e := err.(*Error)
		causes, details = append(causes, e.Err), append(details, e.Detail)
	}
	return refuse(list[0].(*Error).Op, errors.Join(causes...), "%s", strings.Join(details, "; "))
}

// invalid, unsupported and outOfMemory are errors of requests that are refused before
// Vulkan is called.
func invalid(op, format string, args ...any) error { return refuse(op, ErrInvalid, format, args...) }

func unsupported(op, format string, args ...any) error {
	return refuse(op, ErrUnsupported, format, args...)
}

func outOfMemory(op, format string, args ...any) error {
	return refuse(op, ErrOutOfMemory, format, args...)
}

func closed(op string) error { return &Error{Op: op, Err: ErrClosed} }

// unmade is the error of a nil pointer or of an object that no constructor returned.
func unmade(op string) error {
	return invalid(op, "the object is nil, or was not made by this package")
}

// checkContext refuses a nil context before anything is submitted.
func checkContext(op string, ctx context.Context) error {
	if ctx == nil {
		return invalid(op, "no context")
	}
	return nil
}
