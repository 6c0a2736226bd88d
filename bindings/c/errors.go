//go:build cgo && linux

package main

// #include "calls.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"
	"sync/atomic"

	"vkattn/attention"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// calls counts those of the program.
var calls atomic.Uint64

// fault is an error of this package.
type fault struct {
	status C.vkattn_status
	text   string
	is     error
}

func (f *fault) Error() string { return "vkattn: " + f.text }

func (f *fault) Unwrap() error { return f.is }

// status makes a call. It keeps the text of its error for vkattn_last_error: Go runs on the thread that called it.
func status(f func() error) C.vkattn_status {
	err := guarded(f)
	// A driver, or a layer, registers what it does at exit with its first calls of each kind. The library's handler runs
	// before what was registered before it, so it is registered again after calls 1, 2, 4, 8 and so on.
	if n := calls.Add(1); n&(n-1) == 0 {
		C.vka_at_exit()
	}
	if err == nil {
		return C.VKATTN_OK
	}
	C.vka_keep_error(C.CString(text(err)))
	return code(err)
}

// guarded returns a panic as an error, which would end the process.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &fault{C.VKATTN_ERROR_INTERNAL, fmt.Sprintf("a fault of the library: %v\n%s", r, debug.Stack()), nil}
		}
	}()
	return f()
}

func code(err error) C.vkattn_status {
	var f *fault
	switch {
	case errors.As(err, &f):
		return f.status
	case errors.Is(err, vk.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return C.VKATTN_ERROR_TIMEOUT
	case errors.Is(err, vk.ErrDeviceLost):
		return C.VKATTN_ERROR_DEVICE_LOST
	case errors.Is(err, vk.ErrOutOfMemory):
		return C.VKATTN_ERROR_OUT_OF_MEMORY
	case errors.Is(err, vk.ErrNoDevice):
		return C.VKATTN_ERROR_NO_DEVICE
	case errors.Is(err, vk.ErrUnsupported):
		return C.VKATTN_ERROR_UNSUPPORTED
	case errors.Is(err, vk.ErrInvalid), errors.Is(err, vk.ErrClosed):
		return C.VKATTN_ERROR_INVALID
	}
	return C.VKATTN_ERROR_INTERNAL
}

// text is the text of an error, with the names that fields have in C.
func text(err error) string {
	s := err.Error()
	var shape *attention.ShapeError
	if errors.As(err, &shape) {
		named := *shape
		named.Field = cNames(shape.Field)
		for _, x := range []*any{&named.Got, &named.Want} {
			if p, ok := (*x).(problem.Phrase); ok {
				*x = p.With(cNames)
			}
		}
		trim := func(e error) string { return strings.TrimPrefix(e.Error(), "attention: ") }
		s = strings.Replace(s, trim(shape), trim(&named), 1)
	}
	return strings.ReplaceAll(s, "\x00", "")
}

// Go's names in C: those that the rule of snake does not give.
var special = map[string]string{
	"DType": "dtype", "ALiBi": "alibi", "ALiBiPerSequence": "alibi_per_sequence", "Host": "data", "DO": "d_o", "DLSE": "d_lse", "DQ": "d_q", "DK": "d_k", "DV": "d_v",
	"LSE": "lse", "New": "new_rows", "QAtUsed": "q_at_used",
}

var (
	word    = regexp.MustCompile(`[A-Z]\w*`)
	strides = regexp.MustCompile(`\.Strides(\.Batch|\.Head|\.Seq)?`)
	humps   = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)
)

// cNames replaces the names of Go's fields in a text, such as "HeadDim/HeadDimV" and "O.Strides.Seq".
func cNames(goNames string) string {
	s := strides.ReplaceAllStringFunc(goNames, func(s string) string {
		switch _, axis, _ := strings.Cut(s[1:], "."); axis {
		case "Batch":
			return ".stride_batch"
		case "Head":
			return ".stride_head"
		}
		return ".stride_row"
	})
	return word.ReplaceAllStringFunc(s, cName)
}

// cName is the name of a field: HeadDimV is head_dim_v.
func cName(goName string) string {
	if s := special[goName]; s != "" {
		return s
	}
	return strings.ToLower(humps.ReplaceAllString(goName, "${1}${3}_${2}${4}"))
}
